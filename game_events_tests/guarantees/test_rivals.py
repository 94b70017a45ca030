"""Rivals, lost and restored tables, games that fail or come late: every row in its place, once, and gold as recomputed."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from game_events.lakehouse.commits import Commit, Landed, commit
from game_events.lakehouse.tables import BRONZE, PROGRESS, gold_name, silver_name
from game_events.pipeline import game_commits
from game_events.pipeline.bronze import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold import refresh_gold
from game_events.pipeline.refresh import refresh
from game_events.pipeline.report import RunReport
from game_events.pipeline.silver import refresh_silver
from game_events.pipeline.unified import refresh_unified
from game_events.settings import Settings
from game_events_tests.books import assert_books_balance, coordinates, count
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.guarantees.waves import (
    GAMES,
    assert_gold_follows_silver,
    at_point,
    send,
    silver_version,
    start_run,
    versions,
    wait_all,
)


def delete(settings: Settings, table: str) -> None:
    """Somebody removes a table's folder."""
    shutil.rmtree(Path(settings.lakehouse) / table)


def restore(pipeline: Pipeline, table: str, version: int) -> None:
    """Somebody restores a table to an older version."""
    handle = pipeline.lakehouse.table(table).open()
    assert handle is not None
    handle.restore(version)


def test_three_runs_at_once_with_different_ends_load_every_row_once(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    settings = make_settings(max_records_per_batch=15)
    sent, ends = None, []
    for version in (1, 2, 3):
        wave = send(settings, version=version, records=5)
        sent = wave if sent is None else sent.merge(wave)
        ends.append(make_pipeline(settings).source.look())
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
        codes = wait_all(runs, 240)
    said = [(tmp_path / f"run{n}" / "stderr").read_text() for n in range(3)]
    assert codes == [0, 0, 0], said

    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)


@pytest.mark.parametrize("point", ["bronze_staged", "quarantine_committed", "silver_staged", "gold_staged", "unified_staged"])
def test_a_whole_run_of_a_rival_between_staging_and_commit_doubles_nothing(
    point: str, settings: Settings, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    waves = [send(settings)]
    refresh(make_pipeline(settings))
    waves.append(send(settings, version=2, poison=0.5))

    def rival() -> None:
        waves.append(send(settings, version=3, games=(*GAMES[1:], "late"), poison=0.5))
        assert refresh(make_pipeline(settings)).success

    happened = at_point(monkeypatch, point, rival)
    report = refresh(make_pipeline(settings))
    assert happened and report.success, report.errors
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, waves[0].merge(waves[1]).merge(waves[2]))


