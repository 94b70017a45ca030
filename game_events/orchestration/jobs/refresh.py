"""The jobs: `refresh` drives everything, `replay` and `redecode` repair; each logs the tables that changed."""

from collections.abc import Callable, Iterator, Mapping

import dagster as dg
from pydantic import Field

from game_events.orchestration.checks.rules import rule_evaluations
from game_events.orchestration.checks.tables import check_evaluation
from game_events.orchestration.events.materializations import report_events
from game_events.orchestration.graph import Graph
from game_events.orchestration.jobs.config import RunConfig
from game_events.orchestration.keys import REPORT, OpEvent
from game_events.orchestration.runs.errors import errors_decide
from game_events.orchestration.runs.tags import CARRIES_ALL, ROW_CHANGING_TAG
from game_events.pipeline.checks.registry import check_after_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.observability.event_log import recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing.redecode import redecode as redecode_bronze
from game_events.pipeline.reprocessing.selection import replay_selection
from game_events.pipeline.runs.refresh import refresh as refresh_all
from game_events.pipeline.runs.refresh import refresh_downstream, replay_and_refresh


class ReplayConfig(dg.Config):
    """Which rows of `quarantine_events` to try again; empty lists: all of them."""

    reasons: list[str] = Field(default=[], description="Only rows with these reasons, such as BAD_SCHEMA; empty: all.")
    schema_ids: list[str] = Field(default=[], description="Only rows of these schema ids or GUIDs; empty: all.")


class RedecodeConfig(dg.Config):
    """What else follows when bronze's columns were rebuilt."""

    refresh_silver_and_gold: bool = Field(default=False, description="Rebuild silver and gold from the new columns, too.")


def build_refresh(graph: Graph) -> dg.JobDefinition:
    """The job `refresh`: the whole pipeline; a game that fails alone fails the run after the others' results are kept."""

    @graph.op(
        "refresh_all_layers",
        "Reads the topic up to the offsets seen now, then brings silver, gold and the unified table up to date; or only what "
        "its configuration selects.",
        "bronze",
    )
    def refresh_all_layers(context: dg.OpExecutionContext, config: RunConfig) -> Iterator[OpEvent]:
        if config.full_refresh:
            context.instance.add_run_tags(context.run_id, {ROW_CHANGING_TAG: "true"})

        def work(pipeline: Pipeline, report: RunReport) -> Mapping[str, object]:
            refresh_all(pipeline, report, config.selection(pipeline), ignore_intervals=config.ignore_intervals)
            return {}

        yield from _run(context, graph, "refresh", work)

    return graph.job(
        refresh_all_layers,
        "refresh",
        "Triggered mode: all layers, all games, one Spark job for each layer. Sensors, schedules and the command line "
        "start this job; it logs a materialization for each table that changed.",
        CARRIES_ALL,
    )


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

        yield from _run(context, graph, "replay", work)

    return graph.job(
        replay_quarantined_rows,
        "replay",
        "Rows of quarantine_events that can be decoded after all, or satisfy the rules now, reach silver and gold. The "
        "same as `game-events quarantine replay`.",
        CARRIES_ALL,
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

        yield from _run(context, graph, "redecode", work)

    return graph.job(
        redecode_bronze_events,
        "redecode",
        "Bronze's decoded columns are rebuilt from its raw values. The same as `game-events redecode`.",
    )


def _run(
    context: dg.OpExecutionContext,
    graph: Graph,
    name: str,
    work: Callable[[Pipeline, RunReport], Mapping[str, object]],
) -> Iterator[OpEvent]:
    """Do the work, make the checks, and report both as events; then fail, if the work stopped or a table failed."""
    pipeline, report = graph.lakehouse(context).pipeline(context.run_id), RunReport()
    keys = graph.keys
    with errors_decide(context, pipeline.settings):
        try:
            with recorded(pipeline, report, name, context.retry_number):
                more = work(pipeline, report)
                check_after_run(pipeline, report)
        except Exception:
            # What was committed before the error stays, so it is reported; a retry reports only what it adds.
            yield from report_events(context, report, keys)
            yield from rule_evaluations(report, keys)
            raise
    yield from report_events(context, report, keys)
    yield from rule_evaluations(report, keys)
    yield from (check_evaluation(found, keys) for found in report.checks)
    whole = {REPORT: dg.MetadataValue.json(report.to_dict() | dict(more))}
    if report.errors:
        # Not retried here: one game's failure would hold up everybody's next run. The sensor `kafka_lag` tries it again.
        failed = "; ".join(f"{t.table}: {t.error}" for t in report.errors[:10])
        raise dg.Failure(f"{len(report.errors)} tables failed: {failed}", metadata=whole, allow_retries=False)
    yield dg.Output(None, metadata=whole)
