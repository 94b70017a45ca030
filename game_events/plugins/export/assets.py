"""The asset `rest_export`: rows of silver or gold POSTed to an HTTP receiver; there is none unless the setting names one."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from game_events.lakehouse.tables import EXPORT_FAILED_CALLS
from game_events.orchestration.assets import asset_spec, made_by, own_table_spec
from game_events.orchestration.jobs import check_place
from game_events.orchestration.keys import REPORT, Keys
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import REASON, lakehouse_of
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.export.settings import ExportSettings
from game_events.plugins.export.tables import failed_calls_schema

#: Not the job's name: no two nodes of Dagster may share one, and the job is a node, too.
OP = "export_new_rows"
JOB = "rest_export"
RECEIVER = "rest_receiver"
GROUP = "exports"


class ExportConfig(dg.Config):
    """Options of one run of the export."""

    resend: list[str] = Field(default=[], description="Games whose table was replaced: send all of its rows again.")
    go_on: list[str] = Field(
        default=[], description="Games whose table was replaced: go on with the rows that come from now on."
    )
    files: str | None = Field(
        default=None,
        description="Rows of this folder of Parquet files, or Delta table, below one of `JOB_PLACES`, instead.",
    )
    replay: bool = Field(default=False, description="Send failed calls once more.")
    replay_statuses: list[int] = Field(default=[], description="Of these, only those with such an answer; empty: all.")


def export_key(keys: Keys) -> dg.AssetKey:
    """`rest_export`: rows sent to an HTTP receiver."""
    return dg.AssetKey([keys.names.asset(JOB)])


def build_export(graph: Graph) -> dg.Definitions:
    """Assets, job and sensor; none, unless the setting names a receiver."""
    settings = graph.settings
    keys = graph.keys
    if ExportSettings.of(settings).rest_url is None:
        return dg.Definitions()
    job = dg.define_asset_job(
        keys.named(JOB),
        dg.AssetSelection.assets(export_key(keys)),
        description="Sends what is new to the HTTP receiver. The same as `game-events export run`.",
        executor_def=dg.in_process_executor,
        tags=graph.tags,
    )
    # In a run of its own, so that a slow receiver holds up no table.
    sensor = dg.AutomationConditionSensorDefinition(
        keys.named("rest_automation"),
        target=dg.AssetSelection.assets(export_key(keys)),
        default_status=graph.sensor_status,
        minimum_interval_seconds=15,
        run_tags={**graph.tags, REASON: "there are new rows to export"},
        description="Exports rows over HTTP when the layer before has new ones, whoever brought them.",
    )
    return dg.Definitions(assets=[_asset(graph), *_downstream(graph)], jobs=[job], sensors=[sensor])


def _asset(graph: Graph) -> dg.AssetsDefinition:
    # These import aiohttp and DuckDB, which no other job needs.
    from game_events.plugins.export.rows import OnReplaced
    from game_events.plugins.export.run import export_rows, replay_failed_calls

    keys = graph.keys
    source = ExportSettings.of(graph.settings).rest_source
    upstream = keys.gold if source == "gold" else keys.silver

    @dg.multi_asset(
        name=keys.named(OP),
        specs=[
            asset_spec(
                graph,
                export_key(keys),
                f"New rows of {source}, POSTed to an HTTP receiver by Spark's workers: at "
                "least once, under idempotency keys that stay the same. A failed call waits for a replay.",
                deps=[dg.AssetDep(upstream, partition_mapping=dg.AllPartitionMapping())],
                automation_condition=_follows(upstream),
                group_name=GROUP,
                kinds={"spark", "deltalake", "http"},
                metadata=made_by(export_rows),
            )
        ],
        pool=keys.named("export"),
        required_resource_keys={graph.resource},
    )
    def rest_export(context: dg.AssetExecutionContext, config: ExportConfig) -> Iterator[dg.MaterializeResult[None]]:
        with graph.lakehouse(context).recorded(context, JOB) as (pipeline, report):
            if config.files is not None:
                check_place(pipeline.settings, config.files)
            if config.replay:
                replay_failed_calls(pipeline, config.replay_statuses)
            on_replaced = OnReplaced(
                ExportSettings.of(pipeline.settings).rest_on_replaced, frozenset(config.resend), frozenset(config.go_on)
            )
            export_rows(pipeline, report, on_replaced, config.files)
        yield dg.MaterializeResult(export_key(keys), metadata=_metadata(report))
        if report.errors:
            why = "; ".join(f"{t.game}: {t.error}" for t in report.errors[:10])
            what = f"{len(report.errors)} {pipeline.settings.names.entities}"
            whole = {REPORT: dg.MetadataValue.json(report.to_dict())}
            raise dg.Failure(f"nothing was sent of {what}: {why}", metadata=whole, allow_retries=False)

    return rest_export


def _downstream(graph: Graph) -> list[dg.AssetSpec]:
    """The receiver, and the table of the calls that it did not take."""
    keys = graph.keys
    lakehouse = lakehouse_of(graph.settings)
    # Its address may hold a token.
    said = "The HTTP receiver of the export, at the address of the setting `REST_URL`. External."
    receiver = asset_spec(
        graph, dg.AssetKey([keys.named(RECEIVER)]), said, deps=[export_key(keys)], group_name=GROUP, kinds={"http"}
    )
    if lakehouse is None:
        return [receiver]
    table = lakehouse.table(EXPORT_FAILED_CALLS)
    schema = failed_calls_schema(graph.settings.key_column)
    return [receiver, own_table_spec(graph, table, schema, "Rows of calls that the receiver did not take", [export_key(keys)])]


def _follows(upstream: dg.AssetKey) -> dg.AutomationCondition[Any]:
    """True when the layer above was updated since the last export was asked for or made; one export at a time."""
    condition = dg.AutomationCondition
    blocked = condition.any_checks_match(condition.check_failed(), blocking_only=True)
    news = condition.asset_matches(upstream, condition.newly_updated())
    # Of news and an export between two looks, it is not known which came first: rather an export too many than none.
    done = (condition.newly_requested() | condition.newly_updated()) & ~news
    held_up = condition.in_progress() | condition.asset_matches(upstream, blocked)
    return news.since(done) & ~held_up


def _metadata(report: RunReport) -> dict[str, Any]:
    from game_events.plugins.export.run import Export

    done = report.part(Export) or Export()
    latency = dict(zip(("latency_p50_s", "latency_p95_s"), done.latency_s or (), strict=False))
    return {
        "rows_delivered": done.delivered_rows,
        "rows_failed": done.failed_rows,
        "calls": done.calls,
        "chunks_waiting": done.waiting_chunks,
        "answers": dict(done.answers),
        "tasks_at_once": done.at_once,
        **{name: round(seconds, 4) for name, seconds in latency.items()},
        REPORT: dg.MetadataValue.json(report.to_dict()),
    }
