"""The sensor that ends runs without a process, and deletes those that ended long ago."""

import dagster as dg

from game_events.errors import GameEventsError
from game_events.orchestration.graph import Graph
from game_events.orchestration.runs.dead_runs import end_dead_runs
from game_events.orchestration.runs.retention import drop_old_runs
from game_events.orchestration.sensors.ticks import own_runs, sensor


def build_dead_runs(graph: Graph) -> dg.SensorDefinition:
    """The sensor; it never starts a run, and looks at no run of another lakehouse."""

    @sensor(
        graph,
        "Runs of this lakehouse and machine with a killed process are marked as failed, and their pool slots given back; those "
        "that ended more than `RUN_HISTORY_H` ago are deleted from Dagster's storage.",
        30,
    )
    def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        own = own_runs(context, graph.settings)
        ended = end_dead_runs(context.instance, own)
        checks = context.repository_def.asset_graph.asset_check_keys if context.repository_def else ()
        try:
            dropped = drop_old_runs(context.instance, own, graph.source.read().run_history_h, checks)
            said = f"; deleted {dropped} that ended long ago" if dropped else ""
        except GameEventsError as error:  # dead runs are ended whatever the settings are now
            said = f"; those that ended long ago stay: {error}"
        if not ended:
            return dg.SkipReason(f"every unfinished run has its process{said}")
        return dg.SkipReason(f"ended {len(ended)} runs without a process: {', '.join(run.run_id[:8] for run in ended)}{said}")

    return dead_runs
