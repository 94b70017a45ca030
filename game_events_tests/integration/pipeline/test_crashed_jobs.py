"""A game whose rows kill the worker: the run says so, and all other games' tables are what they would be without it."""

from __future__ import annotations

import pytest

from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.tables import OWN_GOLD, Layer
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.reconciliation import assert_books_balance, count, rows
from game_events_tests.support.worlds.own_module import extension
from game_events_tests.support.worlds.waves import send, versions

GAMES = ("chess", "go", "rummy", "spades", "uno")
DEADLY = """
import faulthandler

def deadly(game):
    if game == "go":
        faulthandler._sigsegv()
    return game
"""
IN_SILVER = """
@silver_transformation
def seen(rows):
    return rows.withColumn("seen", F.udf(deadly)("game_name"))
"""
IN_GOLD = """
@gold_aggregate("seen", mode="recompute", keys=["gamer_id"])
def seen(silver):
    return silver.groupBy("_game", "gamer_id").agg(F.count(F.udf(deadly)("game_name")).alias("events"))
"""


@pytest.fixture
def run(make_settings, make_pipeline, tmp_path):
    """One run with these declarations, as a new process would do it."""

    def start(*parts):
        pipeline = make_pipeline(make_settings(extensions=(extension(tmp_path, *parts),) if parts else ()))
        return refresh(pipeline), pipeline

    return start


def failed(pipeline, layer):
    return pipeline.progress.read(BronzeIdentity.of(pipeline.bronze.open()).key).failed_in(layer)


@pytest.mark.scenario
@pytest.mark.every_spark
def test_silver_of_the_other_games_is_made_and_the_game_comes_when_the_cause_is_gone(settings, run):
    sent = send(settings, games=GAMES, poison=0.0)
    report, pipeline = run(DEADLY, IN_SILVER)
    (error,) = report.errors
    assert (error.layer, error.game) == ("silver", "go")
    assert error.error.startswith(
        "a Python worker of Spark crashed over the rows of go in batches 1 to 1 of bronze_events: Segmentation fault in mine_"
    )
    assert "\n" not in error.error
    assert failed(pipeline, Layer.SILVER) == {"go"}
    others = [game for game in GAMES if game != "go"]
    assert [count(settings, f"silver_{game}_events") for game in others] == [6] * 4
    assert all(rows(settings, f"gold_{game}_player_agg") for game in others)

    # What comes later is not kept waiting by it, and the job of all games does not meet it again.
    before = versions(settings)
    sent = sent.merge(send(settings, games=GAMES, poison=0.0))
    report, pipeline = run(DEADLY, IN_SILVER)
    assert [(e.layer, e.game) for e in report.errors] == [("silver", "go")]
    after = versions(settings)
    assert [after[f"silver_{game}_events"] - before[f"silver_{game}_events"] for game in others] == [1] * 4

    report, pipeline = run()
    assert report.success, report.errors
    assert_books_balance(settings, sent)
    assert reconcile(pipeline).passed
    assert failed(pipeline, Layer.SILVER) == set()


@pytest.mark.scenario
def test_gold_of_the_other_games_is_made_and_the_game_comes_when_the_cause_is_gone(settings, run):
    send(settings, games=GAMES, poison=0.0)
    report, pipeline = run(DEADLY, IN_GOLD)
    (error,) = report.errors
    assert (error.layer, error.game) == (f"{OWN_GOLD}seen", "go")
    assert error.error.startswith(
        "a Python worker of Spark crashed over the silver rows of go for gold_seen, batches up to 1 of"
    )
    assert failed(pipeline, f"{OWN_GOLD}seen") == {"go"}
    assert failed(pipeline, Layer.GOLD) == set()
    assert {game: bool(rows(settings, f"gold_{game}_seen")) for game in GAMES} == {game: game != "go" for game in GAMES}

    report, pipeline = run("def deadly(game):\n    return game\n", IN_GOLD)
    assert report.success, report.errors
    assert rows(settings, "gold_go_seen", "SELECT sum(events) FROM t") == [(6,)]
