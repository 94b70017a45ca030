"""The events of a whole run: what changed, which rules and checks failed, and its report."""

from collections.abc import Iterator, Mapping

import dagster as dg

from game_events.orchestration.checks.last_known import last_known
from game_events.orchestration.checks.rules import rule_evaluations
from game_events.orchestration.checks.tables import check_evaluation
from game_events.orchestration.events.materializations import report_events
from game_events.orchestration.events.planned import PlannedLayers
from game_events.orchestration.keys import REPORT, Keys, OpEvent
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult


def changes(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, report: RunResult, keys: Keys, *, every: bool = False
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation]:
    """The tables that changed (`every`: as of `report_events`), and the rules that were evaluated."""
    yield from report_events(context, report, keys, every=every)
    yield from rule_evaluations(report, keys)


def whole_run(
    context: dg.OpExecutionContext, report: RunReport, planned: PlannedLayers, more: Mapping[str, object] | None = None
) -> Iterator[OpEvent]:
    """All events of a run that came to its end, and its output; `more`: further parts of the report.

    `planned`: what it had planned at its beginning.

    Raises:
        Failure: tables failed, each alone.
    """
    keys, pipeline = planned.keys, planned.pipeline
    yield from planned.recovered(context.instance, report)
    # The unified table's event is after those of the layers above: until it is there automation takes the run to be at work.
    yield from changes(context, report, keys)
    if report.errors:
        yield from planned.unchanged(report, planned.layers)
    yield from outcome(context, report, {REPORT: dg.MetadataValue.json(report.to_dict() | dict(more or {}))}, pipeline)


def outcome(
    context: dg.OpExecutionContext, report: RunReport, metadata: Mapping[str, dg.MetadataValue | float], pipeline: Pipeline
) -> Iterator[OpEvent]:
    """The checks of a run that came to its end, those that it did not make included, and its output with its metadata.

    Raises:
        Failure: tables failed, each alone.
    """
    yield from (check_evaluation(found, Keys.of(pipeline.settings)) for found in report.checks)
    yield from last_known(context, pipeline)
    if report.errors:
        # Not retried here: one game's failure would hold up everybody's next run. The sensor `kafka_lag` tries it again.
        failed = "; ".join(f"{t.table}: {t.error}" for t in report.errors[:10])
        raise dg.Failure(f"{len(report.errors)} tables failed: {failed}", metadata=metadata, allow_retries=False)
    yield dg.Output(None, metadata=metadata)
