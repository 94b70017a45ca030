"""The unified table has copies of gold's files, a partition for each game: no Spark, and what did not change is not touched."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.lakehouse import failpoints
from game_events.lakehouse.commits import commit as commits
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import BATCH_INFO, read_arrow
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.format_version import PARTITIONED, format_of
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.query import TablesSql
from game_events.lakehouse.tables import UNIFIED, Table, paths
from game_events.pipeline.erasure.old_files import remove_old_files
from game_events.pipeline.erasure.scan import EraseTask, without
from game_events.pipeline.erasure.subjects import DataSubjects
from game_events.pipeline.gold import unified as refreshing
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.gold.unified_plan import game_of, gold_app
from game_events.pipeline.maintenance.run import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.steps import Erasure
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.worlds.waves import PowerCut

TIME = pa.timestamp("us", tz="UTC")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
SUBJECTS = DataSubjects("gamer_id", "game_name", frozenset({"a"}))
Sessions = dict[str, int]


class World:
    """Gold tables that are written by hand, and the unified table that is refreshed from them."""

    def __init__(self, folder: Path) -> None:
        self.pipeline = without_spark(folder)
        self.table = self.pipeline.lakehouse.table(UNIFIED)
        bronze = put(self.pipeline.bronze, pa.table({"game_name": ["uno"], "_batch": [1]}), advance={Txn.BATCH: 1})
        self.key = BronzeIdentity.of(bronze).key
        self.batch = 0

    def gold(self, game: str, sessions: Sessions, **columns: pa.Array) -> None:
        """Replace a game's gold; the unified table has not seen it yet."""
        table = self.pipeline.lakehouse.gold(game)
        count = len(sessions)
        times = pa.array([NOON] * count, TIME)
        rows = {"gamer_id": pa.array(sessions, pa.string()), "session_count": pa.array(sessions.values(), pa.int64())}
        put(table, pa.table(rows | {"min_timestamp": times, "max_timestamp": times} | columns), replace=table.exists())
        self.news(game)

    def news(self, *games: str) -> None:
        """Progress notes a batch with rows of these games."""
        self.batch += 1
        at = dict.fromkeys(games, self.batch)
        self.pipeline.progress.update(self.key, lambda now: now.done(Layer.SILVER, self.batch, at).done(Layer.GOLD, self.batch))

    def refresh(self, *, full: bool = False) -> RunReport:
        """One refresh of the unified table."""
        report = RunReport()
        refresh_unified(self.pipeline, report, full=full)
        return report

    def handle(self) -> DeltaTable:
        """The newest version."""
        handle = self.table.open()
        assert handle is not None
        return handle

    def shown(self) -> dict[str, Sessions]:
        """Game -> its rows, as polars reads the table."""
        found: dict[str, Sessions] = {}
        for row in pl.scan_delta(self.table.uri).collect().to_dicts():
            gamers = found.setdefault(row["game_name"], {})
            assert row["gamer_id"] not in gamers, "a row is there twice"
            gamers[row["gamer_id"]] = row["session_count"]
        return found

    def files(self) -> dict[str, list[Path]]:
        """Game -> its files in the newest version."""
        found: dict[str, list[Path]] = {}
        for path in paths(self.handle()):
            found.setdefault(game_of(path), []).append(Path(self.table.uri, path))
        return found

    def on_disk(self) -> set[Path]:
        """All data files in the table's folder."""
        return set(Path(self.table.uri).rglob("*.parquet"))

    def old_form(self, rows: dict[str, Sessions]) -> None:
        """The table as earlier versions of this project wrote it: one file, with the games in a column."""
        flat = [(game, gamer, n) for game, gamers in rows.items() for gamer, n in gamers.items()]
        games, gamers, counts = (list(values) for values in zip(*flat, strict=True))
        times = pa.array([NOON] * len(flat), TIME)
        columns = {
            "game_name": games,
            "gamer_id": gamers,
            "session_count": counts,
            "min_timestamp": times,
            "max_timestamp": times,
        }
        golds = [self.pipeline.lakehouse.gold(game).open() for game in rows]
        versions = {gold_app(gold): gold.version() for gold in golds if gold is not None}
        put(self.table, pa.table(columns), advance={**versions, Txn.COMMITS: 1}, info={BATCH_INFO: "1"})
        self.pipeline.progress.update(self.key, lambda now: now.done(Layer.UNIFIED, self.batch))


