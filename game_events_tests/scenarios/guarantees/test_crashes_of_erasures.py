"""An erasure that SIGKILL ends anywhere is finished by the same command; nobody else notices, and nobody comes back."""

from __future__ import annotations

import json

import pytest

from game_events.config.settings import Settings
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.governance.run import resume
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.integration.pipeline.test_erasure import KEY, RULES, STAYS, forgotten, wave
from game_events_tests.support.fixtures.crashes import Crash
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.worlds.quality import Event, assert_sound, in_silver, rejected, send_events
from game_events_tests.support.worlds.waves import assert_gold_follows_silver

#: Every point of an erasure, once, with a detail where it has one.
POINTS = (
    "erase_listed",
    "erase_quarantine_committed",
    "erase_staged",
    "erase_bronze_committed",
    "erase_game_committed:1",
    "erase_silver_committed",
)


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings(erasure_key=KEY, rules=RULES)


def resumed(pipeline: Pipeline) -> None:
    report = RunReport()
    resume(pipeline, report)
    assert report.parts["erasure"] is not None
    assert (report.parts["erasure"].finished, report.parts["erasure"].lost_ids) == (True, 0), report.errors


def test_an_erasure_that_is_killed_at_any_point_is_finished_by_the_same_command_or_without_its_ids(
    settings: Settings, make_pipeline: MakePipeline, crash: Crash
) -> None:
    def killed(point: str, gamer: str) -> None:
        crash(point, "forget", gamer=gamer, erasure_key=KEY, rules=json.dumps(RULES))

    events: list[Event] = []
    for number, _ in enumerate(POINTS):
        events += wave(settings, gone=f"gamer-{number}")
    refresh(make_pipeline(settings))
    for number, point in enumerate(POINTS):
        gamer = f"gamer-{number}"
        killed(point, gamer)
        if number % 2:
            resumed(make_pipeline(settings))
        else:
            forgotten(make_pipeline(settings), gamer)
        there = [e for e in events if e.gamer == STAYS or int(e.gamer.rpartition("-")[2]) > number]
        assert count(settings, "bronze_events") == len(there), point
        assert len(rejected(settings)) == sum((e.amount or 0) >= 1000 for e in there), point
        for game, held in in_silver(settings).items():
            good = [e for e in there if e.game == game and 0 <= (e.amount or 0) < 1000]
            assert len(held) == len(set(held)) == len(good), (point, game)
    found = reconcile(make_pipeline(settings))
    assert found.passed, (found.summary(), found.metadata())
    assert_gold_follows_silver(settings, "chess", "go", "uno")
    # From the first point on nothing new of theirs comes in, and the next run does what was left to gold.
    killed("erase_listed", STAYS)
    send_events(settings, [Event("chess", 1, gamer=gamer) for gamer in (STAYS, "gamer-0", "somebody")])
    report = refresh(make_pipeline(settings))
    assert (report.suppressed, report.rows("bronze")) == (2, 1)
    killed("erase_silver_committed", STAYS)
    refresh(make_pipeline(settings))
    assert_sound(make_pipeline(settings))
    assert rows(settings, "gold_unified_player_agg", "SELECT gamer_id FROM t") == [("somebody",)]
