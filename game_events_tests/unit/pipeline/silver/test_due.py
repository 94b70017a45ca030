"""Rows that settings left out come with the first run that lets them in, new records or not; and nothing is searched before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from game_events.errors import GameEventsError
from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.system_tables import Admission, LeftOut, Progress
from game_events.lakehouse.tables import Layer
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.pending import backlog, read_lag
from game_events.pipeline.runs.preflight import Hint, waiting
from game_events.pipeline.silver import admission as module
from game_events.pipeline.silver.admission import due
from game_events.pipeline.silver.refresh import refresh_silver
from game_events_tests.support.model.world import World
from game_events_tests.support.worlds.waves import PowerCut

RUMMY, SPADES, UNO = "rummy", "spades", "uno"
#: Limits by which one game fills the room, and no number of rows helps.
ROOM_FOR_ONE = {"max_games": 1, "max_games_ever": 1}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The files of bronze that were searched, of each search."""
    found: list[list[str]] = []
    read_parts = module.read_parts

    def noted(table: Any, schema: Any, files: list[str]) -> Any:
        found.append(list(files))
        return read_parts(table, schema, files)

    monkeypatch.setattr(module, "read_parts", noted)
    return found


def come(world: World, *games: str) -> None:
    world.records_come([(game, "ann", 1, 1) for game in games])


def rows(world: World, game: str) -> tuple[int, int]:
    """Of silver, and of gold's one player."""
    gold = world.rows(world.table(game, of_gold=True))
    return len(world.rows(world.table(game))), sum(row["session_count"] for row in gold)


def state(world: World) -> Progress:
    pipeline = world.pipeline()
    bronze = pipeline.bronze.open()
    assert bronze is not None
    return pipeline.progress.read(BronzeIdentity.of(bronze).key)


@pytest.mark.parametrize("before", [{"games": (RUMMY,)}, ROOM_FOR_ONE])
@pytest.mark.parametrize("known", [False, True])
def test_a_game_that_was_left_out_has_all_its_rows_after_the_first_run_that_lets_it_in(
    world: World, before: dict[str, Any], known: bool
) -> None:
    come(world, RUMMY, RUMMY, RUMMY, UNO, UNO)
    if known and "games" in before:
        world.work()
    come(world, UNO)
    world.work(**before)
    come(world, RUMMY)
    world.work(**before)
    left_out = 1 if known and "games" in before else 3
    assert rows(world, UNO) == (3 - left_out, 3 - left_out)
    assert due(world.pipeline(**before)).rows == {}
    now = due(world.pipeline())
    assert (now.new, now.readmitted) == ({}, {UNO: left_out})
    report = world.work()
    assert rows(world, UNO) == (3, 3)
    assert (report.success, report.rows("silver")) == (True, left_out)
    assert any(f"{left_out} rows that the settings left out until now" in notice for notice in report.notices)
    assert (due(world.pipeline()).rows, state(world).left_out) == ({}, LeftOut())
    assert world.work().rows("silver") == 0
    come(world, SPADES)
    world.work()
    world.assert_settled()


def test_rows_that_are_left_out_are_not_searched_while_no_setting_lets_in_more(world: World, read: list[list[str]]) -> None:
    come(world, RUMMY, SPADES, UNO)
    world.work(games=(RUMMY, SPADES))
    read.clear()
    for games in ((RUMMY, SPADES), (SPADES,), (RUMMY, SPADES)):
        world.work(games=games)
    come(world, UNO, RUMMY)
    world.work(games=(RUMMY, SPADES))
    assert read == []
    world.work(games=(UNO,))
    assert read


def test_of_two_lists_in_turn_each_run_searches_only_what_the_other_has_left_out(world: World, read: list[list[str]]) -> None:
    for _ in range(3):
        for games in ((RUMMY,), (UNO,)):
            come(world, RUMMY, UNO)
            read.clear()
            world.work(games=games)
            assert [len(files) for files in read] in ([], [1])
    read.clear()
    world.work(games=(RUMMY,))
    world.work(games=(UNO,))
    world.work(games=(RUMMY,))
    assert len(read) <= 1, "without news no search follows another"
    come(world, SPADES)
    world.work()
    world.assert_settled()


def test_names_of_neither_of_two_lists_do_not_make_them_search_in_turn_for_ever(world: World, read: list[list[str]]) -> None:
    come(world, RUMMY, SPADES, UNO)
    world.work(games=(RUMMY,))
    world.work(games=(UNO,))
    read.clear()
    for games in ((RUMMY,), (UNO,)) * 2:
        assert read_by(world, games) is True
        world.work(games=games)
    assert read == []
    assert read_by(world, ()) is False


def read_by(world: World, games: tuple[str, ...]) -> bool:
    return state(world).left_out.covers(Admission.of(world.pipeline(games=games).settings))


