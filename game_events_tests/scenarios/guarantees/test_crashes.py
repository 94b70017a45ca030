"""A crash at every named point loses no row and doubles none, whatever has happened to the topic by the next run."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from game_events.config.settings import Settings
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import Manifest
from game_events_tests.conftest import MakePipeline
from game_events_tests.support.fixtures.crashes import Crash
from game_events_tests.support.reconciliation import assert_books_balance, rows
from game_events_tests.support.worlds.waves import GAMES, end_orphans, send, start_run, versions, wait_all

#: Each point of a run once, with a detail where it has one; `{new}` is a game that comes with the wave.
POINTS = (
    "file_open:progress",
    "bronze_staged",
    "schemas_archived",
    "quarantine_announced",
    "quarantine_committed",
    "columns_added:silver_rummy_events",
    "bronze_committed",
    "silver_staged",
    "game_committed:1",
    "silver_committed",
    "before_create:silver_{new}_events",
    "progress_moved",
    "gold_staged",
    "gold_game_committed:1",
    "gold_committed",
    "progress_moved@2",
    "unified_staged",
    "unified_committed",
    "events_due",
)
#: Each part in a world of its own, so that no check has many games to look at.
_FIRST = ("quarantine_committed", "game_committed:1", "gold_game_committed:1", "unified_staged")
_REST = [point for point in POINTS if point not in _FIRST]
PARTS = [_FIRST, *(_REST[n::3] for n in range(3))]
#: In a lakehouse without tables: what is different there.
FIRST_POINTS = ("bronze_staged", "quarantine_committed", "before_create:silver_rummy_events", "gold_committed")
#: The command as a user starts it, with a JVM of its own that dies with it.
COMMAND_POINTS = ("game_committed:1",)


@pytest.mark.parametrize("point", FIRST_POINTS)
def test_a_first_run_killed_at_any_point_is_finished_by_the_next_run(
    point: str, settings: Settings, make_pipeline: MakePipeline, crash: Crash
) -> None:
    sent = send(settings, version=1)
    assert sent.poison, "this wave has nothing for quarantine"
    crash(point)
    # The retried slice has another end, and a column that the killed run never saw.
    sent = sent.merge(send(settings, version=3))
    assert_the_next_run_finishes_it(settings, make_pipeline, sent)


@pytest.mark.parametrize("point", COMMAND_POINTS)
def test_a_command_killed_with_its_jvm_is_finished_by_the_next_run(
    point: str, settings: Settings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    sent = send(settings, version=1)
    killed = start_run(settings, tmp_path / "run", crash_at=point)
    assert wait_all([killed], 900) == [-signal.SIGKILL], (tmp_path / "run" / "stderr").read_text()
    end_orphans(settings)
    sent = sent.merge(send(settings, version=3))
    assert_the_next_run_finishes_it(settings, make_pipeline, sent)


def assert_the_next_run_finishes_it(settings: Settings, make_pipeline: MakePipeline, sent: Manifest) -> None:
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert_books_balance(settings, sent)
    before = versions(settings)
    assert refresh(make_pipeline(settings)).tables == []
    assert versions(settings) == before


@pytest.mark.parametrize("points", PARTS)
def test_a_later_run_killed_at_any_point_is_finished_by_the_next_run(
    points: Sequence[str], settings: Settings, make_pipeline: MakePipeline, crash: Crash
) -> None:
    """As above with tables and floors that exist, one point after another."""
    sent = send(settings)
    refresh(make_pipeline(settings))
    for number, point in enumerate(points):
        place = point.format(new=f"new_{number}")
        # Each wave has a game and, some of them, columns that are new.
        games = (*GAMES, f"new_{number}")
        sent = sent.merge(send(settings, version=2 + number, games=games, records=3, poison=0.5))
        crash(place)
        # Not all games have rows in the retried run's own part: some have nothing but what the crash left.
        sent = sent.merge(send(settings, version=1, games=GAMES[:2], records=2))
        report = refresh(make_pipeline(settings))
        assert report.success, (place, report.errors)
        try:
            assert_books_balance(settings, sent)
        except AssertionError as error:
            raise AssertionError(f"after a crash at {place}: {error}") from error
    before = versions(settings)
    assert refresh(make_pipeline(settings)).tables == []
    assert versions(settings) == before
    runs = rows(settings, "event_log", "SELECT count(*) FROM t WHERE kind = 'run'")
    assert runs in ([], [(0,)]), "a run that was killed before it had told of itself is in the event log"


def test_crashes_one_after_another_at_ever_later_points_leave_nothing_that_one_run_does_not_finish(
    settings: Settings, make_pipeline: MakePipeline, crash: Crash
) -> None:
    """No run between them comes to its end."""
    sent = send(settings)
    refresh(make_pipeline(settings))
    for number, point in enumerate(("quarantine_committed", "game_committed:2", "gold_game_committed:1", "unified_committed")):
        sent = sent.merge(send(settings, version=2 + number, games=(*GAMES[number % 2 :], f"new_{number}"), records=4))
        crash(point)
    assert_the_next_run_finishes_it(settings, make_pipeline, sent)
