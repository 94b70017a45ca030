"""Checks on the whole as Dagster asset checks.

Run by themselves from the UI and by the job `checks`; the cheap ones by every run that changed something. Dagster makes an
asset's checks in each run that materializes it by hand, too: these are the cheap ones there, and others that fail.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import dagster as dg
from dagster import DagsterInstance

from game_events.orchestration.events.texts import as_text
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import COVERS, DEFAULT, FAILED_GAMES, Keys
from game_events.orchestration.runs.alerts import Evaluation, history
from game_events.pipeline.checks.history import VOLUME
from game_events.pipeline.checks.registry import CHECKS, TableCheck
from game_events.pipeline.checks.source import FRESH
from game_events.pipeline.reporting.steps import CheckResult

#: Metadata of a result that was logged again: when it was made, and by which run.
AS_OF, BY_RUN = "as_of", "made_by_run"
#: Checks that the sensor `data_alarms` makes.
HOURLY = (FRESH, VOLUME)
#: Newest evaluations that are read for the last one: a record keeps the place of its run's plan.
NEWEST = 5


def build_checks(graph: Graph) -> list[dg.AssetChecksDefinition]:
    """One asset check for each of `CHECKS`."""
    return [_asset_check(check, graph) for check in CHECKS]


def build_check_schedule(graph: Graph, checks: Sequence[dg.AssetChecksDefinition]) -> dg.ScheduleDefinition:
    """The job `checks`, which makes every check in full, by its schedule: once a day, at night."""
    job = dg.define_asset_job(
        graph.keys.named("checks"),
        selection=dg.AssetSelection.checks(*checks),
        description="Every check on the whole, in full: it reads all of bronze's coordinates, and gold of a sample of games.",
        executor_def=dg.in_process_executor,
        tags=graph.tags,
    )
    return dg.ScheduleDefinition(
        name=graph.keys.named("daily_checks"),
        job=job,
        cron_schedule="17 3 * * *",
        execution_timezone="UTC",
        description="Makes every check on the whole once a day; what only shows from afar (volume, doubled rows) shows here.",
        default_status=graph.schedule_status,
    )


def _asset_check(check: TableCheck, graph: Graph) -> dg.AssetChecksDefinition:
    keys = graph.keys

    asset = keys.by_layer[check.layer]
    description = f"{check.description} {_when(check, keys)}"
    spec = dg.AssetCheckSpec(check.name, asset=asset, description=description, blocking=check.blocking)

    # A subset: its result may be left out.
    @dg.multi_asset_check(
        name=f"{asset.path[-1]}_{check.name}", specs=[spec], can_subset=True, required_resource_keys={graph.resource}
    )
    def evaluate(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        by_hand = is_materialized(context.run, asset)
        if by_hand and (check.in_run is None or (check.all_games and has_partitions(context.run))):
            # One that fails is made: else Dagster would take it for one that does not, and this run may have mended it.
            if not fails(context.instance, spec.key):
                yield from map(check_result, again(context.instance, context.run.run_id, [spec.key]))
                return
            by_hand = False
        # Which games' tables the run has written is not known here.
        cheap = check.in_run if by_hand and not check.all_games else None
        try:
            with graph.lakehouse(context).recorded(context, f"check {check.name}", lineage=False) as (pipeline, report):
                found = cheap(pipeline, report) if cheap is not None else check.run(pipeline)
                report.add_checks(found)
        except dg.Failure as failure:
            # Else the result of before would stay the last known one.
            why = f"could not be made: {failure.description}"
            yield check_result(check_evaluation(CheckResult(check.name, check.layer, False, why), keys))
            raise
        yield check_result(check_evaluation(found, keys))

    return evaluate


def _when(check: TableCheck, keys: Keys) -> str:
    in_run = "in a cheap form at the end of each run that changes a table, " if check.in_run is not None else ""
    hourly = f"each hour by the sensor `{keys.named('data_alarms')}`, " if check.name in HOURLY else ""
    return f"Made {in_run}{hourly}once a day by the job `{keys.named('checks')}`, and by hand; other runs show its last result."


def again(instance: DagsterInstance, run_id: str, checks: Iterable[dg.AssetCheckKey]) -> Iterator[dg.AssetCheckEvaluation]:
    """The last result of each check, if it is of another run."""
    for key in checks:
        made = history(instance, key, NEWEST)[-1:]
        yield from (_with_date(found) for found in made if found.run_id != run_id)


def _with_date(found: Evaluation) -> dg.AssetCheckEvaluation:
    result, metadata, said = found.result, dict(found.result.metadata), found.result.description
    if AS_OF not in metadata:
        metadata[AS_OF] = dg.MetadataValue.timestamp(found.at)
        if found.run_id:
            metadata[BY_RUN] = dg.MetadataValue.dagster_run(found.run_id)
        said = f"as of {datetime.fromtimestamp(found.at, UTC):%Y-%m-%d %H:%M} UTC: {said or 'passed'}"
    return dg.AssetCheckEvaluation(
        asset_key=result.asset_key,
        check_name=result.check_name,
        passed=result.passed,
        metadata=metadata,
        severity=result.severity,
        description=said,
    )


def fails(instance: DagsterInstance, key: dg.AssetCheckKey) -> bool:
    """Whether the newest result of a check is a failure."""
    return any(not found.result.passed for found in history(instance, key, NEWEST)[-1:])


def is_materialized(run: dg.DagsterRun, asset: dg.AssetKey) -> bool:
    """Whether a run materializes an asset, by hand."""
    return asset in (run.asset_selection or ())


def has_partitions(run: dg.DagsterRun) -> bool:
    """Whether a run is of some partitions."""
    return any(tag.startswith(("dagster/partition", "dagster/asset_partition_range")) for tag in run.tags)


def check_evaluation(found: CheckResult, keys: Keys = DEFAULT) -> dg.AssetCheckEvaluation:
    """A result as an event of a run that is not the check's own."""
    return dg.AssetCheckEvaluation(
        asset_key=keys.by_layer[found.layer],
        check_name=found.name,
        passed=found.passed,
        metadata=dict(found.counts) | {COVERS: found.covers} | ({FAILED_GAMES: list(found.games)} if found.games else {}),
        severity=dg.AssetCheckSeverity.ERROR if found.wrong_rows else dg.AssetCheckSeverity.WARN,
        description=as_text(found.summary),
    )


def check_result(found: dg.AssetCheckEvaluation) -> dg.AssetCheckResult:
    """An evaluation as the result of the check's own run."""
    return dg.AssetCheckResult(
        passed=found.passed,
        asset_key=found.asset_key,
        check_name=found.check_name,
        metadata=found.metadata,
        severity=found.severity,
        description=found.description,
    )
