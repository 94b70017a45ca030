"""The search for deleted and restored tables costs what has changed, and finds both at once."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from game_events.errors import ReadOnlyError
from game_events.lakehouse.tables import Layer
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs import pending
from game_events.pipeline.runs.pending import find_lost_tables
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.unified import OWN_COMMIT, UnifiedWorld

GAMES = [f"game_{number}" for number in range(6)]


@pytest.fixture
def world(tmp_path):
    found = UnifiedWorld(tmp_path)
    lake = found.pipeline.lakehouse
    for game in GAMES:
        put(lake.silver(game), {"game_name": [game]}, info=OWN_COMMIT)
        put(lake.silver(game), {"game_name": [game]}, info=OWN_COMMIT)
        found.gold(game, {"a": 1})
    return found


@pytest.fixture
def read(monkeypatch):
    """Tables with logs that were read."""
    seen, usual = set(), pending.restored_lately
    monkeypatch.setattr(pending, "restored_lately", lambda table: seen.add(table.key) or usual(table))
    return seen


def search(world, few=3):
    """One search; the warnings."""
    report = RunReport()
    find_lost_tables(world.pipeline, report, few=few)
    return report.notices


def long_ago(world, *tables):
    """These tables have been as they are for a day; without any, all."""
    root = Path(world.pipeline.lakehouse.root)
    for name in [table.name for table in tables] or [f"{folder.name}" for folder in root.iterdir()]:
        if (root / name / "_delta_log").is_dir():
            os.utime(root / name / "_delta_log", (time.time() - 86_400,) * 2)


def test_logs_that_have_not_changed_since_the_last_search_are_not_read(world, read):
    assert search(world) == []
    assert len(read) == 2 * len(GAMES)
    read.clear()
    long_ago(world)
    assert search(world) == []
    assert read == set()
    rummy = world.pipeline.lakehouse.silver(GAMES[0])
    put(rummy, {"game_name": [GAMES[0]]}, info=OWN_COMMIT)
    assert search(world) == []
    assert read == {rummy.key}


def test_a_table_restored_or_deleted_after_the_search_is_found_by_the_next(world):
    search(world)
    long_ago(world)
    lake = world.pipeline.lakehouse
    lake.silver(GAMES[1]).open().restore(0)
    shutil.rmtree(lake.gold(GAMES[2]).uri)
    (notice,) = search(world)
    assert f"{lake.silver(GAMES[1]).name} (restored)" in notice
    assert f"{lake.gold(GAMES[2]).name} (deleted)" in notice
    state = world.pipeline.progress.read(world.key)
    assert state.failed_in(Layer.SILVER) == {GAMES[1]}
    assert state.failed_in(Layer.GOLD) == {GAMES[1], GAMES[2]}


def test_a_table_restored_while_its_game_is_not_allowed_is_found_once_it_is_allowed_again(world, read):
    search(world)
    everything = world.pipeline
    world.pipeline = replace(everything, settings=everything.settings.model_copy(update={"games": GAMES[1:]}))
    world.pipeline.lakehouse.silver(GAMES[0]).open().restore(0)
    long_ago(world)
    assert search(world) == []
    world.pipeline = everything
    read.clear()
    (notice,) = search(world)
    assert f"{everything.lakehouse.silver(GAMES[0]).name} (restored)" in notice


def test_a_search_is_dated_by_the_clock_of_the_tables_file_system(world, read):
    """This machine's clock may be ahead of it."""
    progress = Path(world.pipeline.progress.declaration.table.uri, "_delta_log")
    world.pipeline.progress.update(world.key, lambda now: now)
    os.utime(progress, (time.time() - 3_600,) * 2)
    search(world)
    long_ago(world)
    read.clear()
    silver = world.pipeline.lakehouse.silver(GAMES[0])
    os.utime(Path(silver.uri, "_delta_log"), (time.time() - 3_600,) * 2)
    search(world)
    assert read == {silver.key}


def test_a_log_that_could_not_be_read_is_looked_at_again(world, read):
    gold = world.pipeline.lakehouse.gold(GAMES[3])
    newest = Path(gold.uri, "_delta_log", f"{gold.open().version():020}.json")
    entry = newest.read_text()
    newest.write_text(f"not JSON{entry}")
    assert search(world) == []
    newest.write_text(entry)
    assert world.pipeline.progress.read(world.key).searched.at_s == 0
    read.clear()
    long_ago(world)
    search(world)
    assert len(read) == 2 * len(GAMES)


def test_a_search_among_few_tables_notes_nothing(world):
    version = world.pipeline.progress.declaration.table.open().version()
    search(world, few=100)
    assert world.pipeline.progress.declaration.table.open().version() == version


def test_a_look_that_may_change_nothing_notes_nothing_and_finds_the_same(world):
    world.pipeline = replace(world.pipeline, read_only=True)
    assert search(world) == []
    assert world.pipeline.progress.read(world.key).searched.at_s == 0
    world.pipeline.lakehouse.silver(GAMES[1]).open().restore(0)
    with pytest.raises(ReadOnlyError):
        search(world)


def test_the_time_of_the_search_stays_when_a_layer_moves(world):
    search(world)
    searched = world.pipeline.progress.read(world.key).searched
    assert time.time() - 60 < searched.at_s <= time.time()
    world.note_batch(GAMES[0])
    assert world.pipeline.progress.read(world.key).searched == searched
