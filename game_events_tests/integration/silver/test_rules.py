"""What each action does to rows of silver and gold, through real Kafka, bronze, silver and gold."""

from __future__ import annotations

import pytest

from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import BRONZE
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.reconciliation import count, gold, rows
from game_events_tests.support.worlds.own_module import extension
from game_events_tests.support.worlds.quality import (
    Event,
    assert_sound,
    in_quarantine,
    in_silver,
    rejected,
    rule,
    send_events,
)
from game_events_tests.support.worlds.waves import versions

#: Of every action, in both layers, for all games and for one.
RULES = [
    rule("has_note", "note IS NOT NULL"),
    rule("known_amount", "amount < 100", "drop"),
    rule("positive", "amount > 0", "quarantine"),
    rule("small_note", "length(note) < 5", "quarantine", games=["chess"]),
    rule("enough", "session_count > 2", layer="gold"),
]
EVENTS = [
    Event("uno", 1, "a"),
    Event("uno", -1, "a"),  # positive
    Event("uno", None, "a"),  # NULL: positive and known_amount, and quarantine goes first
    Event("uno", 200, "long note"),  # known_amount
    Event("uno", 2),  # has_note
    Event("chess", 1, "long note"),  # small_note
    Event("chess", -5, "long note"),  # positive and small_note
    Event("lost", -1),  # nothing is left of this game
]


def said(report):
    """(layer, game, rule) -> rows and violations."""
    return {key: (found.rows, found.violated) for key, found in report.rules.items()}


def test_every_action_does_what_it_says_and_is_counted_by_game_and_rule(make_settings, make_pipeline):
    settings = make_settings(rules=RULES)
    send_events(settings, EVENTS)
    pipeline = make_pipeline(settings)
    report = refresh(pipeline)
    assert report.success, report.errors
    assert in_silver(settings) == {"chess": [], "lost": [], "uno": [0, 4]}
    assert in_quarantine(settings) == [(1, "positive"), (2, "positive"), (5, "small_note"), (6, "positive"), (7, "positive")]
    assert said(report) == {
        ("silver", "uno", "has_note"): (5, 1),
        ("silver", "uno", "known_amount"): (5, 2),
        ("silver", "uno", "positive"): (5, 2),
        ("silver", "chess", "has_note"): (2, 0),
        ("silver", "chess", "known_amount"): (2, 0),
        ("silver", "chess", "positive"): (2, 1),
        ("silver", "chess", "small_note"): (2, 2),
        ("silver", "lost", "has_note"): (1, 1),
        ("silver", "lost", "known_amount"): (1, 0),
        ("silver", "lost", "positive"): (1, 1),
        ("gold", "uno", "enough"): (1, 1),
    }
    entries = {t.game: (t.rows, t.dropped, t.quarantined) for t in report.of("silver")}
    assert entries == {"uno": (2, 1, 2), "chess": (0, 0, 2), "lost": (0, 0, 1)}
    assert dict(report.rejected) == {"positive": 4, "small_note": 1}
    assert gold(settings, "uno")["ann"][0] == 2
    assert_sound(pipeline)

    # A rejected row is whole: it could be sent again from what quarantine holds.
    columns = "_raw_value, _kafka_headers, _kafka_topic_id, _kafka_timestamp, _schema_id, _batch"
    held = rows(settings, "quarantine_events", f"SELECT {columns} FROM t ORDER BY _kafka_offset")
    assert held == rows(
        settings, BRONZE, f"SELECT {columns} FROM t WHERE _kafka_offset IN (1, 2, 5, 6, 7) ORDER BY _kafka_offset"
    )
    ((game, detail, run_id),) = in_quarantine(settings, "game, detail, run_id", "_kafka_offset = 6")
    assert (game, run_id) == ("chess", pipeline.run_id)
    assert detail == "game chess: not true: amount > 0; violated rules: positive, small_note"

    # Nothing new: nothing is counted again, and no table gets a commit.
    before = versions(settings)
    again = refresh(make_pipeline(settings))
    assert (again.tables, again.rules) == ([], {})
    assert versions(settings) == before

    send_events(settings, [Event("lost", 5, "x"), Event("uno", 300, "x")])
    report = refresh(make_pipeline(settings))
    assert in_silver(settings) == {"chess": [], "lost": [8], "uno": [0, 4]}
    assert said(report)[("silver", "uno", "known_amount")] == (1, 1)
    assert_sound(make_pipeline(settings))


