"""Tasks at work on planned calls, without Spark: what it adds is tried in test_export.py."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConflictError
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.tables import Lakehouse, paths
from game_events.plugins.export import worker
from game_events.plugins.export.delivery import GRACE_S, ExportTarget, RateWindow, retry_after_s
from game_events.plugins.export.run import Export, _take_over, commit_slice, next_slice
from game_events.plugins.export.tables import ExportTables, planned_schema
from game_events.plugins.export.worker import CutChunks, SendChunks
from game_events_tests.support.servers.rest_receiver import receiving
from game_events_tests.unit.plugins.export.test_chunks import ORIGINS, rows

TASKS = 3


def job(folder: Path, url: str, chunks: int, tasks: int = TASKS, **settings: object) -> SendChunks:
    """So many chunks of one row, fixed and not sent."""
    tables = ExportTables.of(Lakehouse(str(folder / "lakehouse")), "gamer_id")
    before = tables.planned.open()
    number = next_slice(tables, before)
    writer = StagedWriter(tables.planned, planned_schema("gamer_id"))
    for part in CutChunks(tables.planned, "gamer_id", number, 1, 10_000, ORIGINS).cut([rows(*[10] * chunks)], 0):
        writer.write(part)
    commit_slice(tables, before, writer.close(), {}, {})
    planned = tables.planned.open()
    assert planned is not None
    waiting = tables.waiting(planned, tables.deliveries.open())
    numbers, counts = (waiting.column(name).to_numpy().astype(np.int64) for name in ("chunk", "rows"))
    target = ExportTarget.of(load_settings(rest_url=url, **settings))
    run = _take_over(tables, "a run")
    return SendChunks(tables, target, paths(planned), number, numbers, counts, tasks, run, "a run")


def test_tasks_share_the_chunks_and_their_results_are_one(tmp_path: Path):
    with receiving(tmp_path / "log", latency_ms=20) as receiver:
        sending = job(tmp_path, receiver.url, 120)
        with ThreadPoolExecutor(TASKS) as pool:
            done = list(pool.map(sending.run_task, range(TASKS)))
        sending.note([file for _, files in done for file in files])
        account = Export()
        account.add([task for task, _ in done])
        assert (account.delivered_rows, account.delivered_chunks, account.calls, account.tasks) == (120, 120, 120, TASKS)
        assert sending.tables.waiting(sending.tables.planned.open(), sending.tables.deliveries.open()).num_rows == 0


def test_the_cap_holds_in_every_second_at_the_receiver_also_over_two_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # This machine may be so busy that calls take longer to arrive than the guarantee assumes.
    monkeypatch.setattr(worker, "RateWindow", partial(RateWindow, grace_s=30.0))
    with receiving(tmp_path / "log", latency_ms=20) as receiver:
        counted: list[float] = []
        for chunks in (50, 30):
            sending = replace(job(tmp_path, receiver.url, chunks, 1, rest_calls_per_s=40), counted=counted)
            account, files = sending.run_task(0)
            sending.note(files)
            assert (account.delivered_rows, account.calls) == (chunks, chunks)
            counted = account.counted
            assert counted
        assert receiver.busiest(1.0) <= 40


def test_one_task_with_a_cap_has_the_calls_of_all_tasks_under_way():
    settings = {"rest_url": "http://127.0.0.1:1/", "rest_tasks": 3, "rest_calls_per_task": 5}
    assert ExportTarget.of(load_settings(**settings)).calls == 5
    capped = ExportTarget.of(load_settings(**settings, rest_calls_per_min=7))
    assert (capped.calls, capped.limits) == (15, ((7, 60.0),))


def test_a_receiver_that_throttles_fails_hangs_and_closes_gets_every_chunk_also_with_a_cap(tmp_path: Path):
    faults = {"throttle_share": 0.1, "error_share": 0.2, "hang_share": 0.1, "close_share": 0.2}
    quick = {"rest_retry_delay_s": 0.02, "rest_timeout_s": 0.4, "rest_max_attempts": 30}
    with receiving(tmp_path / "log", **faults, retry_after_s=1, seed=4) as receiver:
        account, _ = job(tmp_path, receiver.url, 20, 1, rest_calls_per_s=1_000, **quick).run_task(0)
        assert (account.delivered_rows, account.stopped) == (20, None)
        assert account.calls == len(receiver.calls)
        assert account.answers.keys() == {"200", "429", "503", "timeout", "connection broken"}


def test_a_task_that_spark_tries_again_lets_a_window_pass_as_it_does_not_know_the_calls_of_the_attempt_before(tmp_path: Path):
    with receiving(tmp_path / "log") as receiver:
        sending = job(tmp_path, receiver.url, 2, 1, rest_calls_per_s=2)
        began = time.time()
        assert sending.run_task(0, again=True)[0].delivered_rows == 2
        assert receiver.calls[0]["time"] - began > 1.0 + GRACE_S


def test_an_attempt_of_spark_after_another_sends_only_what_is_not_noted(tmp_path: Path):
    with receiving(tmp_path / "log") as receiver:
        sending = job(tmp_path, receiver.url, 9)
        first, files = sending.run_task(0)
        sending.note(files)
        assert [first.delivered_rows, sending.run_task(0, again=True)[0].delivered_rows] == [3, 0]
        assert [sending.run_task(n, again=True)[0].delivered_rows for n in (1, 2)] == [3, 3]
        assert len(receiver.calls) == 9


def test_what_tasks_had_not_noted_when_they_ended_is_one_commit_and_none_if_another_run_has_taken_over(tmp_path: Path):
    with receiving(tmp_path / "log") as receiver:
        sending = job(tmp_path, receiver.url, 9)
        before = sending.tables.deliveries.open()
        assert before is not None
        files = [file for task in range(TASKS) for file in sending.run_task(task)[1]]
        ledger = sending.tables.deliveries.open()
        assert ledger is not None
        assert ledger.version() == before.version(), "tasks that end at once do not wait for each other's commits"
        sending.note(files)
        ledger = sending.tables.deliveries.open()
        assert ledger is not None
        assert ledger.version() == before.version() + 1
        assert sending.tables.waiting(sending.tables.planned.open(), ledger).num_rows == 0
        _take_over(sending.tables, "another run")
        with pytest.raises(ConflictError, match="another run of the export has taken over"):
            sending.note(files)


def test_chunks_of_a_table_that_was_deleted_and_made_anew_are_not_taken_for_those_that_were_sent_before(tmp_path: Path):
    with receiving(tmp_path / "log") as receiver:
        for chunks in (3, 5):
            sending = job(tmp_path, receiver.url, chunks)
            done = [sending.run_task(task) for task in range(TASKS)]
            sending.note([file for _, files in done for file in files])
            assert sum(account.delivered_rows for account, _ in done) == chunks
            rmtree(sending.tables.planned.uri)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [("3", 3, 3), ("0", 0, 0), ("Sun, 06 Nov 1994 08:49:37 GMT", 0, 0), ("Fri, 31 Dec 2999 23:59:59 GMT", 1e9, 1e11)],
)
def test_a_time_to_come_back_is_seconds_or_a_date(value: str, low: float, high: float):
    found = retry_after_s(value)
    assert found is not None
    assert low <= found <= high


@pytest.mark.parametrize(
    "value",
    [
        None,
        "soon",
        "-1",
        "",
        "²",
        "Wed, 21 Oct 2015 07:28:00 +99999999999999999999",
        "Wed, 21 Oct 9999999 07:28:00 GMT",
    ],
)
def test_what_is_no_time_is_none(value: str | None):
    assert retry_after_s(value) is None
