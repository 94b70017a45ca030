"""What a run looks at: the tables that all of its steps read, and those that were deleted or restored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from game_events.config.extensions import Extensions
from game_events.extending import GoldAggregate, count
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs import refresh
from game_events.pipeline.runs.refresh import TriggeredRun
from game_events.pipeline.runs.selection import EVERYTHING, Selection, selection_of
from game_events_tests.support.faults import opened_tables
from game_events_tests.support.model.world import World
from game_events_tests.support.pipelines import without_spark


def test_a_run_opens_bronze_and_quarantine_once_for_each_of_their_versions_however_many_steps_read_them() -> None:
    """Their logs have an entry for each micro-batch: opening them takes longer, the longer a loop has run."""
    world = World()
    try:
        world.strictness = 1  # rejects multiples of 4
        world.records_come([("rummy", "ann", 1, 1), ("uno", "bob", 4, 1)])
        world.work()
        before = {key: versions(world, key) for key in ("bronze_events", "quarantine_events")}
        world.records_come([("rummy", "ann", 3, 1), ("uno", "cyd", 8, 1)])
        with opened_tables() as opened:
            assert world.work().rows("silver") == 1
        for key, there in before.items():
            commits = versions(world, key) - there
            assert commits > 0
            # By the first step of the run, and by each commit, whose handle the steps after it share.
            assert opened.count(key) <= 1 + commits, key
    finally:
        world.close()


def versions(world: World, key: str) -> int:
    handle = Table(key, f"{world.folder}/{key}").open()
    return handle.version() + 1 if handle is not None else 0


def test_a_run_over_everything_searches_for_lost_tables_whatever_aggregates_the_user_has_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their layers are in the selection that is made without options, too."""
    searched: list[Pipeline] = []
    monkeypatch.setattr(refresh, "find_lost_tables", lambda pipeline, _: searched.append(pipeline))
    pipeline = without_spark(tmp_path)
    pipeline.__dict__["extensions"] = Extensions(aggregates=(GoldAggregate("sessions", "merge", measures={"n": count()}),))

    def searches(selection: Selection) -> bool:
        searched.clear()
        TriggeredRun(pipeline, RunReport(), replace(selection, update={}, full={})).bronze()
        return bool(searched)

    assert all(map(searches, (EVERYTHING, selection_of(pipeline), selection_of(pipeline, full_refresh=["gold"]))))
    assert not searches(selection_of(pipeline, select=["bronze", "silver"]))
