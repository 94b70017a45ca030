"""What is fixed for the export, by the driver alone: what Spark makes of it is tried in test_export.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from game_events.pipeline.export_account import Export
from game_events.pipeline.report import RunReport
from game_events.sinks import plan
from game_events.sinks.export_tables import ExportTables
from game_events.sinks.sources_of_rows import Wishes
from game_events.sinks.target import RestTarget
from game_events_tests.sinks.world import World


@pytest.mark.parametrize("wish", ["resend", "go_on"])
def test_what_a_person_asked_for_is_done_once_in_a_run_however_often_dagster_tries_it(
    wish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    world = World(tmp_path, None)  # type: ignore[arg-type]
    planned: list[tuple[int, int]] = []
    monkeypatch.setattr(plan, "new_rows", lambda _, steps: planned.append((steps[0].above, steps[0].upto)))
    monkeypatch.setattr(plan, "_staged", lambda *_: [])

    def fixed(run_id: str, wishes: Wishes) -> bool:
        pipeline = replace(world.pipeline("http://127.0.0.1:1/"), run_id=run_id)
        tables = ExportTables.of(pipeline.lakehouse, "gamer_id")
        return plan.plan_slice(pipeline, tables, RestTarget.of(pipeline.settings), RunReport(), Export(), wishes)

    wishes = Wishes(**{wish: frozenset({"chess"})})
    world.events(chess=2)
    assert fixed("a run", wishes)
    assert not fixed("a run", wishes)
    world.events(chess=3)
    assert fixed("a run", wishes)
    assert planned == [*([(0, 1)] if wish == "resend" else []), (1, 2)]
    world.events(chess=1)
    assert fixed("another run", wishes)
    assert planned[-1] == ((0, 3) if wish == "resend" else (1, 2)), "it may be asked for again"
