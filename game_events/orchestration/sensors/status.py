"""The sensor that keeps the check `all_is_well` of the asset `status` up to date."""

import time

import dagster as dg

from game_events.orchestration.checks.status import read_status
from game_events.orchestration.graph import Graph
from game_events.orchestration.sensors.ticks import Cursor, own_runs, sensor

#: The same result is logged again after so many seconds.
AGAIN_S = 3600.0


class Seen(Cursor):
    """The sensor's cursor: the last result in words, and when it was logged (seconds since 1970)."""

    summary: str = ""
    at: float = 0.0


def build_status_sensor(graph: Graph) -> dg.SensorDefinition:
    """The sensor; it starts nothing."""

    @sensor(
        graph,
        "status",
        "Logs the check `all_is_well` of the asset `status` when its result changes, and once an hour.",
        60,
    )
    def status(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings, seen, now = graph.source.read(), Seen.read(context.cursor), time.time()
        known = context.repository_def.asset_graph.asset_check_keys if context.repository_def else ()
        found = read_status(settings, graph.keys, context.instance, own_runs(context, settings), known)
        if found.summary == seen.summary and now - seen.at < AGAIN_S:
            return dg.SkipReason(found.summary)
        cursor = Seen(summary=found.summary, at=now).model_dump_json()
        return dg.SensorResult(asset_events=[found.evaluation(graph)], skip_reason=found.summary, cursor=cursor)

    return status
