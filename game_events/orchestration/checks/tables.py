"""Checks on the whole as Dagster asset checks.

Run by themselves from the UI and by the job `checks`; the cheap ones by every run that changed something.
"""

from collections.abc import Sequence

import dagster as dg

from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import DEFAULT, FAILED_GAMES, Keys
from game_events.pipeline.checks.registry import CHECKS, TableCheck
from game_events.pipeline.reporting.steps import CheckResult


def build_checks(graph: Graph) -> list[dg.AssetChecksDefinition]:
    """One asset check for each of `pipeline.whole_checks.CHECKS`."""
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

    @dg.asset_check(
        asset=keys.by_layer[check.layer],
        name=check.name,
        description=check.description,
        blocking=check.blocking,
        required_resource_keys={graph.resource},
    )
    def evaluate(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with graph.lakehouse(context).recorded(context, f"check {check.name}", lineage=False) as (pipeline, report):
            found = check.run(pipeline)
            report.add_checks(found)
        return check_result(check_evaluation(found, keys))

    return evaluate


def check_evaluation(found: CheckResult, keys: Keys = DEFAULT) -> dg.AssetCheckEvaluation:
    """A result as an event of a run that is not the check's own."""
    return dg.AssetCheckEvaluation(
        asset_key=keys.by_layer[found.layer],
        check_name=found.name,
        passed=found.passed,
        metadata=dict(found.counts) | ({FAILED_GAMES: list(found.games)} if found.games else {}),
        severity=dg.AssetCheckSeverity.ERROR if found.wrong_rows else dg.AssetCheckSeverity.WARN,
        description=found.summary,
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
