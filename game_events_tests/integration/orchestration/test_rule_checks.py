"""Rules as Dagster shows them: a check for each, with counts, from every run that looked at rows and by itself."""

import json

import dagster as dg
import pytest

from game_events.definitions import build_defs
from game_events.orchestration.assets import build_tables
from game_events.orchestration.checks import build_rule_checks
from game_events.orchestration.keys import REPORT
from game_events.orchestration.resources import Graph, LakehouseResource, SparkResource
from game_events_tests.support.fixtures.dagster import materializations
from game_events_tests.support.keys import GOLD_KEY, SILVER_KEY
from game_events_tests.support.worlds.quality import Event, in_silver, rejected, rule, send_events

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

RULES = [
    rule("noted", "note IS NOT NULL", description="events say why"),
    rule("small", "amount < 100", "drop"),
    rule("positive", "amount > 0", "quarantine"),
    rule("sane", "amount < 1000", "fail"),
    rule("two", "session_count >= 2", layer="gold"),
]


def evaluations(result):
    return {
        (e.asset_key, e.check_name): (e.passed, e.severity.value, e.metadata["rows"].value, e.metadata["violated"].value)
        for e in result.get_asset_check_evaluations()
        if e.check_name.startswith("rule_")
    }


@pytest.mark.scenario
def test_each_rule_is_a_check_with_its_severity_and_every_run_reports_counts(runs, environment, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_RULES", json.dumps(RULES))
    send_events(
        environment,
        [Event("uno", 1, "a"), Event("uno", 2), Event("uno", -1, "a"), Event("uno", 500, "a"), Event("chess", 1, "a")],
    )
    first = runs.refresh()
    assert first.success
    assert evaluations(first) == {
        (SILVER_KEY, "rule_noted"): (False, "WARN", 5, 1),
        (SILVER_KEY, "rule_small"): (False, "WARN", 5, 1),
        (SILVER_KEY, "rule_positive"): (False, "WARN", 5, 1),
        (SILVER_KEY, "rule_sane"): (True, "ERROR", 5, 0),
        (GOLD_KEY, "rule_two"): (False, "WARN", 2, 1),
    }
    metadata = {(m.asset_key, m.partition): m.metadata for m in materializations(first)}
    uno = metadata[(SILVER_KEY, "uno")]
    assert uno["violations"].value == {"noted": 1, "small": 1, "positive": 1}
    assert (uno["rows_dropped"].value, uno["rows_quarantined"].value) == (1, 1)
    assert metadata[(SILVER_KEY, "chess")]["violations"].value == {}
    assert metadata[(GOLD_KEY, "chess")]["violations"].value == {"two": 1}

    # By itself a check says of the same rows what the run said, also of those that rules keep out of the tables.
    assert evaluations(check_alone()) == evaluations(first)
    assert runs.refresh().get_asset_check_evaluations() == []

    # A game by hand that fails: the check says so, the run fails with the rule, the others are kept.
    send_events(environment, [Event("uno", 5000), Event("chess", 2)])
    assert runs.materialize(dg.AssetKey("bronze_events"), dg.AssetKey("quarantine_events")).success
    failed = runs.materialize(SILVER_KEY, games=(runs.games[0], runs.games[-1]))
    assert not failed.success
    assert evaluations(failed)[(SILVER_KEY, "rule_sane")] == (False, "ERROR", 2, 1)
    assert in_silver(environment) == {"chess": [4, 6], "uno": [0, 1]}

    # The rule is changed: the job `replay` judges the rejected rows anew, the next checks pass.
    monkeypatch.setenv("GAME_EVENTS_RULES", json.dumps([{**RULES[2], "sql": "amount > -5"}]))
    replay = runs.job("replay", replay_quarantined_rows={"reasons": ["positive"]})
    assert replay.success
    assert (in_silver(environment), rejected(environment)) == ({"chess": [4, 6], "uno": [0, 1, 2, 3, 5]}, [])
    output = [e for e in replay.all_events if e.event_type == dg.DagsterEventType.STEP_OUTPUT]
    assert output[0].step_output_data.metadata[REPORT].data["readmitted"] == 1
    assert evaluations(check_alone()) == {(SILVER_KEY, "rule_positive"): (True, "WARN", 7, 0)}


def test_a_rule_reads_the_columns_of_the_message_in_a_run_and_by_itself_whatever_transformations_make_of_them(
    runs, environment, monkeypatch, tmp_path
):
    extension = tmp_path / "own.py"
    extension.write_text(
        "from pyspark.sql import functions as F\n"
        "from game_events.extending import silver_transformation\n\n\n"
        "@silver_transformation\n"
        "def cheaper(rows):\n"
        '    return rows.withColumn("amount", F.col("amount") - 1000)\n'
    )
    monkeypatch.setenv("GAME_EVENTS_EXTENSIONS", str(extension))
    monkeypatch.setenv("GAME_EVENTS_RULES", json.dumps([rule("positive", "amount > 0"), rule("two", "amount <> 2", "drop")]))
    send_events(environment, [Event("uno", 1), Event("uno", 2), Event("uno", -1)])
    run = runs.refresh()
    assert run.success
    said = {(SILVER_KEY, "rule_positive"): (False, "WARN", 3, 1), (SILVER_KEY, "rule_two"): (False, "WARN", 3, 1)}
    assert evaluations(run) == said
    assert evaluations(check_alone()) == said


def check_alone():
    """All rule checks by themselves, as the UI's button runs them."""
    checks = build_rule_checks(Graph.of())
    return dg.materialize(
        [*build_tables(Graph.of()), *checks],
        selection=dg.AssetSelection.checks(*checks),
        resources={"lakehouse": LakehouseResource(spark=SparkResource())},
    )


def test_the_definitions_have_a_check_for_each_rule_and_only_fail_blocks(make_settings):
    defs = build_defs(make_settings(rules=RULES))
    checks = [d for d in defs.asset_checks or () if isinstance(d, dg.AssetChecksDefinition)]
    specs = {spec.name: spec for d in checks for spec in d.check_specs if spec.name.startswith("rule_")}
    assert {name: spec.blocking for name, spec in specs.items()} == {
        "rule_noted": False,
        "rule_small": False,
        "rule_positive": False,
        "rule_sane": True,
        "rule_two": False,
    }
    assert specs["rule_noted"].description == "events say why"
    assert specs["rule_small"].metadata["sql"] == "amount < 100"
