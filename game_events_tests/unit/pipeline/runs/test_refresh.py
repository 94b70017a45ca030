"""What a run looks at, and what it says of tables that it could not replace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from game_events.config.extensions import Extensions
from game_events.extending import GoldAggregate, count
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold import refresh as gold
from game_events.pipeline.gold.execute import Staged
from game_events.pipeline.gold.plan import GamePlan, GoldRun
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs import refresh
from game_events.pipeline.runs.refresh import EVERYTHING, Selection, TriggeredRun, selection_of
from game_events.pipeline.silver import refresh as passes
from game_events.pipeline.silver.stage import Staging
from game_events.workers.results import FanOutResult
from game_events_tests.support.faults import opened_tables
from game_events_tests.support.model.world import World
from game_events_tests.support.pipelines import without_spark


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_a_full_refresh_that_fails_is_reported_as_failed_also_if_an_update_of_the_same_run_could_add_rows(
    world: World, layer: str
) -> None:
    """The update leaves the table as it is; other games and later runs go on as usual."""
    world.records_come([("rummy", "ann", 1, 1), ("uno", "bob", 2, 1), ("spades", "cyd", 3, 1)])
    world.work()
    before = [versions(world, world.table(game, of_gold=layer == "gold").key) for game in ("rummy", "uno")]
    world.records_come([("rummy", "ann", 5, 1), ("uno", "bob", 6, 1)])
    pipeline, report = world.pipeline(), RunReport()
    table = f"{layer}_rummy_{'events' if layer == 'silver' else 'player_agg'}"
    with failing_to_replace(layer, "rummy"):
        refresh.refresh(pipeline, report, selection_of(pipeline, full_refresh=[table]))
    assert not report.success
    assert [(error.layer, error.game, error.error) for error in report.errors] == [(layer, "rummy", "a file is gone")]
    after = [versions(world, world.table(game, of_gold=layer == "gold").key) for game in ("rummy", "uno")]
    assert after == [before[0], before[1] + 1]
    assert world.work().success
    world.assert_settled()


@contextmanager
def failing_to_replace(layer: str, game: str) -> Iterator[None]:
    """A full refresh of the layer stages nothing of that game."""
    stage_games, execute = passes.stage_games, gold.execute

    def stage(work: Staging) -> FanOutResult:
        asked = (work.starts or {}).get(game)
        if asked is None or not asked.replace:
            return stage_games(work)
        rest = {name: start for name, start in (work.starts or {}).items() if name != game}
        result = stage_games(replace(work, starts=rest)) if rest else FanOutResult()
        result.failed[game] = "a file is gone"
        return result

    def executed(run: GoldRun, plans: Mapping[str, GamePlan]) -> Staged:
        staged = execute(run, plans)
        if run.full and game in plans:
            staged.result.failed[game] = "a file is gone"
        return staged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "stage_games", stage if layer == "silver" else stage_games)
        patch.setattr(gold, "execute", executed if layer == "gold" else execute)
        yield


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