def test_a_run_that_ends_right_after_it_has_listed_the_games_loses_none(world: World) -> None:
    come(world, RUMMY, UNO)
    world.work(games=(RUMMY,))

    def cut() -> None:
        raise PowerCut

    world.disturbed("progress_moved", cut)
    assert rows(world, UNO) == (0, 0)
    assert state(world).failed_in(Layer.SILVER) == {UNO}
    world.work(games=(RUMMY,))
    assert due(world.pipeline(games=(RUMMY,))).held == {UNO}
    world.work()
    assert rows(world, UNO) == (1, 1)


def test_a_run_that_began_before_the_games_were_listed_and_ends_after_it_forgets_none(world: World) -> None:
    """And the run that has listed them is gone before it has added their rows."""
    come(world, RUMMY, UNO)
    world.work(games=(RUMMY,))
    come(world, RUMMY)

    def cut() -> None:
        raise PowerCut

    world.disturbed("silver_committed", lambda: world.disturbed("progress_moved", cut), games=(RUMMY,))
    assert state(world).failed_in(Layer.SILVER) == {UNO}
    world.work()
    assert rows(world, UNO) == (1, 1)


def test_a_rival_with_a_shorter_list_between_the_search_and_the_commits_loses_nothing(world: World) -> None:
    come(world, RUMMY, UNO)
    world.work(games=(RUMMY,))

    def rival() -> None:
        come(world, SPADES, UNO)
        world.work(games=(RUMMY,))

    for step in ("silver_replanned", "silver_staged", "silver_committed", "progress_moved", "silver_replanned"):
        world.disturbed(step, rival)
    world.work()
    world.assert_settled()


def test_gold_follows_also_if_a_run_over_silver_of_that_game_alone_has_added_the_rows(world: World) -> None:
    """They are of batches that gold has left behind."""
    come(world, RUMMY, UNO)
    world.work(games=(RUMMY,))
    assert refresh_silver(world.pipeline(), RunReport(), frozenset({UNO})) == {}
    assert rows(world, UNO) == (1, 0)
    assert due(world.pipeline()).rows == {}
    world.work()
    assert rows(world, UNO) == (1, 1)
    world.assert_unified_shows_gold()


@pytest.mark.parametrize("step", ["gold_staged", "gold_committed", "unified_staged"])
def test_gold_follows_also_if_it_passes_the_batch_while_a_run_over_silver_adds_the_rows(world: World, step: str) -> None:
    come(world, RUMMY, UNO)
    world.work(games=(RUMMY,))
    come(world, RUMMY)
    world.disturbed(step, lambda: refresh_silver(world.pipeline(), RunReport()), games=(RUMMY,))
    assert rows(world, UNO) == (1, 0)
    world.work()
    assert rows(world, UNO) == (1, 1)
    world.assert_unified_shows_gold()


def test_a_lost_file_of_bronze_keeps_no_other_game_waiting_and_is_reported_until_it_is_back(world: World) -> None:
    come(world, RUMMY, UNO)
    world.work(games=(RUMMY,))
    (file,) = Path(world.pipeline().bronze.uri).glob("*.parquet")
    content = file.read_bytes()
    file.unlink()
    pipeline = world.pipeline()
    with pytest.raises(GameEventsError):
        due(pipeline)
    report = world.work()
    assert [error.error for error in report.errors if "cannot be looked for" in str(error.error)]
    file.write_bytes(content)
    assert world.work().success
    assert rows(world, UNO) == (1, 1)


def test_doctor_a_dry_run_and_the_sensor_say_what_waits_and_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    come(world, RUMMY, UNO, UNO)
    world.work(games=(RUMMY,))
    narrow, wide = world.pipeline(games=(RUMMY,)), world.pipeline()
    said = waiting(narrow)
    assert not isinstance(said, Hint)
    assert "0 rows of bronze_events wait for silver; GAME_EVENTS_GAMES leaves out names in batches 1 to 1" in said
    said = waiting(wide)
    assert isinstance(said, Hint)
    assert "2 rows of bronze_events wait for silver, 2 of them left out by the settings until now (uno)" in said
    found = backlog(wide)
    assert (found.games["silver"], found.rows, found.readmitted) == ([UNO], 2, {UNO: 2})
    assert "2 rows of bronze wait for silver, 2 of them left out by the settings until now (uno)" in str(found)
    assert (backlog(narrow).rows, backlog(narrow).games["silver"]) == (0, [])
    monkeypatch.setattr("game_events.pipeline.runs.pending.make_source", lambda *_: wide.source)
    monkeypatch.setattr("game_events.pipeline.runs.pending.changes", lambda *_: type("None", (), {"anything": False}))
    assert (read_lag(wide.settings, 1).let_in, read_lag(narrow.settings, 1).let_in) == (True, False)
