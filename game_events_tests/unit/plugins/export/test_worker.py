"""Tasks at work on an outbox, without Spark: what it adds is tried in test_export.py."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConflictError, TransientError
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.tables import Lakehouse, paths
from game_events.plugins.export.chunks import ExportTables, outbox_schema
from game_events.plugins.export.delivery import RestTarget, retry_after_s
from game_events.plugins.export.rate_limiter import (
    LOOPBACK,
    STRANGERS,
    LimiterAddress,
    RateLimiterServer,
    RateWindow,
    limiter_host,
)
from game_events.plugins.export.result import Export
from game_events.plugins.export.run import _take_over, commit_slice, next_slice
from game_events.plugins.export.worker import CutChunks, SendChunks
from game_events_tests.support.servers.rest_receiver import receiving
from game_events_tests.support.waiting import until
from game_events_tests.unit.plugins.export.test_chunks import ORIGINS, rows

TASKS = 3


def job(folder: Path, url: str, chunks: int, limiter: LimiterAddress | None = None, **settings: object) -> SendChunks:
    """So many chunks of one row, fixed and not sent."""
    tables = ExportTables.of(Lakehouse(str(folder / "lakehouse")), "gamer_id")
    number = next_slice(tables, None)
    writer = StagedWriter(tables.outbox, outbox_schema("gamer_id"))
    for part in CutChunks(tables.outbox, "gamer_id", number, 1, 10_000, ORIGINS).cut([rows(*[10] * chunks)], 0):
        writer.write(part)
    commit_slice(tables, None, writer.close(), {}, {})
    outbox = tables.outbox.open()
    assert outbox is not None
    waiting = tables.waiting(outbox, tables.deliveries.open())
    numbers, counts = (waiting.column(name).to_numpy().astype(np.int64) for name in ("chunk", "rows"))
    target = RestTarget.of(load_settings(rest_url=url, **settings))
    return SendChunks(
        tables, target, paths(outbox), number, numbers, counts, TASKS, _take_over(tables, "a run"), "a run", limiter
    )


def test_the_cap_over_all_tasks_holds_in_every_second_at_the_receiver(tmp_path: Path):
    # This machine may be so busy that calls take longer to arrive than the guarantee assumes.
    limit = RateWindow.of(40, 0, grace_s=30.0)
    with receiving(tmp_path / "log", latency_ms=20) as receiver, RateLimiterServer(limit, LOOPBACK) as limiter:
        sending = job(tmp_path, receiver.url, 120, limiter)
        with ThreadPoolExecutor(TASKS) as pool:
            done = list(pool.map(sending.run_task, range(TASKS)))
        sending.note([file for _, files in done for file in files])
        account = Export()
        account.add([task for task, _ in done])
        assert (account.delivered_rows, account.delivered_chunks, account.calls, account.tasks) == (120, 120, 120, TASKS)
        assert receiver.busiest(1.0) <= 40
        assert sending.tables.waiting(sending.tables.outbox.open(), sending.tables.deliveries.open()).num_rows == 0


def test_an_attempt_of_spark_after_another_sends_only_what_is_not_noted(tmp_path: Path):
    with receiving(tmp_path / "log") as receiver:
        sending = job(tmp_path, receiver.url, 9)
        first, files = sending.run_task(0)
        sending.note(files)
        assert [first.delivered, sending.run_task(0, again=True)[0].delivered] == [3, 0]
        assert [sending.run_task(n, again=True)[0].delivered for n in (1, 2)] == [3, 3]
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
        assert sending.tables.waiting(sending.tables.outbox.open(), ledger).num_rows == 0
        _take_over(sending.tables, "another run")
        with pytest.raises(ConflictError, match="another run of the export has taken over"):
            sending.note(files)


def test_chunks_of_an_outbox_that_was_deleted_and_made_anew_are_not_taken_for_those_that_were_sent_before(tmp_path: Path):
    with receiving(tmp_path / "log") as receiver:
        for chunks in (3, 5):
            sending = job(tmp_path, receiver.url, chunks)
            done = [sending.run_task(task) for task in range(TASKS)]
            sending.note([file for _, files in done for file in files])
            assert sum(account.delivered for account, _ in done) == chunks
            rmtree(sending.tables.outbox.uri)


def test_a_rate_limiter_that_cannot_listen_leaves_no_thread(monkeypatch):
    async def full(*_):
        raise OSError("Too many open files")

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_server", full)
    with pytest.raises(OSError, match="Too many open files"), RateLimiterServer(RateWindow.of(1, 0), LOOPBACK):
        pytest.fail("nobody can ask")
    assert not [thread for thread in threading.enumerate() if thread.name == "rest-rate-limiter"]


def test_who_connects_and_says_nothing_is_sent_away_and_keeps_no_task_from_asking(tmp_path: Path):
    server = RateLimiterServer(RateWindow.of(1_000, 0), LOOPBACK, hello_s=0.5)
    with server as limiter, receiving(tmp_path / "log") as receiver:
        silent = [socket.create_connection((limiter.host, limiter.port)) for _ in range(3 * STRANGERS)]
        silent[-1].sendall(b"x" * 1_000_000)
        account, _ = job(tmp_path, receiver.url, 3, limiter).run_task(0)
        assert (account.delivered, account.stopped) == (1, None)
        for one in silent:
            one.settimeout(30)
            with suppress(ConnectionError):
                while one.recv(65_536):
                    pass  # until the server has ended it
            one.close()


def test_a_task_that_cannot_ask_for_leave_makes_no_call_and_says_which_setting_helps(tmp_path: Path):
    with RateLimiterServer(RateWindow.of(1, 0), LOOPBACK) as limiter:
        gone = limiter
    with receiving(tmp_path / "log") as receiver:
        account, _ = job(tmp_path, receiver.url, 3, gone).run_task(0)
        assert account.kind == TransientError.__name__
        assert "GAME_EVENTS_REST_PERMIT_HOST" in str(account.stopped)
        assert receiver.calls == []


def test_calls_that_are_answered_after_the_run_is_gone_are_noted(tmp_path: Path):
    with receiving(tmp_path / "log", latency_ms=500) as receiver, ThreadPoolExecutor(1) as pool:
        with RateLimiterServer(RateWindow.of(1_000, 0), LOOPBACK) as limiter:
            sending = job(tmp_path, receiver.url, 9, limiter)
            task = pool.submit(sending.run_task, 0)
            until(lambda: len(receiver.calls) == 3, what="the calls")
        account, files = task.result(30)
        assert (account.delivered, sum(file.rows for file in files)) == (3, 3)


def test_calls_that_failed_before_the_run_was_gone_wait_for_the_next_one(tmp_path: Path):
    with receiving(tmp_path / "log", error_share=1.0) as receiver, ThreadPoolExecutor(1) as pool:
        with RateLimiterServer(RateWindow.of(1, 0), LOOPBACK) as limiter:
            sending = job(tmp_path, receiver.url, 9, limiter, rest_calls_per_task=1, rest_max_attempts=1)
            task = pool.submit(sending.run_task, 0)
            until(lambda: receiver.calls, what="the first call")
        account, files = task.result(30)
        assert (account.failed, files) == (0, [])
        assert "gone" in str(account.stopped)
        assert sending.tables.failed_chunks.open() is None


def test_executors_of_this_machine_ask_on_loopback_and_others_by_a_name():
    assert limiter_host(load_settings(spark_master="local[4]")) == LOOPBACK
    for remote in ("sc://localhost:15002", "sc://127.0.0.1:15002/;user_id=x", "unix:/tmp/x/socket"):
        assert limiter_host(load_settings(spark_remote=remote)) == LOOPBACK
    assert limiter_host(load_settings(spark_master="spark://cluster:7077")) != LOOPBACK
    assert limiter_host(load_settings(spark_master="spark://cluster:7077", rest_permit_host="driver-1")) == "driver-1"


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
