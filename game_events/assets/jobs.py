"""The job that drives everything: one cycle over all layers, logged for the tables that changed."""

from collections.abc import Iterator

import dagster as dg

from game_events.assets.events import check_evaluation, report_events
from game_events.assets.resources import LakehouseResource
from game_events.pipeline.reconcile import reconcile
from game_events.pipeline.refresh import refresh as refresh_all

#: Metadata key of the run's whole report.
REPORT = "report"
Event = dg.AssetMaterialization | dg.AssetCheckEvaluation | dg.Output[None]


@dg.op(
    name="refresh_all_layers",
    description="Reads the topic up to the offsets seen now, then brings silver, gold and the unified table up to date.",
    out=dg.Out(dg.Nothing),
    pool="bronze",
)
def refresh_all_layers(context: dg.OpExecutionContext, lakehouse: LakehouseResource) -> Iterator[Event]:
    """One run of the whole pipeline; a game that fails alone fails the run after the others' results are kept."""
    pipeline = lakehouse.pipeline(context.run_id)
    report = refresh_all(pipeline)
    yield from report_events(context, report)
    if report.batches:
        yield check_evaluation(reconcile(pipeline))
    whole = {REPORT: dg.MetadataValue.json(report.to_dict())}
    if report.errors:
        failed = "; ".join(f"{t.table}: {t.error}" for t in report.errors[:10])
        raise dg.Failure(f"{len(report.errors)} tables failed: {failed}", metadata=whole)
    yield dg.Output(None, metadata=whole)


@dg.job(
    name="refresh",
    description="Triggered mode: all layers, all games, one Spark job for each layer. Sensors, schedules and the command line "
    "start this job; it logs a materialization for each table that changed.",
    # One process: the default executor would start a JVM for each step.
    executor_def=dg.in_process_executor,
)
def refresh() -> None:
    """See the description."""
    refresh_all_layers()
