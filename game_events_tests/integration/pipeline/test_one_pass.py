"""One pass: what bronze's workers write for silver and gold gives the tables that silver's and gold's own jobs give."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from game_events.config.settings import Settings
from game_events.lakehouse.commits.versions import OldVersions
from game_events.lakehouse.maintenance import orphans
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline import fanout as one_pass_module
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import TriggeredRun, refresh, selection_of
from game_events.plugins.governance.run import erase
from game_events.workers import fanout as worker_module
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.faults import Write, at_commit
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.erasure import places_of
from game_events_tests.support.worlds.quality import Event, assert_sound, in_silver, send_events
from game_events_tests.support.worlds.waves import at_point, power_cut_at, send

GONE, STAYS = "gamer-to-forget", "gamer-who-stays"
FIRST = (Event("rummy", 1, None, STAYS), Event("uno", 2, None, STAYS))
NEWS = (Event("rummy", 3, None, GONE), Event("uno", 4, None, STAYS), Event("chess", 5, None, STAYS), Event("NO GAME", 6))


def held(pipeline: Pipeline, expect: tuple[int, int] | None = None) -> OnePass:
    """A run that must succeed; how often silver has taken what bronze's job wrote, and how many games' gold."""
    one_pass = OnePass()
    report = refresh(pipeline, one_pass=one_pass)
    assert report.success, report.errors
    if expect is not None:
        assert (one_pass.taken, one_pass.merged) == expect
    return one_pass


def contents(settings: Settings) -> dict[str, list[str]]:
    """Table of silver, gold or unified -> its rows, columns by name, as texts; nothing of it depends on who wrote the files."""
    lakehouse = Lakehouse.of(settings)
    found = {}
    for name in lakehouse.names():
        handle = lakehouse.table(name).open() if name.startswith(("silver", "gold")) else None
        if handle is not None:
            columns = ", ".join(f'"{field}"' for field in sorted(field.name for field in handle.schema().fields))
            found[name] = sorted(map(repr, rows(settings, name, f"SELECT {columns} FROM t")))
    return found


def types(settings: Settings) -> dict[str, list[Any]]:
    """Table -> its columns, with type, comment and place."""
    lakehouse = Lakehouse.of(settings)
    opened = {name: lakehouse.table(name).open() for name in lakehouse.names() if name.startswith(("silver", "gold"))}
    fields = {name: handle.schema().fields for name, handle in opened.items() if handle is not None}
    return {name: [json.loads(field.to_json()) for field in of_table] for name, of_table in fields.items()}


def elsewhere(settings: Settings, folder: Path) -> Settings:
    """The same topic, into another lakehouse."""
    return settings.model_copy(update={"lakehouse": str(folder)})


@pytest.mark.every_spark
def test_both_ways_give_the_same_tables(make_settings: MakeSettings, make_pipeline: MakePipeline, tmp_path: Path) -> None:
    settings = make_settings(max_records_per_batch=40)
    other = elsewhere(settings, tmp_path / "other")
    for version, games in ((1, ("rummy", "uno")), (2, ("rummy", "chess")), (3, ("uno",))):
        send(settings, version=version, games=games, records=9)
        held(make_pipeline(settings))
        assert refresh(make_pipeline(other), one_pass=OnePass(enabled=False)).success
        assert contents(settings) == contents(other)
        assert types(settings) == types(other)
    assert refresh(make_pipeline(settings)).tables == []
    send_events(settings, NEWS)
    assert held(make_pipeline(settings)).taken == 1


EVENTS = st.builds(
    Event,
    st.sampled_from(("rummy", "uno", "chess", "", "NO GAME")),
    st.none() | st.integers(-(2**40), 2**40),
    st.none() | st.sampled_from(("a", "b")),
    st.sampled_from(("", "ann", "bob", "Ann", "z" * 30, "\u00e4")),
)


@pytest.mark.scenario
@settings(
    max_examples=int(os.environ.get("GAME_EVENTS_ONE_PASS_EXAMPLES", "3")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(waves=st.lists(st.lists(EVENTS, min_size=1, max_size=30), min_size=1, max_size=4), bounded=st.booleans())
def test_both_ways_give_the_same_tables_of_any_events(
    waves: list[list[Event]], bounded: bool, make_settings: MakeSettings, make_pipeline: MakePipeline, tmp_path_factory: Any
) -> None:
    settings = make_settings(max_records_per_batch=7 if bounded else 1_000)
    settings = elsewhere(settings, tmp_path_factory.mktemp("one"))
    other = elsewhere(settings, tmp_path_factory.mktemp("two"))
    for wave in waves:
        send_events(settings, wave)
        held(make_pipeline(settings))
        assert refresh(make_pipeline(other), one_pass=OnePass(enabled=False)).success
        assert contents(settings) == contents(other)


@pytest.fixture
def begun(make_settings: MakeSettings, make_pipeline: MakePipeline) -> Settings:
    """Tables of two games, and news of three in the topic."""
    settings = make_settings(erasure_key="a key of the tests, long enough", allow_bronze_full_refresh=True)
    send_events(settings, FIRST)
    held(make_pipeline(settings), (1, 2))
    send_events(settings, NEWS)
    return settings


def as_read_layer_by_layer(settings: Settings, make_pipeline: MakePipeline, folder: Path) -> dict[str, list[str]]:
    """The tables of an undisturbed run that holds nothing, without bronze's batch numbers."""
    other = elsewhere(settings, folder)
    assert refresh(make_pipeline(other), one_pass=OnePass(enabled=False)).success
    return logical(other)


