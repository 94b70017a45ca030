"""Dagster asset checks: of tables, of rules, of the whole (`status`), at the end of a run, and their last known results.

A run may be asked for the check of a rule that is gone by then: it reads the settings again, and the UI shows definitions that
were loaded earlier. So a run's definitions have every check that those have.

Dagster shows a check as "not evaluated" from the next materialization of its asset on, also if it had failed and blocks. An
asset here is the tables of all games, and a refresh of one game materializes it: so each run that does logs again what is known
of the checks that it does not make itself, each with its own date. Checks are not partitioned by game: Dagster 1.13 shows of a
check its newest result alone, of whatever partition, and an event for each game and check would be as many as there are games.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
from dagster import DagsterInstance
from deltalake.exceptions import DeltaError

from game_events.config.masking import without_secrets
from game_events.config.settings import Settings
from game_events.errors import GameEventsError
from game_events.orchestration.events import GAMES_SHOWN, PlannedLayers, as_text, report_events, some, sources_left_out
from game_events.orchestration.keys import (
    COVERS,
    DEFAULT,
    FAILED_GAMES,
    OWNERS,
    REPORT,
    AssetCheckExecutionRecordStatus,
    Keys,
    OpEvent,
    UnresolvedAssetJobDefinition,
    as_when_loaded,
)
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import OwnRuns
from game_events.pipeline.checks.audits import VOLUME, audit_rules
from game_events.pipeline.checks.table_checks import FRESH, TableCheck, all_checks
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import WHOLE, CheckResult, RuleReport, RunResult
from game_events.pipeline.runs.pending import read_lag
from game_events.rules import Rule

#: Metadata of a result that was logged again: when it was made, and by which run.
AS_OF, BY_RUN = "as_of", "made_by_run"
#: Checks that the sensor `data_alarms` makes.
HOURLY = (FRESH, VOLUME)
#: Newest evaluations that are read for the last one: a record keeps the place of its run's plan.
NEWEST = 5
#: Newest evaluations of one check that are read: more than there are between two ticks.
HISTORY = 50
EVALUATED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a check, by a run or (no id) a sensor; `at` in seconds since 1970."""

    key: dg.AssetCheckKey
    run_id: str
    at: float
    result: dg.AssetCheckEvaluation

    @property
    def games(self) -> list[str]:
        """The games that it failed for, if the check is per game."""
        value = self.result.metadata.get(FAILED_GAMES)
        games = value.data if isinstance(value, dg.JsonMetadataValue) else None
        return [str(game) for game in games] if isinstance(games, list) else []


def history(instance: DagsterInstance, key: dg.AssetCheckKey, most: int = HISTORY) -> list[Evaluation]:
    """The newest evaluations of a check, oldest first; the last one of each run."""
    records = instance.event_log_storage.get_asset_check_execution_history(key, most, status=EVALUATED)
    # Not a record's own time, which is that of the run's plan.
    made = [Evaluation(key, r.run_id, r.event.timestamp, r.evaluation) for r in records if r.event and r.evaluation]
    return sorted(made, key=lambda evaluation: evaluation.at)


def newest_evaluation(instance: DagsterInstance, key: dg.AssetCheckKey) -> Evaluation | None:
    """The newest evaluation of a check."""
    made = history(instance, key, NEWEST)
    return made[-1] if made else None


def build_checks(graph: Graph) -> list[dg.AssetChecksDefinition]:
    """One asset check for each of the checks of core and plug-ins."""
    return [_asset_check(check, graph) for check in all_checks()]


def build_check_job(graph: Graph, checks: Sequence[dg.AssetChecksDefinition]) -> UnresolvedAssetJobDefinition:
    """The job `checks`, which makes every check in full."""
    return dg.define_asset_job(
        graph.keys.named("checks"),
        selection=dg.AssetSelection.checks(*checks),
        description="Every check on the whole, in full: it reads all of bronze's coordinates, and gold of a sample of games.",
        executor_def=dg.in_process_executor,
        tags=graph.tags,
    )