def test_what_cannot_be_computed_is_a_violation_and_no_failure(make_settings, make_pipeline):
    settings = make_settings(
        rules=[
            rule("cast", "CAST(note AS INT) > 0", "drop"),
            rule("decoded", "url_decode(note) <> 'x'"),
            rule("decoded_too", "length(url_decode(note)) > 0"),
            rule("division", "10 / amount > 0"),
            rule("raised", "IF(amount = 1, raise_error('no'), true)"),
        ]
    )
    send_events(settings, [Event("uno", 1, "7"), Event("uno", 0, "8"), Event("uno", 2, "%zz"), Event("uno", 3, None)])
    pipeline = make_pipeline(settings)
    ansi = pipeline.spark.conf.get("spark.sql.ansi.enabled")
    report = refresh(pipeline)
    assert report.success, report.errors
    assert {name: found for (_, _, name), found in said(report).items()} == {
        "cast": (4, 2),
        "decoded": (4, 2),
        "decoded_too": (4, 2),
        "division": (4, 1),
        "raised": (4, 1),
    }
    assert in_silver(settings) == {"uno": [0, 1]}
    assert_sound(pipeline)
    assert pipeline.spark.conf.get("spark.sql.ansi.enabled") == ansi


@pytest.mark.scenario
def test_a_rule_that_fails_stops_its_game_alone_until_the_rule_or_the_rows_change(make_settings, make_pipeline):
    rules = [rule("sane", "amount < 1000", "fail"), rule("positive", "amount > 0", "quarantine")]
    settings = make_settings(rules=rules)
    send_events(settings, [Event("uno", 1), Event("uno", 5000), Event("uno", -1), Event("chess", 1), Event("chess", -1)])
    report = refresh(make_pipeline(settings))
    (error,) = report.errors
    assert error.table == "silver_uno_events"
    assert f"rule sane (amount < 1000) is violated by 1 of 3 rows, for example {settings.kafka_topic}[0]@1" in error.error
    assert in_silver(settings) == {"chess": [3]}
    assert in_quarantine(settings) == [(4, "positive")]
    assert said(report)[("silver", "uno", "sane")] == (3, 1)
    assert_sound(make_pipeline(settings))

    # It is tried again, and the others go on.
    send_events(settings, [Event("uno", 2), Event("chess", 2)])
    assert [t.table for t in refresh(make_pipeline(settings)).errors] == ["silver_uno_events"]
    assert in_silver(settings) == {"chess": [3, 6]}

    changed = make_settings(rules=[rule("sane", "amount < 1000", "drop"), rules[1]])
    report = refresh(make_pipeline(changed))
    assert report.success, report.errors
    assert in_silver(settings) == {"chess": [3, 6], "uno": [0, 5]}
    assert rejected(settings) == [2, 4]
    assert_sound(make_pipeline(changed))


@pytest.mark.scenario
def test_a_rule_of_gold_that_fails_keeps_the_old_aggregate_and_lets_the_other_games_go_on(make_settings, make_pipeline):
    settings = make_settings(rules=[rule("few", "session_count < 3", "fail", layer="gold", games=["uno"])])
    send_events(settings, [Event("uno"), Event("chess"), Event("chess"), Event("chess")])
    assert refresh(make_pipeline(settings)).success
    send_events(settings, [Event("uno"), Event("uno"), Event("chess")])
    report = refresh(make_pipeline(settings))
    (error,) = report.errors
    assert (error.table, "rule few" in error.error, "ann" in error.error) == ("gold_uno_player_agg", True, False)
    assert (gold(settings, "uno")["ann"][0], gold(settings, "chess")["ann"][0]) == (1, 4)
    without = make_settings()
    assert refresh(make_pipeline(without)).success
    assert_sound(make_pipeline(without))


