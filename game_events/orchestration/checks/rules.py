"""One asset check for each rule: reported by every run that evaluated rows, or counted again by itself.

The settings are read again by each run, and the definitions that the UI shows only when they are loaded. So a run may be asked
for the check of a rule that is gone by then: it has every check that these definitions have.
"""

import json
from collections.abc import Iterable, Iterator

import dagster as dg

from game_events.orchestration.checks.tables import again, check_result, fails, is_materialized
from game_events.orchestration.dagster_private import as_when_loaded
from game_events.orchestration.events.texts import as_text
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import COVERS, DEFAULT, Keys
from game_events.pipeline.checks.rule_audit import audit_rules
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.reporting.result import RunResult
from game_events.pipeline.reporting.steps import WHOLE
from game_events.pipeline.reporting.tables import RuleReport
from game_events.rules import Rule

#: What the checks of rules begin with, apart from those of checks that are no rules.
CHECK = "rule_"
#: Of a rule that is not in the settings any more, until the definitions are loaded again.
REMOVED = "The rule is not in the settings any more: this check goes when the definitions are reloaded."
#: What the evaluation of a run covers.
THIS_RUN = "rows of this run"
#: Games that a check's metadata names, those with most violations first.
GAMES_SHOWN = 50


def build_rule_checks(graph: Graph) -> list[dg.AssetChecksDefinition]:
    """The checks of the settings' rules, to be run by themselves: any of them, in one Spark job for each layer."""
    keys, by_key = graph.keys, rule_checks(Pipeline(graph.settings, no_spark))
    removed = _checks_when_loaded(graph, by_key) - by_key.keys()
    if not by_key and not removed:
        return []
    specs = [
        dg.AssetCheckSpec(
            key.name,
            asset=key.asset_key,
            description=as_text(rule.description or f"{rule.sql} ({rule.action})"),
            blocking=rule.action == "fail",
            metadata={"sql": rule.sql, "action": rule.action, "games": ", ".join(rule.games) or "all"},
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
    found = json.loads(as_when_loaded(f"game_events/{graph.keys.named('rules')}", names))
    return {dg.AssetCheckKey(dg.AssetKey(path), name) for *path, name in found}


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
