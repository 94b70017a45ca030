"""Failed calls as they are counted, without Spark: their replay is tried in test_export.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from game_events.plugins.export import run as export
from game_events.plugins.export import worker
from game_events.plugins.export.run import export_status, replay_failed_calls
from game_events.plugins.export.tables import FAILED
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.servers.rest_receiver import receiving
from game_events_tests.unit.plugins.export.test_worker import TASKS, job


@pytest.mark.parametrize("outcome", [FAILED, "dead"])  # the second in delivery logs of earlier versions
def test_a_failed_call_with_only_erased_rows_does_not_wait(outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "FAILED", outcome)
    with receiving(tmp_path / "log", refuse_share=1.0) as receiver:
        sending = job(tmp_path, receiver.url, TASKS)
        assert [sending.run_task(task)[0].failed_rows for task in range(TASKS)] == [1] * TASKS
    export._clear(sending.tables)
    pipeline = without_spark(tmp_path / "lakehouse")
    assert export_status(pipeline)["dead"] == {"chunks": 3, "rows": 3}
    failed = sending.tables.failed_calls.open()
    assert failed is not None
    failed.delete("gamer_id = 'p1'")
    assert export_status(pipeline)["dead"] == {"chunks": 2, "rows": 2}
    assert replay_failed_calls(pipeline) == (2, 2)