def test_a_rule_that_cannot_be_evaluated_is_named_while_bronze_goes_on_and_silver_stays(make_settings, make_pipeline):
    settings = make_settings(rules=[rule("typo", "amuont > 0")])
    send_events(settings, [Event("uno", 1)])
    with pytest.raises(
        ConfigurationError, match=r"^change the rule .*silver\.typo: 'amuont > 0' cannot be evaluated.*columns .*amount"
    ):
        refresh(make_pipeline(settings))
    assert count(settings, BRONZE) == 1
    assert in_silver(settings) == {}
    mended = make_settings(rules=[rule("typo", "amount > 0")])
    refresh(make_pipeline(mended))
    assert in_silver(mended) == {"uno": [0]}


@pytest.mark.scenario
def test_when_nothing_is_left_of_any_game_its_tables_are_there_and_empty(make_settings, make_pipeline):
    settings = make_settings(rules=[rule("none", "false", "drop")])
    send_events(settings, [Event("uno", 1), Event("chess", 1)])
    pipeline = make_pipeline(settings)
    for _ in range(2):
        assert refresh(pipeline).success
        assert in_silver(settings) == {"chess": [], "uno": []}
        assert count(settings, "gold_unified_player_agg") == 0
        assert_sound(pipeline)
        send_events(settings, [Event("uno", 2)])


def test_rules_of_a_module_judge_rows_before_its_transformations_make_others_of_them(make_settings, make_pipeline, tmp_path):
    declared = """
    from game_events.rules import Rule
    RULES = [Rule(name="positive", sql="amount > 0", action="quarantine"), Rule(name="noted", sql="note IS NOT NULL")]

    @silver_transformation(games=["uno"], rows="any")
    def twice(rows):
        return rows.where("amount <> 3").withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2))))
    """
    settings = make_settings(extensions=(extension(tmp_path, declared),), rules=[rule("small", "amount < 100", "drop")])
    send_events(
        settings,
        [
            Event("uno", 1),
            Event("uno", -1, "a"),
            Event("uno", 3, "a"),
            Event("uno", 500, "a"),
            Event("chess", -2),
            Event("chess", 2),
        ],
    )
    pipeline = make_pipeline(settings)
    report = refresh(pipeline)
    assert report.success, report.errors
    assert in_silver(settings) == {"chess": [5], "uno": [0, 0]}
    assert in_quarantine(settings) == [(1, "positive"), (4, "positive")]
    assert said(report) == {
        ("silver", "uno", "small"): (4, 1),
        ("silver", "uno", "positive"): (4, 1),
        ("silver", "uno", "noted"): (4, 1),
        ("silver", "chess", "small"): (2, 0),
        ("silver", "chess", "positive"): (2, 1),
        ("silver", "chess", "noted"): (2, 2),
    }
    assert reconcile(pipeline).passed


@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_a_rule_that_runs_out_of_stack_fails_the_games_of_these_rows_alone(layer, make_settings, make_pipeline):
    """Java's regular expressions call themselves for each repetition of a group; no `try` of Spark's stops that error."""
    deep = rule("pattern", "gamer_id = 'bob' OR repeat(gamer_id, 100000) RLIKE '^(a|n)*$'", layer=layer)
    settings = make_settings(rules=[deep])
    send_events(settings, [Event("uno"), Event("chess", gamer="bob")])
    report = refresh(make_pipeline(settings))
    (error,) = report.errors
    assert (error.layer, error.game) == (layer, "uno")
    assert "rule pattern" in error.error
    assert "java.lang.StackOverflowError" in error.error
    assert gold(settings, "chess")["bob"][0] == 1
    assert refresh(make_pipeline(make_settings())).success
    assert gold(settings, "uno")["ann"][0] == 1
