"""Tables lost or restored when their game has new rows, games that fail or come late: every row in its place, once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from game_events.config.names import PROGRESS
from game_events.lakehouse.tables import BRONZE, UNIFIED, gold_name, silver_name
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.faults import opened_tables
from game_events_tests.support.reconciliation import coordinates, count
from game_events_tests.support.worlds.shared_topic import World
from game_events_tests.support.worlds.waves import (
    GAMES,
    assert_gold_follows_silver,
    at_point,
    fail_commits_of,
    send,
    silver_version,
    versions,
)

#: A further case of what another one stands for.
LONG = partial(pytest.param, marks=pytest.mark.scenario)


@pytest.mark.parametrize(
    "rows_of_a_slice",
    [LONG(1_000, id="in one slice as before"), pytest.param(20, id="in several slices")],
)
def test_a_rebuilt_bronze_replaces_silver_and_gold_instead_of_doubling_them(rows_of_a_slice: int, world: World) -> None:
    world.delete(BRONZE)
    world.send(version=2)
    report = world.refresh(max_records_per_batch=rows_of_a_slice)
    assert report.success
    assert (len(report.batches) > 1) == (rows_of_a_slice == 20)
    world.assert_whole()
    assert world.refresh(max_records_per_batch=rows_of_a_slice).tables == []
    world.whole = True


@pytest.mark.scenario
def test_a_lost_progress_table_costs_a_second_look_but_no_row_and_no_commit(world: World) -> None:
    world.send(games=("rummy", "uno"))
    world.refresh()
    before = versions(world.settings)

    world.delete(PROGRESS)
    assert world.refresh().success
    after = versions(world.settings)
    assert {k: v for k, v in after.items() if k != PROGRESS} == {k: v for k, v in before.items() if k != PROGRESS}
    world.assert_whole()

    world.delete(PROGRESS)
    world.send(version=2, games=("rummy", "poker"))
    assert world.refresh().success
    assert versions(world.settings)["silver_spades_events"] == before["silver_spades_events"]
    world.assert_whole()


@pytest.mark.parametrize("lost", [silver_name("spades"), *map(LONG, (gold_name("spades"), UNIFIED, PROGRESS))])
def test_a_deleted_table_is_made_again_whole_when_its_game_has_new_rows(lost: str, world: World) -> None:
    world.delete(lost)
    world.send(version=2, games=("spades", "uno"))
    assert world.refresh().success
    assert_gold_follows_silver(world.settings, *GAMES)
    world.assert_whole()


@pytest.mark.parametrize(
    ("table", "stage"),
    [
        (silver_name("spades"), "silver_staged"),
        *(LONG(name, None) for name in (silver_name("spades"), gold_name("spades"), UNIFIED)),
    ],
)
def test_a_table_restored_to_an_older_version_has_every_row_once_when_its_game_has_new_rows(
    table: str, stage: str | None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.version(table) == 0:  # there has to be an older one
        world.send()
        world.refresh()
    world.send(version=2, games=("spades", "uno"))
    if stage:
        happened = at_point(monkeypatch, stage, lambda: world.restore(table, 0))
    else:
        world.restore(table, 0)
    assert world.refresh().success
    if stage:
        assert happened
    assert_gold_follows_silver(world.settings, *GAMES)
    world.assert_whole()


@pytest.mark.parametrize("layer", ["silver", LONG("gold")])
def test_a_game_that_fails_to_commit_fails_alone_and_the_next_run_repairs_it_and_only_it(layer: str, world: World) -> None:
    world.send(version=2)
    with pytest.MonkeyPatch.context() as patch:
        fail_commits_of(patch, {"silver": silver_name, "gold": gold_name}[layer]("spades"))
        report = world.refresh()
    assert [(t.layer, t.game) for t in report.errors] == [(layer, "spades")]
    assert "no space left" in str(report.errors[0].error)
    assert {t.game for t in report.of("gold") if t.error is None} == {"rummy", "uno"}

    repaired = world.refresh()
    assert repaired.success
    assert {t.game for t in repaired.tables if t.game} == {"spades"}
    assert world.refresh().tables == []
    world.assert_whole()


@pytest.mark.scenario
def test_a_game_that_failed_when_it_was_new_gets_the_rows_of_every_batch(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fail_commits_of(patch, silver_name("newcomer"))
        for version in (1, 2):
            world.send(version=version, games=("rummy", "newcomer"))
            assert [t.game for t in world.refresh().errors] == ["newcomer"]
    assert world.refresh().success
    world.assert_whole()


def test_a_game_admitted_later_gets_the_rows_it_had_before(world: World) -> None:
    wave = world.send(games=("rummy", "admitted"))
    report = world.refresh(games=GAMES)
    assert {t.game for t in report.of("silver")} == {"rummy"}
    assert report.unrouted["not_allowed"] == sum(wave.records["admitted"].values())

    world.send(version=2, games=("rummy", "admitted"))
    assert world.refresh(games=(*GAMES, "admitted")).success
    world.assert_whole()


@pytest.mark.scenario
def test_a_game_taken_off_the_allow_list_for_a_time_gets_the_rows_of_that_time(world: World) -> None:
    world.send(version=2)
    report = world.refresh(games=("rummy", "uno"))
    assert report.success
    assert {t.game for t in report.of("silver")} == {"rummy", "uno"}
    world.send(version=2)
    assert world.refresh().success
    world.assert_whole()


@pytest.mark.scenario
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


def test_a_game_without_new_rows_is_not_opened(world: World) -> None:
    settings = world.settings
    idle = silver_version(world.pipeline(), "uno")
    held = coordinates(settings, silver_name("uno"))
    world.send(games=("rummy",))
    with opened_tables() as opened:
        report = world.refresh()
    assert {t.game for t in report.tables if t.game} == {"rummy"}
    # Not even those with news are: the run before has left summaries of them.
    assert set(opened) & {silver_name("uno"), gold_name("uno")} == set()
    assert silver_version(world.pipeline(), "uno") == idle
    assert coordinates(settings, silver_name("uno")) == held
    world.assert_whole()


def test_the_next_cycle_of_a_process_opens_no_table_of_a_game_again(world: World) -> None:
    pipeline = world.pipeline()
    world.send(games=("rummy", "uno"))
    assert refresh(pipeline).success
    world.send(games=("rummy", "uno"))
    with opened_tables() as opened:
        report = refresh(pipeline)
    assert {t.game for t in report.tables if t.game} == {"rummy", "uno"}
    assert {name for name in opened if name.startswith(("silver_", "gold_"))} <= {UNIFIED}
    world.assert_whole()