def put(table, rows, **options):
    """A commit of rows; returns the table after it."""
    handle = table.open()
    table_id = str(handle.metadata().id) if handle is not None else None
    options = {"expected": {}, "advance": {}, "info": {BATCH_INFO: "1"}, **options}
    commit(Commit(table, rows.schema, staged(table, rows), table_id=table_id, **options))
    return table.open()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.gold("rummy", {"a": 1, "b": 2})
    made.gold("0123", {"a": 3})
    return made


def at_point(monkeypatch, name, action):
    """Once, when a refresh comes there."""
    done = []

    def come(reached, *_):
        if reached == name and not done:
            done.append(1)
            action()

    monkeypatch.setattr(failpoints, "handler", come)


# --- what is copied


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
    world.news("rummy")
    assert world.refresh().tables == []
    put(world.pipeline.lakehouse.gold("rummy"), pa.table({"gamer_id": pa.array([], pa.string())}))
    world.news("rummy")
    report = world.refresh()
    assert [(t.version, t.rows) for t in report.of("unified")] == [(version + 1, 0)]
    assert world.files() == before


def test_a_part_of_a_games_files_that_is_the_same_in_gold_is_kept(world):
    world.refresh()
    (kept,) = world.files()["rummy"]
    gold = world.pipeline.lakehouse.gold("rummy")
    put(gold, read_arrow(gold, gold.open()).slice(0, 1).set_column(0, "gamer_id", pa.array(["new"])))
    world.news("rummy")
    world.refresh()
    assert kept in world.files()["rummy"]
    assert world.shown()["rummy"] == {"a": 1, "b": 2, "new": 1}


def test_a_copy_on_a_local_disk_is_a_link_and_on_one_without_links_a_file_of_its_own(world, monkeypatch):
    world.refresh()
    (linked,) = world.files()["0123"]
    (source,) = Path(world.pipeline.lakehouse.gold("0123").uri).glob("*.parquet")
    assert linked.samefile(source)
    world.gold("uno", {"c": 1})

    def refused(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    world.refresh()
    (copied,) = world.files()["uno"]
    (source,) = Path(world.pipeline.lakehouse.gold("uno").uri).glob("*.parquet")
    assert not copied.samefile(source)
    assert world.shown()["uno"] == {"c": 1}


def test_a_copy_has_golds_statistics_and_no_value_of_the_data_subject(world):
    world.refresh()
    gold = pa.table(world.pipeline.lakehouse.gold("rummy").open().get_add_actions(flatten=True)).to_pylist()[0]
    actions = pa.table(world.handle().get_add_actions(flatten=True)).to_pylist()
    (copy,) = (action for action in actions if action["partition.game_name"] == "rummy")
    assert {k: v for k, v in copy.items() if k.startswith(("min.", "max.", "null_", "num", "size"))} == {
        k: v for k, v in gold.items() if k.startswith(("min.", "max.", "null_", "num", "size"))
    }
    assert (copy["max.session_count"], copy["max.gamer_id"]) == (2, None)


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


def test_sql_and_arrow_read_the_games_column_as_text(world):
    world.refresh()
    with TablesSql(world.pipeline.lakehouse) as sql:
        names, rows = sql.query(f"SELECT * FROM {UNIFIED} ORDER BY 1, 2")
        assert names[:2] == ["game_name", "gamer_id"]
        assert [row[:3] for row in rows] == [("0123", "a", 3), ("rummy", "a", 1), ("rummy", "b", 2)]
    arrow = read_arrow(world.table, world.handle())
    assert arrow.schema.names == [f.name for f in world.handle().schema().fields]
    assert sorted(arrow.column("game_name").to_pylist()) == ["0123", "rummy", "rummy"]


# --- what may go wrong


def test_gold_that_was_emptied_or_lost_takes_its_rows_with_it(world):
    world.refresh()
    world.gold("rummy", {})
    world.refresh()
    assert world.shown() == {"0123": {"a": 3}}
    world.gold("uno", {"c": 1})
    Path(world.pipeline.lakehouse.gold("0123").uri).rename(world.table.uri + "_away")
    world.refresh(full=True)
    assert world.shown() == {"uno": {"c": 1}}


def test_gold_that_cannot_be_read_keeps_its_old_rows_and_the_others_are_brought_up(world, monkeypatch):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    world.gold("0123", {"a": 7})
    look, rummy = Table.open, world.pipeline.lakehouse.gold("rummy").key

    def refused(table):
        if table.key == rummy:
            raise refreshing.DataError("its log cannot be read")
        return look(table)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "open", refused)
        assert [(t.game, t.error) for t in world.refresh().tables if t.error] == [
            ("rummy", "its gold cannot be read: its log cannot be read")
        ]
    assert world.shown() == {"rummy": {"a": 1, "b": 2}, "0123": {"a": 7}}
    assert world.refresh().errors == []
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 7}}