def logical(settings: Settings) -> dict[str, list[Any]]:
    """Game -> offsets in silver, and its gold."""
    found: dict[str, list[Any]] = {game: sorted(offsets) for game, offsets in in_silver(settings).items()}
    return found | {name: of for name, of in contents(settings).items() if name.startswith("gold")}


POINTS = ("bronze_staged", "bronze_committed", "silver_staged", "game_committed:1", "silver_committed", "gold_staged")


@pytest.mark.parametrize("point", [POINTS[1], *(pytest.param(p, marks=pytest.mark.scenario) for p in POINTS if p != POINTS[1])])
def test_a_run_after_a_crash_reads_bronze_and_the_files_of_the_crash_are_unreferenced(
    begun: Settings, make_pipeline: MakePipeline, tmp_path: Path, point: str
) -> None:
    with pytest.MonkeyPatch.context() as patch, power_cut_at(point):
        patch.setattr(OnePass, "drop", lambda _: None)  # a process that is killed deletes nothing
        held(make_pipeline(begun))
    one_pass = held(make_pipeline(begun))
    assert one_pass.taken == (1 if point == "bronze_staged" else 0)
    assert_sound(make_pipeline(begun))
    assert logical(begun) == as_read_layer_by_layer(begun, make_pipeline, tmp_path / "other")
    left = [path for game in ("rummy", "uno", "chess") for path in unreferenced(begun, game)]
    assert bool(left) == (point not in ("silver_committed", "gold_staged"))


def unreferenced(settings: Settings, game: str) -> list[str]:
    """Files of a game's silver table that maintenance deletes once they are old."""
    table = Lakehouse.of(settings).silver(game)
    return list(orphans(table, -60, OldVersions(table)))


@pytest.mark.parametrize("point", ["bronze_committed", pytest.param("silver_staged", marks=pytest.mark.scenario)])
def test_files_that_a_rival_has_made_outdated_are_not_committed(
    begun: Settings, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, point: str
) -> None:
    def rival() -> None:
        send_events(begun, [Event("rummy", 7, None, STAYS), Event("go", 8, None, STAYS)])
        assert refresh(make_pipeline(begun)).success

    assert at_point(monkeypatch, point, rival) == []
    held(make_pipeline(begun))
    assert_sound(make_pipeline(begun))
    assert refresh(make_pipeline(begun)).tables == []
    assert logical(begun) == as_read_layer_by_layer(begun, make_pipeline, tmp_path / "other")