@pytest.mark.parametrize(("layer", "point"), [("silver", "silver_staged"), ("gold", "gold_staged")])
def test_the_loser_of_one_game_plans_it_again_and_lands_the_others(
    layer: str,
    point: str,
    settings: Settings,
    make_pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = send(settings)
    refresh(make_pipeline(settings))
    sent = sent.merge(send(settings, version=2))

    def rival() -> None:
        one = {"silver": refresh_silver, "gold": refresh_gold}[layer]
        one(make_pipeline(settings), RunReport(), frozenset({"spades"}))

    happened = at_point(monkeypatch, point, rival)
    report = refresh(make_pipeline(settings))
    assert happened == [point]
    assert {t.game for t in report.of(layer)} == {"rummy", "uno"}
    assert report.success
    assert_books_balance(settings, sent)


def test_a_rival_that_changes_another_game_of_the_unified_table_keeps_its_rows(
    settings: Settings, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = send(settings)
    refresh(make_pipeline(settings))
    sent = sent.merge(send(settings, games=("rummy", "spades")))
    mine, report = make_pipeline(settings), RunReport()
    load_bronze(mine, report)
    refresh_silver(mine, report)
    refresh_gold(mine, report, frozenset({"spades"}))

    def rival() -> None:
        refresh_gold(make_pipeline(settings), RunReport())
        refresh_unified(make_pipeline(settings), RunReport())

    at_point(monkeypatch, "unified_staged", rival)
    refresh_unified(mine, report)
    assert report.success
    assert_books_balance(settings, sent)


def test_a_finished_run_does_not_forget_the_failure_of_a_rival_that_is_ahead(
    settings: Settings, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = send(settings)
    refresh(make_pipeline(settings))
    waves = [sent, send(settings), send(settings, version=2)]

    def rival() -> None:
        waves.append(send(settings, version=3))
        with pytest.MonkeyPatch.context() as patch:
            fail_commits_of(patch, silver_name("spades"))
            assert not refresh(make_pipeline(settings)).success

    # The slow run has committed all its games; the rival goes further, fails in one game and moves the floor.
    at_point(monkeypatch, "silver_committed", rival)
    refresh(make_pipeline(settings))
    waves.append(send(settings))
    assert refresh(make_pipeline(settings)).success
    for wave in waves[1:]:
        sent = sent.merge(wave)
    assert_books_balance(settings, sent)


def test_a_lost_progress_table_costs_a_second_look_but_no_row_and_no_commit(
    settings: Settings, make_pipeline: MakePipeline
) -> None:
    sent = send(settings)
    refresh(make_pipeline(settings))
    sent = sent.merge(send(settings, games=("rummy", "uno")))
    refresh(make_pipeline(settings))
    before = versions(settings)

    delete(settings, PROGRESS)
    assert refresh(make_pipeline(settings)).success
    after = versions(settings)
    assert {k: v for k, v in after.items() if k != PROGRESS} == {k: v for k, v in before.items() if k != PROGRESS}
    assert_books_balance(settings, sent)

    delete(settings, PROGRESS)
    sent = sent.merge(send(settings, version=2, games=("rummy", "poker")))
    assert refresh(make_pipeline(settings)).success
    assert versions(settings)["silver_spades_events"] == before["silver_spades_events"]
    assert_books_balance(settings, sent)


@pytest.mark.parametrize("lost", [silver_name("spades"), gold_name("spades"), "gold_unified_player_agg", "progress"])
def test_a_deleted_table_is_made_again_whole_when_its_game_has_new_rows(
    lost: str, settings: Settings, make_pipeline: MakePipeline
) -> None:
    sent = send(settings)
    refresh(make_pipeline(settings))
    sent = sent.merge(send(settings))
    refresh(make_pipeline(settings))
    delete(settings, lost)
    sent = sent.merge(send(settings, version=2, games=("spades", "uno")))
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)
    assert_gold_follows_silver(settings, *GAMES)


@pytest.mark.parametrize(
    ("table", "stage"),
    [
        (silver_name("spades"), None),
        (silver_name("spades"), "silver_staged"),
        (gold_name("spades"), None),
        ("gold_unified_player_agg", None),
    ],
)
def test_a_table_restored_to_an_older_version_has_every_row_once_when_its_game_has_new_rows(
    table: str, stage: str | None, settings: Settings, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = send(settings)
    refresh(make_pipeline(settings))
    sent = sent.merge(send(settings))
    refresh(make_pipeline(settings))
    sent = sent.merge(send(settings, version=2, games=("spades", "uno")))
    if stage:
        at_point(monkeypatch, stage, lambda: restore(make_pipeline(settings), table, 0))
    else:
        restore(make_pipeline(settings), table, 0)
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)
    assert_gold_follows_silver(settings, *GAMES)


@pytest.mark.parametrize("rows_of_a_slice", [1_000, 20], ids=["in one slice as before", "in several slices"])
def test_a_rebuilt_bronze_replaces_silver_and_gold_instead_of_doubling_them(
    rows_of_a_slice: int, make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    sent = send(make_settings())
    refresh(make_pipeline(make_settings()))
    delete(make_settings(), BRONZE)
    sent = sent.merge(send(make_settings(), version=2))
    settings = make_settings(max_records_per_batch=rows_of_a_slice)
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)
    assert refresh(make_pipeline(settings)).tables == []


def fail_commits_of(patch: pytest.MonkeyPatch, table: str) -> None:
    """The storage refuses every commit to one table."""

    def refusing(plan: Commit) -> Landed:
        if plan.table.name == table:
            raise OSError(f"no space left for {table}")
        return commit(plan)

    patch.setattr(game_commits, "commit", refusing)


@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_a_game_that_fails_to_commit_fails_alone_and_the_next_run_repairs_it_and_only_it(
    layer: str, settings: Settings, make_pipeline: MakePipeline
) -> None:
    sent = send(settings)
    refresh(make_pipeline(settings))
    sent = sent.merge(send(settings, version=2))
    with pytest.MonkeyPatch.context() as patch:
        fail_commits_of(patch, {"silver": silver_name, "gold": gold_name}[layer]("spades"))
        report = refresh(make_pipeline(settings))
    assert [(t.layer, t.game) for t in report.errors] == [(layer, "spades")]
    assert "no space left" in str(report.errors[0].error)
    assert {t.game for t in report.of("gold") if t.error is None} == {"rummy", "uno"}

    repaired = refresh(make_pipeline(settings))
    assert repaired.success
    assert {t.game for t in repaired.tables if t.game} == {"spades"}
    assert_books_balance(settings, sent)
    assert refresh(make_pipeline(settings)).tables == []


def test_a_game_that_failed_when_it_was_new_gets_the_rows_of_every_batch(
    settings: Settings, make_pipeline: MakePipeline
) -> None:
    sent = send(settings)
    with pytest.MonkeyPatch.context() as patch:
        fail_commits_of(patch, silver_name("spades"))
        for version in (1, 2):
            assert [t.game for t in refresh(make_pipeline(settings)).errors] == ["spades"]
            sent = sent.merge(send(settings, version=version))
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)


def test_a_game_admitted_later_gets_the_rows_it_had_before(make_settings: MakeSettings, make_pipeline: MakePipeline) -> None:
    few, all_games = make_settings(games=("rummy",)), make_settings(games=GAMES)
    sent = send(few)
    report = refresh(make_pipeline(few))
    assert {t.game for t in report.of("silver")} == {"rummy"}
    assert report.unrouted["not_allowed"] == sent.decodable - sum(sent.records["rummy"].values())

    sent = sent.merge(send(few, version=2))
    assert refresh(make_pipeline(all_games)).success
    assert_books_balance(all_games, sent)


def test_a_game_taken_off_the_allow_list_for_a_time_gets_the_rows_of_that_time(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    sent = send(make_settings())
    for allowed in (GAMES, ("rummy", "uno"), GAMES):
        assert refresh(make_pipeline(make_settings(games=allowed))).success
        sent = sent.merge(send(make_settings(), version=2))
    assert refresh(make_pipeline(make_settings(games=GAMES))).success
    assert_books_balance(make_settings(), sent)


def test_a_flood_of_names_is_counted_and_locks_no_real_game_out(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    settings = make_settings(max_games=4, new_game_min_rows=10)
    real = send(settings, games=("rummy", "spades"), records=5)
    hostile = ("../../etc", "UPPER", "🎲", "unified", *(f"made_up_{n:02d}" for n in range(20)))
    send(settings, games=hostile, records=1, poison=0)
    report = refresh(make_pipeline(settings))
    assert report.success
    assert report.unrouted == {"invalid": 4, "over_limit": 18}, "two of the made-up names fill the room, once"

    real = real.merge(send(settings, version=2, games=("rummy", "spades"), records=2))
    newcomer = send(settings, games=("poker",), records=12, poison=0)
    late_flood = send(settings, games=tuple(f"later_{n:02d}" for n in range(20)), records=1, poison=0)
    report = refresh(make_pipeline(settings))
    assert report.unrouted == {"over_limit": late_flood.decodable}
    for manifest, game in ((real, "rummy"), (real, "spades"), (newcomer, "poker")):
        assert count(settings, silver_name(game)) == sum(manifest.records[game].values())
    assert_gold_follows_silver(settings, "rummy", "spades", "poker")
    names = make_pipeline(settings).lakehouse.names()
    assert len([n for n in names if n.startswith("silver_")]) == 5
    assert not (Path(settings.lakehouse).parent / "etc").exists()


def test_a_game_without_new_rows_is_not_opened(settings: Settings, make_pipeline: MakePipeline) -> None:
    sent = send(settings)
    refresh(make_pipeline(settings))
    idle = silver_version(make_pipeline(settings), "uno")
    held = coordinates(settings, silver_name("uno"))
    sent = sent.merge(send(settings, games=("rummy",)))
    report = refresh(make_pipeline(settings))
    assert {t.game for t in report.tables if t.game} == {"rummy"}
    assert silver_version(make_pipeline(settings), "uno") == idle
    assert coordinates(settings, silver_name("uno")) == held
    assert_books_balance(settings, sent)
