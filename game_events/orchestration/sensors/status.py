"""The asset `status` with its check `all_is_well`, one look at everything that may need a person; and the sensor that looks."""

import time
from collections.abc import Collection, Iterable

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus
from deltalake.exceptions import DeltaError

from game_events.config.masking import without_secrets
from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.orchestration.checks.tables import check_result
from game_events.orchestration.dagster_private import AssetCheckExecutionRecordStatus
from game_events.orchestration.events.texts import as_text, plain
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import OWNERS, Keys
from game_events.orchestration.runs.own_runs import OwnRuns
from game_events.orchestration.sensors.ticks import Cursor, own_runs, sensor, some
from game_events.pipeline.observability.lag import read_lag

CHECK = "all_is_well"
#: Longest wait for one answer of the broker.
TIMEOUT_S = 5.0
#: Jobs with a failed newest run that is worth a look.
JOBS = ("refresh", "continuous", "replay", "redecode", "maintain")
#: The sensor logs the same result again after so many seconds.
AGAIN_S = 3600.0


def read_status(
    settings: Settings, keys: Keys, instance: DagsterInstance, own: OwnRuns, checks: Collection[dg.AssetCheckKey]
) -> dg.AssetCheckEvaluation:
    """Look at source, tables, checks and runs; what cannot be reached is a trouble, and each trouble a part of the result."""
    troubles: list[str] = []
    numbers: dict[str, int] = {}
    try:
        lag = read_lag(settings, TIMEOUT_S)
        numbers = {"lag": lag.total_lag, "failed_or_waiting": len(lag.failed)}
        if lag.failed:
            troubles.append(f"{settings.names.entities} that failed or wait: {some(lag.failed)}")
        if lag.ahead:
            troubles.append(f"{some(lag.ahead)} end before what bronze has read")
        if settings.alert_lag_records and lag.total_lag >= settings.alert_lag_records:
            troubles.append(f"{lag.total_lag:,} records are not read yet")
    except (GameEventsError, DeltaError, OSError) as error:
        troubles.append(without_secrets(str(error), settings))
    mine = [key for key in checks if key.name != CHECK and key.asset_key in keys.by_layer.values()]
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(mine)
    failed = [k.name for k, record in newest.items() if record.status == AssetCheckExecutionRecordStatus.FAILED]
    if failed:
        troubles.append(f"checks that fail: {some(sorted(failed))}")
    for job in JOBS:
        runs = own.runs(instance, 1, job_name=keys.named(job))
        if runs and runs[0].status == DagsterRunStatus.FAILURE:
            troubles.append(f"the newest run of {job} failed ({runs[0].run_id[:8]})")
    text = "\n".join(f"- {as_text(trouble)}" for trouble in troubles) or "Everything is well."
    return dg.AssetCheckEvaluation(
        asset_key=_key(keys),
        check_name=CHECK,
        passed=not troubles,
        severity=dg.AssetCheckSeverity.WARN,
        description=as_text("; ".join(troubles) or "everything is well"),
        metadata={"status": dg.MetadataValue.md(text), **numbers, "checks_that_fail": len(failed)},
    )


def build_status(graph: Graph, checks: Iterable[dg.AssetChecksDefinition]) -> tuple[dg.AssetSpec, dg.AssetChecksDefinition]:
    """The asset, which is no table, and its check (of the sensor `status`, or by a click); `checks`: those of the layers."""
    entities = graph.settings.names.entities
    known = {key for check in checks for key in check.check_keys}
    spec = dg.AssetSpec(
        _key(graph.keys),
        deps=[graph.keys.unified],
        description=f"Is everything well? Lag, {entities} that failed, checks that fail, failed runs: the check `all_is_well` "
        "has them in one list. The sensor `status` looks each minute.",
        group_name="operations",
        kinds={"dagster"},
        owners=OWNERS,
    )

    @dg.asset_check(
        asset=spec.key,
        name=CHECK,
        description=f"Nothing needs a person: none of the {entities} failed, no check fails, no newest run failed, the source "
        "answers.",
    )
    def all_is_well(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        settings = graph.source.read()
        return check_result(read_status(settings, graph.keys, context.instance, OwnRuns.of(settings), known))

    return spec, all_is_well


class Seen(Cursor):
    """The sensor's cursor: the last result in words, and when it was logged (seconds since 1970)."""

    summary: str = ""
    at: float = 0.0


def build_status_sensor(graph: Graph) -> dg.SensorDefinition:
    """The sensor; it starts nothing."""

    @sensor(graph, "Logs the check `all_is_well` of the asset `status` when its result changes, and once an hour.", 60)
    def status(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings, seen, now = graph.source.read(), Seen.read(context.cursor), time.time()
        known = context.repository_def.asset_graph.asset_check_keys if context.repository_def else ()
        found = read_status(settings, graph.keys, context.instance, own_runs(context, settings), known)
        summary = plain(found.description or "")
        if summary == seen.summary and now - seen.at < AGAIN_S:
            return dg.SkipReason(summary)
        cursor = Seen(summary=summary, at=now).model_dump_json()
        return dg.SensorResult(asset_events=[found], skip_reason=summary, cursor=cursor)

    return status


def _key(keys: Keys) -> dg.AssetKey:
    return dg.AssetKey([keys.named("status")])
