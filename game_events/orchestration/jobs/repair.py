"""The jobs `replay` and `redecode` repair; each logs the tables that changed."""

from collections.abc import Callable, Collection, Iterator, Mapping

import dagster as dg
from pydantic import Field

from game_events.lakehouse.layers import REFRESHED, Layer
from game_events.orchestration.checks.last_known import last_known
from game_events.orchestration.checks.whole_run import changes, whole_run
from game_events.orchestration.events.planned import PlannedLayers
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import OpEvent
from game_events.orchestration.runs.errors import errors_decide
from game_events.orchestration.runs.tags import CARRIES_ALL
from game_events.pipeline.checks.registry import check_after_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.observability.event_log import recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing.redecode import redecode as redecode_bronze
from game_events.pipeline.reprocessing.selection import replay_selection
from game_events.pipeline.runs.refresh import refresh_downstream, replay_and_refresh


class ReplayConfig(dg.Config):
    """Which rows of `quarantine_events` to try again; empty lists: all of them."""

    reasons: list[str] = Field(default=[], description="Only rows with these reasons, such as BAD_SCHEMA; empty: all.")
    schema_ids: list[str] = Field(default=[], description="Only rows of these schema ids or GUIDs; empty: all.")


class RedecodeConfig(dg.Config):
    """What else follows when bronze's columns were rebuilt."""

    refresh_silver_and_gold: bool = Field(default=False, description="Rebuild silver and gold from the new columns, too.")


def build_replay(graph: Graph) -> dg.JobDefinition:
    """The job `replay`: after a schema was registered, decoding learned something new, or a rule changed."""

    @graph.op(
        "replay_quarantined_rows",
        "Tries rows of quarantine_events again; those that decode now, or that the rules let in, reach silver and gold once.",
        "bronze",
    )
    def replay_quarantined_rows(context: dg.OpExecutionContext, config: ReplayConfig) -> Iterator[OpEvent]:
        def work(pipeline: Pipeline, report: RunReport) -> Mapping[str, object]:
            done = replay_and_refresh(pipeline, report, replay_selection(config.reasons, config.schema_ids))
            return {"replayed_rows": done.rows, "left_by_reason": dict(done.left)}

        yield from _run(context, graph, "replay", REFRESHED, work)

    return graph.job(
        "replay",
        "Rows of quarantine_events that can be decoded after all, or satisfy the rules now, reach silver and gold. The "
        "same as `game-events quarantine replay`.",
        replay_quarantined_rows,
        tags=CARRIES_ALL,
    )


def build_redecode(graph: Graph) -> dg.JobDefinition:
    """The job `redecode`: after decoding learned something new."""

    @graph.op(
        "redecode_bronze",
        "Rebuilds bronze's decoded columns from its raw values, without Kafka, in one atomic commit.",
        "bronze",
    )
    def redecode_bronze_events(context: dg.OpExecutionContext, config: RedecodeConfig) -> Iterator[OpEvent]:
        def work(pipeline: Pipeline, report: RunReport) -> Mapping[str, object]:
            done = redecode_bronze(pipeline, report)
            if config.refresh_silver_and_gold:
                refresh_downstream(pipeline, report, full=True)
            return {
                "redecoded_rows": done.rows,
                "kept_by_reason": dict(done.kept),
                "new_columns": done.new_columns,
                "undecoded_by_type": dict(done.other_types),
            }

        layers = REFRESHED if config.refresh_silver_and_gold else (Layer.BRONZE,)
        yield from _run(context, graph, "redecode", layers, work)

    return graph.job(
        "redecode",
        "Bronze's decoded columns are rebuilt from its raw values. The same as `game-events redecode`.",
        redecode_bronze_events,
    )


def _run(
    context: dg.OpExecutionContext,
    graph: Graph,
    name: str,
    layers: Collection[str],
    work: Callable[[Pipeline, RunReport], Mapping[str, object]],
) -> Iterator[OpEvent]:
    """Do the work, make the checks, and report both as events; then fail, if the work stopped or a table failed.

    `layers`: those that it may write.
    """
    pipeline, report = graph.lakehouse(context).pipeline(context.run_id), RunReport()
    planned = PlannedLayers.all_games(pipeline, graph.keys, layers)
    planned.log(context)
    with errors_decide(context, pipeline.settings):
        try:
            with recorded(pipeline, report, name, context.retry_number):
                more = work(pipeline, report)
                check_after_run(pipeline, report)
        except Exception:
            # What was committed before the error stays, so it is reported; a retry reports only what it adds.
            yield from changes(context, report, graph.keys)
            yield from last_known(context, pipeline)
            raise
    yield from whole_run(context, report, planned, more)
