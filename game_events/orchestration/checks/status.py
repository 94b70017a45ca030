"""The asset `status` with its check `all_is_well`: one look at everything that may need a person."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus
from deltalake.exceptions import DeltaError

from game_events.config.masking import without_secrets
from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.orchestration.dagster_private import AssetCheckExecutionRecordStatus
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import OWNERS, Keys
from game_events.orchestration.runs.own_runs import OwnRuns
from game_events.pipeline.observability.lag import read_lag

CHECK, GROUP = "all_is_well", "operations"
#: Longest wait for one answer of the broker.
TIMEOUT_S = 5.0
#: Jobs with a failed newest run that is worth a look.
JOBS = ("refresh", "continuous", "replay", "redecode", "maintain")
SHOWN = 10


@dataclass
class Status:
    """What needs a person, in words, and numbers for the asset's page."""

    troubles: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """One line."""
        return "; ".join(self.troubles) or "everything is well"

    def evaluation(self, graph: Graph) -> dg.AssetCheckEvaluation:
        """The check's result; a trouble is a line of its Markdown."""
        text = "\n".join(f"- {trouble}" for trouble in self.troubles) or "Everything is well."
        return dg.AssetCheckEvaluation(
            asset_key=status_key(graph.keys),
            check_name=CHECK,
            passed=not self.troubles,
            severity=dg.AssetCheckSeverity.WARN,
            description=self.summary,
            metadata={"status": dg.MetadataValue.md(text), **self.numbers},
        )


def status_key(keys: Keys) -> dg.AssetKey:
    """The asset's key."""
    return dg.AssetKey([keys.named("status")])


def read_status(
    settings: Settings, keys: Keys, instance: DagsterInstance, own: OwnRuns, checks: Collection[dg.AssetCheckKey]
) -> Status:
    """Look at source, tables, checks and runs; what cannot be reached is a trouble."""
    found = Status()
    try:
        lag = read_lag(settings, TIMEOUT_S)
        found.numbers = {"lag": lag.total_lag, "failed_or_waiting": len(lag.failed)}
        if lag.failed:
            found.troubles.append(f"{settings.names.entities} that failed or wait: {_some(lag.failed)}")
        if lag.ahead:
            found.troubles.append(f"{_some(lag.ahead)} end before what bronze has read")
        if settings.alert_lag_records and lag.total_lag >= settings.alert_lag_records:
            found.troubles.append(f"{lag.total_lag:,} records are not read yet")
    except (GameEventsError, DeltaError, OSError) as error:
        found.troubles.append(without_secrets(str(error), settings))
    mine = [key for key in checks if key.name != CHECK and key.asset_key in keys.by_layer.values()]
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(mine)
    failed = [k.name for k, record in newest.items() if record.status == AssetCheckExecutionRecordStatus.FAILED]
    if failed:
        found.troubles.append(f"checks that fail: {_some(sorted(failed))}")
    for job in JOBS:
        runs = own.runs(instance, 1, job_name=keys.named(job))
        if runs and runs[0].status == DagsterRunStatus.FAILURE:
            found.troubles.append(f"the newest run of {job} failed ({runs[0].run_id[:8]})")
    found.numbers["checks_that_fail"] = len(failed)
    return found


def build_status(graph: Graph, checks: Iterable[dg.AssetChecksDefinition]) -> tuple[dg.AssetSpec, dg.AssetChecksDefinition]:
    """The asset, which is no table, and its check (of the sensor `status`, or by a click); `checks`: those of the layers."""
    entities = graph.settings.names.entities
    known = {key for check in checks for key in check.check_keys}
    spec = dg.AssetSpec(
        status_key(graph.keys),
        deps=[graph.keys.unified],
        description=f"Is everything well? Lag, {entities} that failed, checks that fail, failed runs: the check `all_is_well` "
        "has them in one list. The sensor `status` looks each minute.",
        group_name=GROUP,
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
        found = read_status(settings, graph.keys, context.instance, OwnRuns.of(settings), known).evaluation(graph)
        return dg.AssetCheckResult(
            passed=found.passed, severity=found.severity, description=found.description, metadata=found.metadata
        )

    return spec, all_is_well


def _some(names: Iterable[object]) -> str:
    """The first names."""
    every = list(map(str, names))
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more
