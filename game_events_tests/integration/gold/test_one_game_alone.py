"""What is wrong with one game, or left out for one run, is that game's matter, and is not forgotten."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from game_events.errors import TransientError
from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.tables import UNIFIED, Layer, silver_name
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import gold_app, refresh_unified
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.refresh import refresh_silver
from game_events_tests.support.faults import unreadable
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.reconciliation import gold as gold_rows
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.tables import put

TIME = pa.timestamp("us", tz="UTC")


@pytest.fixture
def pipeline(tmp_path):
    """A pipeline over a lakehouse of this test, that may not need Spark."""
    return lambda **settings: without_spark(tmp_path, **settings)


def bronze(pipeline, **columns):
    put(pipeline.bronze, columns, {"batch": columns["_batch"][-1]}, {"batch": str(columns["_batch"][-1]), "rows": "1"})
    return BronzeIdentity.of(pipeline.bronze.open())


def silver(pipeline, identity, game, batch, **columns):
    rows = {"game_name": [game], **columns, "_batch": [batch]}
    put(pipeline.lakehouse.silver(game), rows, {identity.app: batch}, {"bronze_batch": str(batch)})


def test_what_is_owed_to_a_game_is_still_owed_after_a_run_whose_allow_list_leaves_it_out(pipeline):
    only_a, both = pipeline(games=["a"]), pipeline(games=["a", "b"])
    identity = bronze(only_a, game_name=["b", "b"], _batch=[5, 7])
    silver(only_a, identity, "b", 5)
    only_a.progress.update(identity.key, lambda now: now.done(Layer.SILVER, 7, {"a": 7, "b": 5}, {"b": "disk full"}))
    report = RunReport()
    refresh_silver(only_a, report)
    assert report.success
    state = both.progress.read(identity.key)
    assert state.failed[Layer.SILVER, "b"] == "disk full"
    # So the next run that may have it does not take its floor for the game's.
    assert state.failed_in(Layer.SILVER) == {"b"}


def test_a_new_game_that_failed_is_not_forgotten_either(pipeline):
    """It has no table yet, and its rows are below the floor."""
    only_a = pipeline(games=["a"])
    identity = bronze(only_a, game_name=["a", "b"], _batch=[7, 7])
    only_a.progress.update(identity.key, lambda now: now.done(Layer.SILVER, 7, {"a": 7}, {"b": "disk full"}))
    refresh_silver(only_a, RunReport())
    assert only_a.progress.read(identity.key).failed == {(Layer.SILVER, "b"): "disk full"}


def test_a_game_without_the_key_column_fails_alone(pipeline, make_pipeline):
    apart = pipeline()
    identity = bronze(apart, game_name=["x"], _batch=[9])
    silver(apart, identity, "aaa", 1)  # came before any record had a gamer_id
    for game in ("bbb", "ccc"):
        silver(apart, identity, game, 9, gamer_id=["u"], event_timestamp=pa.array([0], TIME))
    games = {"aaa": 1, "bbb": 9, "ccc": 9}
    apart.progress.update(
        identity.key, lambda now: now.done(Layer.SILVER, 9, games).done(Layer.GOLD, 1, failed={"aaa": "silver has no column"})
    )
    report = RunReport()
    refresh_gold(make_pipeline(apart.settings), report)
    assert {t.game: t.error for t in report.tables if t.error} == {
        "aaa": "silver has no column 'gamer_id', 'event_timestamp': set GAME_EVENTS_KEY_COLUMN / GAME_EVENTS_TIME_COLUMN"
    }
    assert [list(gold_rows(apart.settings, game)) for game in ("bbb", "ccc")] == [["u"], ["u"]]
    assert apart.progress.read(identity.key).failed_in(Layer.GOLD) == {"aaa"}


def test_a_game_with_a_row_that_an_expression_cannot_take_fails_alone(pipeline, make_pipeline):
    """Whoever may write one record could else end gold of all games."""
    apart = pipeline(gold_columns={"points": "sum(points * 2)"})
    identity = bronze(apart, game_name=["x"], points=[0], _batch=[9])
    for game, points in {"aaa": 1, "bbb": 2**62, "ccc": 3}.items():
        silver(apart, identity, game, 9, gamer_id=["u"], event_timestamp=pa.array([0], TIME), points=[points])
    apart.progress.update(identity.key, lambda now: now.done(Layer.SILVER, 9, {"aaa": 9, "bbb": 9, "ccc": 9}))
    whole = make_pipeline(apart.settings)
    for _ in range(2):
        report = RunReport()
        refresh_gold(whole, report)
        (error,) = [t for t in report.tables if t.error]
        assert error.game == "bbb"
        assert "overflow" in error.error
        held = [rows(apart.settings, f"gold_{game}_player_agg", "SELECT points FROM t") for game in ("aaa", "ccc")]
        assert held == [[(2,)], [(6,)]]
        assert apart.progress.read(identity.key).failed_in(Layer.GOLD) == {"bbb"}


@pytest.mark.parametrize("damage", ["damaged", "gone"])
@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_a_game_of_which_a_file_is_lost_fails_alone_and_names_it(pipeline, make_pipeline, layer, damage):
    apart, games = pipeline(), ("aaa", "bbb", "ccc")
    identity, whole = bronze(apart, game_name=["x"], _batch=[9]), make_pipeline(apart.settings)
    for batch in (8, 9):
        for game in games:
            silver(apart, identity, game, batch, gamer_id=["u"], event_timestamp=pa.array([batch], TIME))
        if batch == 9:
            table = apart.lakehouse.gold("bbb") if layer == "gold" else apart.lakehouse.silver("bbb")
            for file in Path(table.uri).glob("*.parquet"):
                file.unlink() if damage == "gone" else file.write_bytes(b"PAR1 PAR1 PAR1 PAR1")
        apart.progress.update(identity.key, lambda now, batch=batch: now.done(Layer.SILVER, batch, dict.fromkeys(games, batch)))
        report = RunReport()
        refresh_gold(whole, report)
    ((game, error),) = [(t.game, t.error) for t in report.tables if t.error]
    assert (game, "Traceback" in error, len(error) < 1_000) == ("bbb", False, True)
    assert f"{table.uri}/part-" in error
    assert [gold_rows(apart.settings, game)["u"][0] for game in ("aaa", "ccc")] == [2, 2]
    if layer == "gold":
        refresh_gold(whole, RunReport(), frozenset({"bbb"}), full=True)
        assert gold_rows(apart.settings, "bbb")["u"][0] == 2


@pytest.mark.parametrize("known", [True, False], ids=["a game with new rows", "a game that bronze does not have any more"])
def test_a_store_that_refuses_one_look_at_gold_makes_the_run_fail_and_the_game_is_looked_at_again(known, pipeline):
    apart = pipeline()
    identity = bronze(apart, gamer_id=["a"], _batch=[2])
    rummy, rows = apart.lakehouse.gold("rummy"), {"gamer_id": ["a"], "session_count": [1]}
    put(rummy, rows, {"commits": 1}, {"bronze_batch": "1"})
    put(
        apart.lakehouse.table(UNIFIED),
        rows,
        {gold_app(rummy.open()): 0, "commits": 1},
        {"bronze_batch": "1"},
    )
    put(rummy, rows, {"commits": 2}, {"bronze_batch": "2"})
    games, owed = ({"rummy": 2}, {}) if known else ({}, {"rummy": "its gold cannot be read"})
    apart.progress.update(
        identity.key, lambda now: now.done(Layer.SILVER, 2, games).done(Layer.GOLD, 2).done(Layer.UNIFIED, 1, failed=owed)
    )
    report = RunReport()
    with unreadable(rummy.key, TransientError("the object store answers 503")):
        refresh_unified(apart, report)
    ((game, error),) = [(t.game, t.error) for t in report.tables]
    assert (game, error) == ("rummy", "its gold cannot be read: the object store answers 503")
    assert not report.success
    assert apart.progress.read(identity.key).failed_in(Layer.UNIFIED) == {"rummy"}


def test_a_game_that_fails_in_gold_is_owed_to_unified_and_comes_when_its_gold_does(pipeline, make_pipeline):
    """Unified is refreshed in the same run: what it has then is not the game's last word, and no new row ever asks again."""
    apart = pipeline()
    identity = bronze(apart, game_name=["x"], _batch=[9])
    for game in ("chess", "rummy"):
        silver(apart, identity, game, 9, gamer_id=["u"], event_timestamp=pa.array([0], TIME))
    apart.progress.update(identity.key, lambda now: now.done(Layer.SILVER, 9, {"chess": 9, "rummy": 9}))
    whole = make_pipeline(apart.settings)

    def run():
        report = RunReport()
        refresh_gold(whole, report)
        refresh_unified(whole, report)
        games = [row[0] for row in rows(apart.settings, UNIFIED, "SELECT game_name FROM t ORDER BY ALL")]
        return games, [(t.game, t.error) for t in report.tables if t.error]

    with unreadable(silver_name("rummy"), TransientError("the object store answers 503")):
        for _ in range(2):  # one that fails for long, too
            assert run() == (["chess"], [("rummy", "the object store answers 503")])
    state = apart.progress.read(identity.key)
    assert state.failed_in(Layer.GOLD) == {"rummy"}
    assert state.floor(Layer.UNIFIED) < 9 or state.failed_in(Layer.UNIFIED) == {"rummy"}
    assert run() == (["chess", "rummy"], [])
    assert apart.progress.read(identity.key).floor(Layer.UNIFIED) == 9
    before = apart.lakehouse.table(UNIFIED).open().version()
    assert run() == (["chess", "rummy"], [])
    assert apart.lakehouse.table(UNIFIED).open().version() == before, "nothing is owed any more"
