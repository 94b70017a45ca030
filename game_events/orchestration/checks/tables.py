"""Checks on the whole as Dagster asset checks.

Run by themselves from the UI and by the job `checks`; the cheap ones by every run that changed something. Dagster makes an
asset's checks in each run that materializes it by hand, too: these are the cheap ones there, and others that fail.
"""

from collections.abc import Iterator, Sequence

import dagster as dg
from dagster import DagsterInstance

from game_events.orchestration.events.texts import as_text
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import COVERS, DEFAULT, FAILED_GAMES, Keys
from game_events.orchestration.runs.alerts import history
from game_events.pipeline.checks.registry import CHECKS, TableCheck
from game_events.pipeline.reporting.steps import CheckResult


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
    spec = dg.AssetCheckSpec(check.name, asset=asset, description=check.description, blocking=check.blocking)

    # A subset: its result may be left out.
    @dg.multi_asset_check(
        name=f"{asset.path[-1]}_{check.name}", specs=[spec], can_subset=True, required_resource_keys={graph.resource}
    )
    def evaluate(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        by_hand = is_materialized(context.run, asset)
        if by_hand and (check.in_run is None or (check.all_games and has_partitions(context.run))):
            # One that fails is made: else Dagster would take it for one that does not, and this run may have mended it.
            if not fails(context.instance, spec.key):
                return
            by_hand = False
        with graph.lakehouse(context).recorded(context, f"check {check.name}", lineage=False) as (pipeline, report):
            # Which games' tables the run has written is not known here.
            cheap = check.in_run if by_hand and not check.all_games else None
            found = cheap(pipeline, report) if cheap is not None else check.run(pipeline)
            report.add_checks(found)
        yield check_result(check_evaluation(found, keys))

    return evaluate


def fails(instance: DagsterInstance, key: dg.AssetCheckKey) -> bool:
    """Whether the newest result of a check is a failure."""
    return any(not found.result.passed for found in history(instance, key)[-1:])


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
