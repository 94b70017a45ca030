"""Which games of the unified table are compared, and which files are copied: what did not change is not touched. No Spark."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa

from game_events.errors import DataError
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.table_properties import PARTITIONED, format_of
from game_events.lakehouse.tables import gold_name
from game_events_tests.support.faults import unreadable
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.unified import OWN_COMMIT


def test_only_the_games_that_changed_are_copied_in_one_commit_and_readers_see_the_games_column_first(world):
    assert world.refresh().errors == []
    before = world.files()
    assert world.shown() == {"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}}
    assert [f.name for f in world.handle().schema().fields][:2] == ["game_name", "gamer_id"]
    world.gold("rummy", {"a": 2, "b": 2})
    world.gold("uno", {"c": 1})
    version = world.handle().version()
    report = world.refresh()
    assert [(t.version, t.rows, t.table_rows) for t in report.of("unified")] == [(version + 1, 3, 4)]
    assert world.shown() == {"rummy": {"a": 2, "b": 2}, "0123": {"a": 3}, "uno": {"c": 1}}
    assert world.files()["0123"] == before["0123"]
    assert not set(before["rummy"]) & set(world.files()["rummy"])
    assert format_of(world.handle()) == PARTITIONED, "earlier versions of this project refuse it"


def test_a_refresh_without_news_commits_nothing_and_one_in_which_files_stayed_notes_the_version_alone(world):
    world.refresh()
    before, version = world.files(), world.handle().version()
    world.note_batch("rummy")
    assert world.refresh().tables == []
    put(world.pipeline.lakehouse.gold("rummy"), {"gamer_id": pa.array([], pa.string())}, info=OWN_COMMIT)
    world.note_batch("rummy")
    report = world.refresh()
    assert [(t.version, t.rows) for t in report.of("unified")] == [(version + 1, 0)]
    assert world.files() == before


def test_a_part_of_a_games_files_that_is_the_same_in_gold_is_kept(world):
    world.refresh()
    (kept,) = world.files()["rummy"]
    gold = world.pipeline.lakehouse.gold("rummy")
    put(gold, read_arrow(gold, gold.open()).slice(0, 1).set_column(0, "gamer_id", pa.array(["new"])), info=OWN_COMMIT)
    world.note_batch("rummy")
    world.refresh()
    assert kept in world.files()["rummy"]
    assert world.shown()["rummy"] == {"a": 1, "b": 2, "new": 1}


def test_structs_have_the_members_of_all_games_and_a_game_with_another_type_fails_alone(world):
    one = pa.array([{"x": 1}], pa.struct([("x", pa.int64())]))
    world.gold("chess", {"c": 1}, best=one)
    world.gold("go", {"c": 1}, best=pa.array([{"x": 2, "y": "b"}], pa.struct([("x", pa.int64()), ("y", pa.string())])))
    world.refresh()
    world.gold("uno", {"c": 1}, best=pa.array(["text"]))
    world.gold("rummy", {"a": 9, "b": 9})
    report = world.refresh()
    assert [t.game for t in report.tables if t.error] == ["uno"]
    assert "gold_uno_player_agg has other types than the table of all games: best is string" in str(report.errors[0].error)
    assert world.shown() == {"rummy": {"a": 9, "b": 9}, "0123": {"a": 3}, "chess": {"c": 1}, "go": {"c": 1}}
    found = pl.scan_delta(world.table.uri).select("game_name", "best").collect()
    assert {r["game_name"]: r["best"] for r in found.to_dicts() if r["best"] is not None} == {
        "chess": {"x": 1, "y": None},
        "go": {"x": 2, "y": "b"},
    }


def test_gold_that_was_emptied_or_lost_takes_its_rows_with_it(world):
    world.refresh()
    world.gold("rummy", {})
    world.refresh()
    assert world.shown() == {"0123": {"a": 3}}
    world.gold("uno", {"c": 1})
    Path(world.pipeline.lakehouse.gold("0123").uri).rename(world.table.uri + "_away")
    world.refresh(full=True)
    assert world.shown() == {"uno": {"c": 1}}


def test_gold_that_cannot_be_read_keeps_its_old_rows_and_the_others_are_brought_up(world):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    world.gold("0123", {"a": 7})
    with unreadable(gold_name("rummy"), DataError("its log cannot be read")):
        assert [(t.game, t.error) for t in world.refresh().tables if t.error] == [
            ("rummy", "its gold cannot be read: its log cannot be read")
        ]
    assert world.shown() == {"rummy": {"a": 1, "b": 2}, "0123": {"a": 7}}
    assert world.refresh().errors == []
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 7}}


def test_a_restored_table_is_compared_with_all_games_and_files_that_are_right_are_kept(world):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    world.refresh()
    kept = world.files()["0123"]
    world.handle().restore(0)
    assert world.refresh().errors == []
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 3}}
    assert world.files()["0123"] == kept
    assert world.refresh().tables == []


def test_a_full_refresh_copies_every_file_again(world):
    world.refresh()
    before = {file for files in world.files().values() for file in files}
    for file in before:
        file.unlink()
    world.refresh(full=True)
    assert world.shown() == {"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}}
