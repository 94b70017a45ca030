"""A crash at every named point loses no row and doubles none, whatever has happened to the topic by the next run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from game_events.lakehouse.crash_points import CRASH_POINTS
from game_events.pipeline.context import Pipeline
from game_events.pipeline.refresh import refresh
from game_events.settings import Settings
from game_events_tests.books import assert_books_balance
from game_events_tests.conftest import MakePipeline
from game_events_tests.guarantees.waves import GAMES, end_orphans, power_cut_at, send, start_run, versions, wait_all
from game_events_tests.pipeline.test_erasure import POINTS as ERASURE_POINTS

#: Each point once, with a detail where it has one.
POINTS = (
    "bronze_staged",
    "quarantine_committed",
    "bronze_committed",
    "silver_staged",
    "game_committed:1",
    "silver_committed",
    "before_create:silver_rummy_events",
    "gold_staged",
    "gold_game_committed:1",
    "gold_committed",
    "unified_staged",
)
#: Points of other work than a plain run's: test_replay.py, test_redecode.py, test_rejections.py and test_bronze_reset.py of
#: game_events_tests/pipeline trip them, and test_erasure.py those of an erasure.
OTHER_POINTS = ("replay_staged", "replay_committed", "redecode_staged", "rejections_decided", "reset_staged", "reset_committed")
GUARANTEES = Path(__file__).parents[2] / "docs" / "guarantees.md"


def test_every_crash_point_is_tried() -> None:
    assert {point.partition(":")[0] for point in (*POINTS, *OTHER_POINTS, *ERASURE_POINTS)} == set(CRASH_POINTS)


def test_the_guarantees_have_a_paragraph_for_every_crash_point() -> None:
    text = GUARANTEES.read_text("utf-8")
    assert [name for name in CRASH_POINTS if f"\n**`{name}`**" not in text] == []


@pytest.mark.stack
@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_at_any_point_is_finished_by_the_next_run(
    point: str, settings: Settings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    sent = send(settings, version=1)
    assert sent.poison, "this wave has nothing for quarantine"
    killed = start_run(settings, tmp_path / "run", crash_at=point)
    assert wait_all([killed], 180) == [-signal.SIGKILL], (tmp_path / "run" / "stderr").read_text()
    end_orphans(settings)

    # The retried slice has another end, and a column that the killed run never saw.
    sent = sent.merge(send(settings, version=3))
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert_books_balance(settings, sent)

    before = versions(settings)
    assert refresh(make_pipeline(settings)).tables == []
    assert versions(settings) == before


@pytest.mark.stack
def test_a_crash_at_any_point_of_a_later_run_is_finished_by_the_next_run(pipeline: Pipeline, settings: Settings) -> None:
    """As above with tables and floors that exist; the crash is an exception that nothing catches, in this process."""
    sent = send(settings)
    refresh(pipeline)
    for number, point in enumerate(POINTS):
        newcomer = f"new_{number}"
        place = f"before_create:silver_{newcomer}_events" if point.startswith("before_create") else point
        sent = sent.merge(send(settings, version=1 + number % 3, games=(*GAMES, newcomer), records=3, poison=0.5))
        with power_cut_at(place):
            refresh(pipeline)
        # Not all games have rows in the retried run's own part: some have nothing but what the crash left.
        sent = sent.merge(send(settings, version=2, games=GAMES[:2], records=2))
        report = refresh(pipeline)
        assert report.success, (point, report.errors)
        try:
            assert_books_balance(settings, sent)
        except AssertionError as error:
            raise AssertionError(f"after a crash at {place}: {error}") from error
    before = versions(settings)
    assert refresh(pipeline).tables == []
    assert versions(settings) == before