def _asset_check(check: TableCheck, graph: Graph) -> dg.AssetChecksDefinition:
    keys = graph.keys
    asset = keys.by_layer[check.layer]
    in_run = "in a cheap form at the end of each run that changes a table, " if check.in_run is not None else ""
    hourly = f"each hour by the sensor `{keys.named('data_alarms')}`, " if check.name in HOURLY else ""
    made = f"Made {in_run}{hourly}once a day by the job `{keys.named('checks')}`, and by hand; other runs show its last result."
    description = f"{check.description} {made}"
    spec = dg.AssetCheckSpec(check.name, asset=asset, description=description, blocking=check.blocking)

    # A subset: its result may be left out.
    @dg.multi_asset_check(
        name=f"{asset.path[-1]}_{check.name}", specs=[spec], can_subset=True, required_resource_keys={graph.resource}
    )
    def evaluate(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        by_hand = is_materialized(context.run, asset)
        of_partitions = any(tag.startswith(("dagster/partition", "dagster/asset_partition_range")) for tag in context.run.tags)
        if by_hand and (check.in_run is None or (check.all_games and of_partitions)):
            # One that fails is made: else Dagster would take it for one that does not, and this run may have mended it.
            if not fails(context.instance, spec.key):
                yield from map(check_result, again(context.instance, context.run.run_id, [spec.key]))
                return
            by_hand = False
        # Which games' tables the run has written is not known here.
        cheap = check.in_run if by_hand and not check.all_games else None
        try:
            with graph.lakehouse(context).recorded(context, f"check {check.name}", observed=False) as (pipeline, report):
                result = cheap(pipeline, report) if cheap is not None else check.run(pipeline)
                report.add_checks(result)
        except dg.Failure as failure:
            # Else the result of before would stay the last known one.
            why = f"could not be made: {failure.description}"
            yield check_result(check_evaluation(CheckResult(check.name, check.layer, False, why), keys))
            raise
        yield check_result(check_evaluation(result, keys))

    return evaluate


def again(instance: DagsterInstance, run_id: str, checks: Iterable[dg.AssetCheckKey]) -> Iterator[dg.AssetCheckEvaluation]:
    """The last result of each check, if it is of another run."""
    for key in checks:
        made = newest_evaluation(instance, key)
        if made is not None and made.run_id != run_id:
            yield _with_date(made)


def _with_date(evaluation: Evaluation) -> dg.AssetCheckEvaluation:
    result = evaluation.result
    metadata = dict(result.metadata)
    said = result.description
    if AS_OF not in metadata:
        metadata[AS_OF] = dg.MetadataValue.timestamp(evaluation.at)
        if evaluation.run_id:
            metadata[BY_RUN] = dg.MetadataValue.dagster_run(evaluation.run_id)
        said = f"as of {datetime.fromtimestamp(evaluation.at, UTC):%Y-%m-%d %H:%M} UTC: {said or 'passed'}"
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
    made = newest_evaluation(instance, key)
    return made is not None and not made.result.passed


def is_materialized(run: dg.DagsterRun, asset: dg.AssetKey) -> bool:
    """Whether a run materializes an asset, by hand."""
    return asset in (run.asset_selection or ())


def check_evaluation(result: CheckResult, keys: Keys = DEFAULT) -> dg.AssetCheckEvaluation:
    """A result as an event of a run that is not the check's own."""
    return dg.AssetCheckEvaluation(
        asset_key=keys.by_layer[result.layer],
        check_name=result.name,
        passed=result.passed,
        metadata=dict(result.counts) | {COVERS: result.covers} | ({FAILED_GAMES: list(result.games)} if result.games else {}),
        severity=dg.AssetCheckSeverity.ERROR if result.wrong_rows else dg.AssetCheckSeverity.WARN,
        description=as_text(result.summary),
    )


def check_result(evaluation: dg.AssetCheckEvaluation) -> dg.AssetCheckResult:
    """An evaluation as the result of the check's own run."""
    return dg.AssetCheckResult(
        passed=evaluation.passed,
        asset_key=evaluation.asset_key,
        check_name=evaluation.check_name,
        metadata=evaluation.metadata,
        severity=evaluation.severity,
        description=evaluation.description,
    )


#: What the checks of rules begin with, apart from those of checks that are no rules.
CHECK = "rule_"
#: Of a rule that is not in the settings any more, until the definitions are loaded again.
REMOVED = "The rule is not in the settings any more: this check goes when the definitions are reloaded."
#: What the evaluation of a run covers.
THIS_RUN = "rows of this run"


def build_rule_checks(graph: Graph) -> list[dg.AssetChecksDefinition]:
    """The checks of the settings' rules, to be run by themselves: any of them, in one Spark job for each layer."""
    keys = graph.keys
    by_key = rule_checks(Pipeline(graph.settings, no_spark))
    removed = _checks_when_loaded(graph, by_key) - by_key.keys()
    if not by_key and not removed:
        return []
    specs = [
        dg.AssetCheckSpec(
            key.name,
            asset=key.asset_key,
            description=as_text(rule.description or f"{rule.sql} ({rule.action})"),
            blocking=rule.action == "fail",
            metadata={"sql": rule.sql, "action": rule.action, "games": ", ".join(rule.games) or "all"}
            | ({"types": ", ".join(rule.types)} if rule.types else {}),
        )
        for key, rule in by_key.items()
    ]
    specs += [dg.AssetCheckSpec(key.name, asset=key.asset_key, description=REMOVED) for key in sorted(removed)]

    @dg.multi_asset_check(name=keys.named("rules"), specs=specs, can_subset=True, required_resource_keys={graph.resource})
    def rules_hold(context: dg.AssetCheckExecutionContext) -> Iterable[dg.AssetCheckResult]:
        asked = set(context.selected_asset_check_keys)
        for key in sorted(asked & removed):
            yield dg.AssetCheckResult(passed=True, asset_key=key.asset_key, check_name=key.name, description=REMOVED)
        asked -= removed
        # A run that materializes the asset has counted the rows that it wrote, and said so; what fails is counted as a whole.
        counted = {k for k in asked if is_materialized(context.run, k.asset_key) and not fails(context.instance, k)}
        yield from map(check_result, again(context.instance, context.run.run_id, sorted(counted)))
        chosen = [by_key[key] for key in sorted(asked - counted)]
        if not chosen:
            return
        report = RunResult(rules=audit_rules(graph.lakehouse(context).pipeline(context.run.run_id), chosen))
        yield from map(check_result, rule_evaluations(report, keys, WHOLE))

    return [rules_hold]


def rule_checks(pipeline: Pipeline) -> dict[dg.AssetCheckKey, Rule]:
    """The checks of a pipeline's rules."""
    assets = Keys.of(pipeline.settings).by_layer
    return {dg.AssetCheckKey(assets[rule.layer], f"{CHECK}{rule.name}"): rule for rule in pipeline.rules}


def _checks_when_loaded(graph: Graph, now: Iterable[dg.AssetCheckKey]) -> set[dg.AssetCheckKey]:
    names = json.dumps([[*key.asset_key.path, key.name] for key in sorted(now)])
    loaded = json.loads(as_when_loaded(f"game_events/{graph.keys.named('rules')}", names))
    return {dg.AssetCheckKey(dg.AssetKey(path), name) for *path, name in loaded}


def rule_evaluations(report: RunResult, keys: Keys = DEFAULT, covers: str = THIS_RUN) -> Iterator[dg.AssetCheckEvaluation]:
    """A check result for each rule in the report, over all games.

    `covers`: which rows were counted. A run counts those that it wrote: "passed" does not mean that earlier rows satisfy the
    rule.
    """
    by_rule: dict[tuple[str, str], list[RuleReport]] = {}
    for entry in report.rules.values():
        by_rule.setdefault((entry.layer, entry.rule), []).append(entry)
    for reports in by_rule.values():
        rule = reports[0]
        rows = sum(r.rows for r in reports)
        violated = sum(r.violated for r in reports)
        worst = sorted((r for r in reports if r.violated), key=lambda r: (-r.violated, r.game))
        yield dg.AssetCheckEvaluation(
            asset_key=keys.by_layer[rule.layer],
            check_name=f"{CHECK}{rule.rule}",
            passed=not violated,
            metadata={
                COVERS: covers,
                "rows": rows,
                "violated": violated,
                "violated_by_game": {r.game: r.violated for r in worst[:GAMES_SHOWN]},
                "games": len(reports),
                "sql": rule.sql,
                "action": rule.action,
            },
            severity=dg.AssetCheckSeverity.ERROR if rule.action == "fail" else dg.AssetCheckSeverity.WARN,
            description=as_text(f"{violated:,} of {rows:,} rows violate: {rule.sql} ({rule.action}); counted: {covers}"),
            blocking=rule.action == "fail",
        )


def last_known(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, pipeline: Pipeline
) -> Iterator[dg.AssetCheckEvaluation]:
    """The last results of checks of the layers that this run has materialized and not checked; to be called at its end."""
    keys = Keys.of(pipeline.settings)
    run_id = context.run.run_id
    checks = [*(dg.AssetCheckKey(keys.by_layer[check.layer], check.name) for check in all_checks()), *rule_checks(pipeline)]
    written = set()
    for record in context.instance.get_asset_records(list({key.asset_key for key in checks})):
        newest = record.asset_entry.last_materialization_record
        if newest is not None and newest.run_id == run_id:
            written.add(record.asset_entry.asset_key)
    yield from again(context.instance, run_id, (key for key in checks if key.asset_key in written))


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
    keys = planned.keys
    pipeline = planned.pipeline
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
        Failure: tables failed, each alone, or sources were left out.
    """
    yield from (check_evaluation(result, Keys.of(pipeline.settings)) for result in report.checks)
    yield from last_known(context, pipeline)
    if not report.success:
        # Not retried here: one game's failure would hold up everybody's next run. The sensor `kafka_lag` tries it again.
        failed = "; ".join(f"{t.table}: {t.error}" for t in report.errors[:10])
        said = [f"{len(report.errors)} tables failed: {failed}"] if report.errors else []
        said += [sources_left_out(report)] if report.left_out else []
        raise dg.Failure("; ".join(said), metadata=metadata, allow_retries=False)
    yield dg.Output(None, metadata=metadata)


#: The check of the asset `status`.
ALL_IS_WELL = "all_is_well"
#: Longest wait for one answer of the broker.
TIMEOUT_S = 5.0
#: Jobs with a failed newest run that is worth a look.
JOBS = ("refresh", "continuous", "replay", "redecode", "maintain")


def read_status(
    settings: Settings, keys: Keys, instance: DagsterInstance, own: OwnRuns, checks: Collection[dg.AssetCheckKey]
) -> dg.AssetCheckEvaluation:
    """Look at source, tables, checks and runs; what cannot be reached is a trouble, and each trouble a part of the result."""
    numbers, troubles = _lag_and_troubles(settings)
    mine = [key for key in checks if key.name != ALL_IS_WELL and key.asset_key in keys.by_layer.values()]
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(mine)
    failed = sorted(k.name for k, record in newest.items() if record.status == AssetCheckExecutionRecordStatus.FAILED)
    if failed:
        troubles.append(f"checks that fail: {some(failed)}")
    troubles += _failed_runs(keys, instance, own)
    text = "\n".join(f"- {as_text(trouble)}" for trouble in troubles) or "Everything is well."
    return dg.AssetCheckEvaluation(
        asset_key=_status_key(keys),
        check_name=ALL_IS_WELL,
        passed=not troubles,
        severity=dg.AssetCheckSeverity.WARN,
        description=as_text("; ".join(troubles) or "everything is well"),
        metadata={"status": dg.MetadataValue.md(text), **numbers, "checks_that_fail": len(failed)},
    )


def _failed_runs(keys: Keys, instance: DagsterInstance, own: OwnRuns) -> Iterator[str]:
    """Jobs whose newest run failed."""
    for job in JOBS:
        for run in own.runs(instance, 1, job_name=keys.named(job)):
            if run.status == dg.DagsterRunStatus.FAILURE:
                yield f"the newest run of {job} failed ({run.run_id[:8]})"


def _lag_and_troubles(settings: Settings) -> tuple[dict[str, int], list[str]]:
    try:
        lag = read_lag(settings, TIMEOUT_S)
    except (GameEventsError, DeltaError, OSError) as error:
        return {}, [without_secrets(str(error), settings)]
    troubles = []
    troubles += [f"source {name} does not answer: {why}" for name, why in lag.failures.items()]
    if lag.failed:
        troubles.append(f"{settings.names.entities} that failed or wait: {some(lag.failed)}")
    if lag.ahead:
        troubles.append(f"{some(lag.ahead)} end before what bronze has read")
    if settings.alert_lag_records and lag.total_lag >= settings.alert_lag_records:
        troubles.append(f"{lag.total_lag:,} records are not read yet")
    return {"lag": lag.total_lag, "failed_or_waiting": len(lag.failed)}, troubles


def build_status(graph: Graph, checks: Iterable[dg.AssetChecksDefinition]) -> tuple[dg.AssetSpec, dg.AssetChecksDefinition]:
    """The asset, which is no table, and its check (of the sensor `status`, or by a click); `checks`: those of the layers."""
    entities = graph.settings.names.entities
    known = {key for check in checks for key in check.check_keys}
    spec = dg.AssetSpec(
        _status_key(graph.keys),
        deps=[graph.keys.unified],
        description=f"Is everything well? Lag, {entities} that failed, checks that fail, failed runs: the check `all_is_well` "
        "has them in one list. The sensor `status` looks each minute.",
        group_name="operations",
        kinds={"dagster"},
        owners=OWNERS,
    )

    @dg.asset_check(
        asset=spec.key,
        name=ALL_IS_WELL,
        description=f"Nothing needs a person: none of the {entities} failed, no check fails, no newest run failed, the source "
        "answers.",
    )
    def all_is_well(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        settings = graph.source.read()
        return check_result(read_status(settings, graph.keys, context.instance, OwnRuns.of(settings), known))

    return spec, all_is_well


def _status_key(keys: Keys) -> dg.AssetKey:
    return dg.AssetKey([keys.named("status")])
