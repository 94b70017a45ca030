"""Rivals between any two steps: every row in its place, once, and gold as recomputed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from game_events.lakehouse.tables import silver_name
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.pipeline.silver.refresh import refresh_silver
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.reconciliation import assert_books_balance
from game_events_tests.support.worlds.shared_topic import World
from game_events_tests.support.worlds.waves import GAMES, at_point, fail_commits_of, send, start_run, wait_all

#: A further case of what another one stands for.
LONG = partial(pytest.param, marks=pytest.mark.scenario)


@pytest.mark.scenario
def test_three_runs_at_once_with_different_ends_load_every_row_once(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    settings = make_settings(max_records_per_batch=15)
    sent, ends = None, []
    for version in (1, 2, 3):
        wave = send(settings, version=version, records=5)
        sent = wave if sent is None else sent.merge(wave)
        ends.append(make_pipeline(settings).source.snapshot())
    together = threading.Barrier(len(ends))

    def run(end):
        mine, report = make_pipeline(settings), RunReport()
        together.wait()
        load_bronze(mine, report, end)
        refresh_silver(mine, report)
        refresh_gold(mine, report)
        refresh_unified(mine, report)
        return report

    with ThreadPoolExecutor(len(ends)) as pool:
        reports = list(pool.map(run, ends))
    assert [r.errors for r in reports] == [[], [], []]
    batches = [b for r in reports for b in r.batches]
    assert len(set(batches)) == len(batches) > 3, "several slices, each committed by one run"

    # The run with the last end may have finished its silver before a rival's bronze.
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)


@pytest.mark.scenario
def test_three_commands_at_once_load_every_row_once(
    make_settings: MakeSettings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    settings = make_settings(max_records_per_batch=20)
    sent, runs = send(settings), []
    try:
        for number in range(3):
            runs.append(start_run(settings, tmp_path / f"run{number}"))
            sent = sent.merge(send(settings, version=1 + number, records=4))
    finally:
        codes = wait_all(runs, 900)
    said = [(tmp_path / f"run{n}" / "stderr").read_text() for n in range(3)]
    assert codes == [0, 0, 0], said

    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)


#: Between staging and commit; with the version of the slow run's wave, so that each brings columns that no table has.
STAGED = [
    LONG("bronze_staged", 2, id="bronze_staged"),
    LONG("quarantine_committed", 4, id="quarantine_committed"),
    pytest.param("silver_staged", 6, id="silver_staged"),
    LONG("gold_staged", 8, id="gold_staged"),
    LONG("unified_staged", 9, id="unified_staged"),
]


@pytest.mark.parametrize(("point", "version"), STAGED)
def test_a_whole_run_of_a_rival_between_staging_and_commit_doubles_nothing(
    point: str, version: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(version=version, poison=0.5)

    def rival() -> None:
        world.send(version=version + 1, games=(*GAMES[1:], f"late_{version}"), poison=0.5)
        assert world.refresh().success

    happened = at_point(monkeypatch, point, rival)
    report = world.refresh()
    assert happened and report.success, report.errors
    world.assert_whole()


@pytest.mark.parametrize(("layer", "point"), [("silver", "silver_staged"), LONG("gold", "gold_staged")])
def test_the_loser_of_one_game_plans_it_again_and_lands_the_others(
    layer: str, point: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(version=2)

    def rival() -> None:
        one = {"silver": refresh_silver, "gold": refresh_gold}[layer]
        one(world.pipeline(), RunReport(), frozenset({"spades"}))

    happened = at_point(monkeypatch, point, rival)
    report = world.refresh()
    assert happened == [point]
    assert {t.game for t in report.of(layer)} == {"rummy", "uno"}
    assert report.success
    world.assert_whole()


def test_a_rival_that_changes_another_game_of_the_unified_table_keeps_its_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(games=("rummy", "spades"))
    mine, report = world.pipeline(), RunReport()
    load_bronze(mine, report)
    refresh_silver(mine, report)
    refresh_gold(mine, report, frozenset({"spades"}))

    def rival() -> None:
        refresh_gold(world.pipeline(), RunReport())
        refresh_unified(world.pipeline(), RunReport())

    happened = at_point(monkeypatch, "unified_staged", rival)
    refresh_unified(mine, report)
    assert happened
    assert report.success
    world.assert_whole()


@pytest.mark.scenario
def test_a_finished_run_does_not_forget_the_failure_of_a_rival_that_is_ahead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send()
    world.send(version=2)

    def rival() -> None:
        world.send(version=3)
        with pytest.MonkeyPatch.context() as patch:
            fail_commits_of(patch, silver_name("spades"))
            assert not world.refresh().success

    # The slow run has committed all its games; the rival goes further, fails in one game and moves the floor.
    happened = at_point(monkeypatch, "silver_committed", rival)
    world.refresh()
    assert happened
    world.send()
    assert world.refresh().success
    world.assert_whole()