def test_a_file_that_gold_has_lost_fails_its_game_alone(world):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    world.gold("0123", {"a": 7})
    gold = world.pipeline.lakehouse.gold("rummy")
    (lost,) = paths(gold.open())
    Path(gold.uri, lost).unlink()
    report = world.refresh()
    assert [t.game for t in report.tables if t.error] == ["rummy"]
    assert lost in str(report.errors[0].error)
    assert world.shown() == {"rummy": {"a": 1, "b": 2}, "0123": {"a": 7}}
    world.gold("rummy", {"a": 8, "b": 8})
    assert world.refresh().errors == []
    assert world.shown()["rummy"] == {"a": 8, "b": 8}


def test_gold_that_is_replaced_and_vacuumed_before_it_is_copied_is_planned_again(world, monkeypatch):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    gold, plan, plans = world.pipeline.lakehouse.gold("rummy"), refreshing.plan_unified, []

    def planned(*arguments, **options):
        plans.append(plan(*arguments, **options))
        if len(plans) == 1:
            (old,) = paths(gold.open())
            world.gold("rummy", {"a": 8, "b": 8})
            Path(gold.uri, old).unlink()
        return plans[-1]

    monkeypatch.setattr(refreshing, "plan_unified", planned)
    assert world.refresh().errors == []
    assert len(plans) == 2
    assert world.shown()["rummy"] == {"a": 8, "b": 8}


def test_a_crash_between_copies_and_commit_leaves_files_that_maintenance_removes_and_the_next_run_does_it_again(
    world, monkeypatch
):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})

    def cut():
        raise PowerCut

    at_point(monkeypatch, "unified_staged", cut)
    with pytest.raises(PowerCut):
        world.refresh()
    (left,) = world.on_disk() - {file for files in world.files().values() for file in files}
    assert world.shown()["rummy"] == {"a": 1, "b": 2}
    maintain(world.pipeline, RunReport(), [world.table.name])
    assert left.exists(), "a run may be about to commit it"
    world.refresh()
    assert world.shown()["rummy"] == {"a": 7, "b": 7}
    os.utime(left, (time.time() - 30 * 86_400,) * 2)
    old = world.files()
    maintain(world.pipeline, RunReport(), [world.table.name])
    assert not left.exists()
    assert world.files() == old
    assert world.shown()["rummy"] == {"a": 7, "b": 7}


def test_a_copy_of_an_old_file_is_as_young_as_the_copy_until_it_is_committed(world, monkeypatch):
    gold = world.pipeline.lakehouse.gold("rummy")
    (source,) = Path(gold.uri).glob("*.parquet")
    os.utime(source, (time.time() - 30 * 86_400,) * 2)
    at_point(monkeypatch, "unified_staged", lambda: maintain(world.pipeline, RunReport()))
    put(world.table, pa.table({"n": [1]}), info={BATCH_INFO: "1"})
    assert world.refresh().errors == []
    assert world.shown()["rummy"] == {"a": 1, "b": 2}


def test_of_two_runs_at_once_one_commits_and_the_other_compares_again(world, monkeypatch):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    version = world.handle().version()
    at_point(monkeypatch, "unified_staged", world.refresh)
    assert world.refresh().errors == []
    assert world.handle().version() == version + 1
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 3}}
    live = {file for files in world.files().values() for file in files}
    assert len([file for file in world.on_disk() - live if "rummy" in str(file)]) == 1, "only the old file is left"


def test_a_run_that_was_overtaken_by_one_with_newer_gold_of_another_game_keeps_it(world, monkeypatch):
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})

    def rival():
        world.gold("0123", {"a": 8})
        world.refresh()

    at_point(monkeypatch, "unified_staged", rival)
    world.refresh()
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 8}}


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


def test_a_table_that_is_restored_between_plan_and_commit_does_not_keep_the_old_rows_of_other_games(world, monkeypatch):
    world.refresh()
    world.gold("0123", {"a": 8})
    world.refresh()
    world.gold("rummy", {"a": 7, "b": 7})
    at_point(monkeypatch, "unified_staged", lambda: world.handle().restore(0))
    assert world.refresh().errors == []
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 8}}


