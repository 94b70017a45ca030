"""One asset check for each rule: reported by every run that evaluated rows, or counted again by itself."""

from collections.abc import Iterable, Iterator

import dagster as dg

from game_events.orchestration.checks.tables import check_result, fails, is_materialized
from game_events.orchestration.events.texts import as_text
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import COVERS, DEFAULT, Keys
from game_events.pipeline.checks.rule_audit import audit_rules
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.reporting.result import RunResult
from game_events.pipeline.reporting.steps import WHOLE
from game_events.pipeline.reporting.tables import RuleReport

#: What the checks of rules begin with, apart from those of checks that are no rules.
CHECK = "rule_"
#: What the evaluation of a run covers.
THIS_RUN = "rows of this run"
#: Games that a check's metadata names, those with most violations first.
GAMES_SHOWN = 50


def build_rule_checks(graph: Graph) -> list[dg.AssetChecksDefinition]:
    """The checks of the settings' rules, to be run by themselves: any of them, in one Spark job for each layer."""
    keys = graph.keys
    rules = Pipeline(graph.settings, no_spark).rules
    by_name = {(keys.by_layer[rule.layer], f"{CHECK}{rule.name}"): rule for rule in rules}
    if not by_name:
        return []
    specs = [
        dg.AssetCheckSpec(
            name,
            asset=asset,
            description=as_text(rule.description or f"{rule.sql} ({rule.action})"),
            blocking=rule.action == "fail",
            metadata={"sql": rule.sql, "action": rule.action, "games": ", ".join(rule.games) or "all"},
        )
        for (asset, name), rule in by_name.items()
    ]

    @dg.multi_asset_check(name=keys.named("rules"), specs=specs, can_subset=True, required_resource_keys={graph.resource})
    def rules_hold(context: dg.AssetCheckExecutionContext) -> Iterable[dg.AssetCheckResult]:
        # A run that materializes the asset has counted the rows that it wrote, and said so; what fails is counted as a whole.
        asked = sorted(context.selected_asset_check_keys)
        asked = [key for key in asked if not is_materialized(context.run, key.asset_key) or fails(context.instance, key)]
        chosen = [by_name[(key.asset_key, key.name)] for key in asked]
        if not chosen:
            return
        report = RunResult(rules=audit_rules(graph.lakehouse(context).pipeline(context.run.run_id), chosen))
        yield from map(check_result, rule_evaluations(report, keys, WHOLE))

    return [rules_hold]


def rule_evaluations(report: RunResult, keys: Keys = DEFAULT, covers: str = THIS_RUN) -> Iterator[dg.AssetCheckEvaluation]:
    """A check result for each rule in the report, over all games.

    `covers`: which rows were counted. A run counts those that it wrote: "passed" does not mean that earlier rows satisfy the
    rule.
    """
    by_rule: dict[tuple[str, str], list[RuleReport]] = {}
    for entry in report.rules.values():
        by_rule.setdefault((entry.layer, entry.rule), []).append(entry)
    for found in by_rule.values():
        yield _evaluation(found[0], found, keys, covers)


def _evaluation(rule: RuleReport, found: list[RuleReport], keys: Keys, covers: str) -> dg.AssetCheckEvaluation:
    rows, violated = sum(r.rows for r in found), sum(r.violated for r in found)
    worst = sorted((r for r in found if r.violated), key=lambda r: (-r.violated, r.game))
    return dg.AssetCheckEvaluation(
        asset_key=keys.by_layer[rule.layer],
        check_name=f"{CHECK}{rule.rule}",
        passed=not violated,
        metadata={
            COVERS: covers,
            "rows": rows,
            "violated": violated,
            "violated_by_game": {r.game: r.violated for r in worst[:GAMES_SHOWN]},
            "games": len(found),
            "sql": rule.sql,
            "action": rule.action,
        },
        severity=dg.AssetCheckSeverity.ERROR if rule.action == "fail" else dg.AssetCheckSeverity.WARN,
        description=as_text(f"{violated:,} of {rows:,} rows violate: {rule.sql} ({rule.action}); counted: {covers}"),
        blocking=rule.action == "fail",
    )
