"""Silver transformations on real parts: rows, books, evolution, failures."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from game_events.pipeline.checks.reconcile import GameCounts, reconcile
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh, refresh_downstream
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support.reconciliation import count, gold, rows
from game_events_tests.support.worlds.own_module import extension
from game_events_tests.support.worlds.quality import Event, rule, send_events
from game_events_tests.support.worlds.waves import versions

GAMES = ("rummy", "uno")
HOUR = """
@silver_transformation
def with_hour(rows):
    return rows.withColumn("hour", F.hour("event_timestamp"))
"""
#: A Python function of the file itself: it has to travel to the workers.
TWICE = """
def shout(text):
    return text.upper()

@silver_transformation(games=["uno"], rows="any")
def twice(rows):
    part = F.explode(F.array(F.lit(0), F.lit(1))).alias("part")
    return rows.select("*", F.udf(shout)("gamer_id").alias("loud"), part)
"""


def wave(settings, seed, games=GAMES):
    return produce(settings, Simulation(games=games, seed=seed, records_per_game_and_version=10, gamers_per_game=4))


@pytest.fixture
def run(make_settings, make_pipeline, tmp_path):
    """One run with these declarations, as a new process would do it."""

    def start(*parts, full=False):
        pipeline = make_pipeline(make_settings(extensions=(extension(tmp_path, *parts),) if parts else ()))
        report = RunReport()
        if full:
            refresh_downstream(pipeline, report, full=True)
        else:
            report = refresh(pipeline)
        return report, reconcile(pipeline)

    return start


def column(settings, game, sql):
    return rows(settings, f"silver_{game}_events", f"SELECT {sql} FROM t")


def test_columns_are_added_exploded_rows_are_counted_apart_and_old_rows_wait_for_a_full_refresh(settings, run):
    sent = wave(settings, 0)
    assert run()[0].success
    wave(settings, 1)
    report, books = run(HOUR, TWICE)
    assert report.success
    # 20 old rows without the new columns, 20 new ones, twice for uno.
    assert column(settings, "rummy", "count(*), count(hour), count(part)") == [(40, 20, 0)]
    assert column(settings, "uno", "count(*), count(hour), count(part), count(DISTINCT loud)") == [(60, 40, 40, 4)]
    assert column(settings, "uno", "count(*) FILTER (loud <> upper(gamer_id) OR hour <> hour(event_timestamp))") == [(0,)]
    assert books.passed
    assert books.transformed == {"uno": GameCounts(40, 60)}
    assert books.metadata()["transformed_games"] == "uno: bronze 40, silver 60"
    assert "transformed 40" in books.summary()
    assert sum(sessions for sessions, _, _ in gold(settings, "uno").values()) == 60
    before = versions(settings)
    assert run(HOUR, TWICE)[0].tables == []
    assert versions(settings) == before

    # A game that is one to one is still compared.
    DeltaTable(f"{settings.lakehouse}/silver_rummy_events").delete("_batch = 1")
    assert run(HOUR, TWICE)[1].wrong == {"rummy": GameCounts(40, 20)}
    report, books = run(HOUR, TWICE, full=True)
    assert books.passed
    assert column(settings, "rummy", "count(*), count(hour)") == [(40, 40)]
    assert column(settings, "uno", "count(*), count(part)") == [(80, 80)]
    # Without them again: the columns go with the rows.
    report, books = run(full=True)
    assert books.passed
    assert books.transformed == {}
    names = [f.name for f in DeltaTable(f"{settings.lakehouse}/silver_uno_events").schema().fields]
    assert {"hour", "part", "loud"} & set(names) == set()
    assert count(settings, "silver_uno_events") == 2 * sum(sent.records["uno"].values())


def test_one_that_fails_fails_silver_by_name_commits_nothing_and_the_run_still_reports_bronze(settings, run):
    wave(settings, 0)
    assert run(HOUR)[0].success
    wave(settings, 1)
    before = versions(settings)
    raising = HOUR.replace('F.hour("event_timestamp")', 'F.col("no_such_column")')
    failing = HOUR.replace('F.hour("event_timestamp")', 'F.udf(lambda g: int(g), "int")("gamer_id")')
    for body, says in ((raising, "no_such_column"), (failing, "ValueError: invalid literal for int()")):
        report, _ = run(body)
        (error,) = report.errors
        assert error.layer == "silver"
        assert "silver transformation with_hour" in error.error
        assert says in error.error
        assert "mine_" in error.error
        changed = {name for name, version in versions(settings).items() if version != before[name]}
        assert changed == {"bronze_events"}
    assert report.offsets == {}, "bronze was done by the first of the two"
    # Another type than the table has: each game says so, and a full refresh gives it.
    text = HOUR.replace('F.hour("event_timestamp")', 'F.date_format("event_timestamp", "HH")')
    report, _ = run(text)
    assert {t.game for t in report.errors if t.layer == "silver"} == set(GAMES)
    assert "hour is int in the table and string in the rows" in report.errors[0].error
    report, books = run(text, full=True)
    assert report.success
    assert books.passed
    assert column(settings, "uno", "count(*), min(typeof(hour)), count(hour)") == [(40, "VARCHAR", 40)]
    assert run(text)[0].tables == []


def test_one_that_cannot_take_a_games_rows_fails_that_game_alone_until_it_is_corrected(settings, run):
    games = (*GAMES, "chess")
    sent = wave(settings, 0, games)
    report, books = run(
        HOUR.replace('F.hour("event_timestamp")', """F.udf(lambda name: 1 // (name != "uno"), "int")("game_name")""")
    )
    (error,) = (t for t in report.errors if t.layer == "silver")
    assert error.game == "uno"
    assert "silver transformation with_hour" in error.error
    assert "ZeroDivisionError" in error.error
    for game in ("rummy", "chess"):
        assert count(settings, f"silver_{game}_events") == sum(sent.records[game].values())
    report, books = run(HOUR)
    assert report.success
    assert books.passed
    assert count(settings, "silver_uno_events") == sum(sent.records["uno"].values())


def test_beside_rules_an_expression_fails_as_it_does_without_them(make_settings, make_pipeline, tmp_path):
    four_times = extension(tmp_path, HOUR.replace('F.hour("event_timestamp")', 'F.col("amount") * 4'))
    send_events(make_settings(), [Event("uno", 2**62), Event("chess", 1, "no number")])
    for rules in ([], [rule("noted", "CAST(note AS INT) IS NULL")]):
        settings = make_settings(extensions=(four_times,), rules=rules)
        report = refresh(make_pipeline(settings))
        (error,) = (t for t in report.errors if t.layer == "silver")
        assert error.game == "uno"
        assert "ARITHMETIC_OVERFLOW" in error.error
        assert column(settings, "chess", "hour") == [(4,)]
        send_events(settings, [Event("rummy", 2, "no number"), Event("rummy", 3, "3")])
    assert report.rules["silver", "rummy", "noted"].violated == 1