def test_a_full_refresh_copies_every_file_again(world):
    world.refresh()
    before = {file for files in world.files().values() for file in files}
    for file in before:
        file.unlink()
    world.refresh(full=True)
    assert world.shown() == {"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}}


# --- tables of earlier versions of this project


def test_a_table_of_the_old_form_is_replaced_in_one_version_when_there_is_news(world):
    world.old_form({"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}})
    assert (world.refresh().tables, world.handle().version()) == ([], 0), "nothing is new, nothing is rebuilt"
    world.gold("rummy", {"a": 7, "b": 7})
    assert world.refresh().errors == []
    assert world.handle().metadata().partition_columns == ["game_name"]
    new = {"rummy": {"a": 7, "b": 7}, "0123": {"a": 3}}
    assert world.shown() == new
    # Each version is the old table or the new one.
    for version in range(world.handle().version() + 1):
        rows = pl.scan_delta(world.table.uri, version=version).select("game_name", "gamer_id", "session_count").collect().rows()
        expected = {"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}} if version == 0 else new
        assert sorted(rows) == sorted((g, gamer, n) for g, gamers in expected.items() for gamer, n in gamers.items())
    held = {world.handle().transaction_version(gold_app(world.pipeline.lakehouse.gold(g).open())) for g in new}
    assert held == {world.pipeline.lakehouse.gold(g).open().version() for g in new}
    assert world.refresh().tables == []


def test_a_run_that_partitions_the_table_after_another_one_did_brings_nothing_old_back(world, monkeypatch):
    world.old_form({"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}})
    world.gold("rummy", {"a": 7, "b": 7})
    write = refreshing.commit

    def overtaken(plan):
        # After the comparison of versions, right before the new table is written.
        monkeypatch.setattr(refreshing, "commit", write)
        monkeypatch.setattr(commits, "create_table_with_add_actions", late)
        return write(plan)

    create = commits.create_table_with_add_actions

    def late(*arguments, **options):
        monkeypatch.setattr(commits, "create_table_with_add_actions", create)
        world.gold("0123", {"a": 8})
        world.refresh()
        assert world.shown()["0123"] == {"a": 8}
        create(*arguments, **options)
        assert world.shown()["0123"] == {"a": 3}, "the commit was compared with an older version"

    monkeypatch.setattr(refreshing, "commit", overtaken)
    assert world.refresh().errors == []
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 8}}


def test_a_crash_after_the_table_was_partitioned_leaves_a_table_that_the_next_run_compares(world, monkeypatch):
    world.old_form({"rummy": {"a": 1, "b": 2}, "0123": {"a": 3}})
    world.gold("rummy", {"a": 7, "b": 7})

    def crashed(plan):
        write(plan)
        raise PowerCut

    write = refreshing.commit
    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(refreshing, "commit", crashed)
        world.refresh()
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 3}}
    state = world.pipeline.progress.read(world.key)
    # A run that saw newer gold was overwritten, and has noted that it was done.
    world.gold("0123", {"a": 8})
    world.pipeline.progress.update(world.key, lambda now: replace(now, floors=now.floors | {Layer.UNIFIED: world.batch}))
    assert world.refresh().errors == []
    assert world.shown() == {"rummy": {"a": 7, "b": 7}, "0123": {"a": 8}}
    assert state.floor(Layer.UNIFIED) < world.batch


# --- erased data subjects


def test_vacuum_of_an_erasure_removes_the_old_copies_with_golds_old_files(world):
    world.refresh()
    copies = {file for files in world.files().values() for file in files}
    golds = {file for game in ("rummy", "0123") for file in Path(world.pipeline.lakehouse.gold(game).uri).glob("*.parquet")}
    world.gold("rummy", {"b": 2})
    world.gold("0123", {})
    world.refresh()
    assert all(file.exists() for file in copies | golds)
    result = Erasure()
    remove_old_files(world.pipeline, result, SUBJECTS)
    assert not any(file.exists() for file in copies | golds)
    assert result.removed_files[world.table.name] == 2
    assert world.shown() == {"rummy": {"b": 2}}


def test_rows_that_are_erased_from_the_table_itself_leave_their_game_in_its_partition(world):
    world.refresh()
    table, files = world.table, paths(world.handle())
    task = EraseTask({UNIFIED: table}, SUBJECTS, rewrite=True)
    commit(without(table, world.handle(), [task.scan(UNIFIED, path) for path in files], "run"))
    assert world.shown() == {"rummy": {"b": 2}}
    # They are no copies of gold's files: the next refresh of the game replaces them.
    world.gold("rummy", {"b": 3})
    world.refresh()
    assert world.shown() == {"rummy": {"b": 3}}