@pytest.mark.parametrize(
    "point",
    [
        "bronze_committed",
        "game_committed:1",
        *(pytest.param(point, marks=pytest.mark.scenario) for point in ("silver_staged", "silver_committed", "gold_staged")),
    ],
)
def test_a_person_who_is_erased_meanwhile_does_not_come_back_by_files_that_are_held(
    begun: Settings, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    happened = at_point(monkeypatch, point, lambda: erase(make_pipeline(begun), RunReport(), frozenset({GONE})))
    refresh(make_pipeline(begun))
    assert happened == [point]
    erase(make_pipeline(begun), RunReport(), frozenset({GONE}))
    assert refresh(make_pipeline(begun)).success
    lakehouse = Lakehouse.of(begun)
    for name in lakehouse.names():
        assert GONE not in str(rows(begun, name)), name
    assert_sound(make_pipeline(begun))
    assert places_of(begun, STAYS)


def test_a_full_refresh_meanwhile_makes_what_is_held_void(
    begun: Settings, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def replaced() -> None:
        pipeline = make_pipeline(begun)
        assert refresh(pipeline, selection=selection_of(pipeline, [], [], ["all"])).success

    happened = at_point(monkeypatch, "bronze_committed", replaced)
    one_pass = held(make_pipeline(begun))
    assert (happened, one_pass.taken) == (["bronze_committed"], 0)
    assert_sound(make_pipeline(begun))
    assert logical(begun) == as_read_layer_by_layer(begun, make_pipeline, tmp_path / "other")


def test_a_game_whose_commit_fails_is_brought_up_from_bronze_and_the_others_go_on(
    begun: Settings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    def refused(real: Write, *arguments: Any, **options: Any) -> object:
        if "silver_uno" in str(arguments[0].uri if hasattr(arguments[0], "uri") else arguments[0]):
            raise OSError("no space left on the device")
        return real(*arguments, **options)

    one_pass = OnePass()
    with at_commit(refused):
        report = refresh(make_pipeline(begun), one_pass=one_pass)
    assert ([t.game for t in report.errors if t.layer == "silver"], one_pass.taken, one_pass.merged) == (["uno"], 1, 2)
    held(make_pipeline(begun), (0, 0))
    assert_sound(make_pipeline(begun))
    assert logical(begun) == as_read_layer_by_layer(begun, make_pipeline, tmp_path / "other")


def test_new_names_without_room_are_left_in_bronze_as_by_silvers_own_job(
    make_settings: MakeSettings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    settings = make_settings(max_games=2, max_games_ever=2, new_game_min_rows=1)
    other = elsewhere(settings, tmp_path / "other")
    for wave in (FIRST, NEWS, FIRST):
        send_events(settings, wave)
        one_pass = held(make_pipeline(settings))
        assert refresh(make_pipeline(other), one_pass=OnePass(enabled=False)).success
        assert contents(settings) == contents(other)
        assert not Path(Lakehouse.of(settings).silver("chess").uri).exists()
    # Without new names silver needs no count of them.
    assert one_pass.taken == 1


def other_columns(patch: pytest.MonkeyPatch, work: Pipeline) -> None:
    """Silver would have other columns than bronze's workers have written."""
    del work
    real = worker_module.bronze_schema
    patch.setattr(worker_module, "bronze_schema", lambda columns: real(columns).remove(len(real(columns)) - 1))


def no_partial_rows(patch: pytest.MonkeyPatch, work: Pipeline) -> None:
    """Too many."""
    del work
    patch.setattr(one_pass_module, "MOST_PARTIAL_ROWS", 0)


@pytest.mark.parametrize(("fault", "expected"), [(other_columns, (0, 0)), (no_partial_rows, (1, 0))])
def test_what_does_not_fit_is_read_from_the_layer_before(
    begun: Settings,
    make_pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fault: Callable[[pytest.MonkeyPatch, Pipeline], None],
    expected: tuple[int, int],
) -> None:
    with monkeypatch.context() as patch:
        fault(patch, make_pipeline(begun))
        held(make_pipeline(begun), expected)
    assert logical(begun) == as_read_layer_by_layer(begun, make_pipeline, tmp_path / "other")
    assert not unreferenced(begun, "rummy")


def test_where_only_bronze_is_selected_nothing_is_written_for_silver(begun: Settings, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(begun)
    run = TriggeredRun(pipeline, RunReport(), selection_of(pipeline, ["bronze"], [], []))
    for step in run.steps.values():
        step()
    assert not Path(pipeline.lakehouse.silver("chess").uri).exists()
    held(make_pipeline(begun), (0, 0))
