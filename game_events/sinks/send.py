"""Workers' part of sending: a task's chunks are read, POSTed several at a time, and noted in the ledger as it goes.

Guarantee: what the ledger calls delivered was answered 2xx. A task that is killed leaves at most `NOTE_EVERY_S` of answers
unnoted; their chunks are sent again, under the same keys. Rows of a dead letter are in their table before the ledger says so.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from game_events.errors import ConflictError, GameEventsError
from game_events.lakehouse import crash_points
from game_events.lakehouse.commits import Commit, commit
from game_events.lakehouse.staging import StagedWriter, file_system, report
from game_events.lakehouse.tables import Table
from game_events.pipeline.export_account import LATENCIES_TOLD, TaskAccount
from game_events.sinks.calls import Calls, Outcome
from game_events.sinks.export_tables import (
    DEAD,
    DELIVERED,
    DELIVERIES,
    RUN_APP,
    ExportTables,
    dead_letters_schema,
    outbox_schema,
    share,
)
from game_events.sinks.permits import PermitAddress, Permits
from game_events.sinks.target import RestTarget

#: Seconds between two commits of a task to the ledger, for each so many tasks at work: their commits meet on one table.
NOTE_EVERY_S, TASKS_FOR_IT = 2.0, 8
#: Rows of the outbox in a task's memory.
ROWS_AT_ONCE = 20_000
APPEND_ATTEMPTS = 20
#: Chunks given up one after the other, none taken between: it is the receiver, not the rows.
GIVEN_UP_IN_A_ROW = 5


@dataclass(frozen=True)
class SendChunks:
    """For `mapInArrow`; picklable.

    Attributes:
        tables: the export's tables.
        target: where to.
        files: paths of the outbox's files.
        slice: which slice is sent.
        chunks: its chunks that wait, in order.
        rows: rows of each.
        tasks: number of tasks that share them.
        run: `txn` of the ledger as this run has set it.
        run_id: who sends.
        permits: whom to ask before each call; None: nobody.
    """

    tables: ExportTables
    target: RestTarget
    files: Sequence[str]
    slice: int
    chunks: npt.NDArray[np.int64] = field(repr=False)
    rows: npt.NDArray[np.int64] = field(repr=False)
    tasks: int
    run: int
    run_id: str
    permits: PermitAddress | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each row that comes is the number of a task; yields what it did (`REPORT_SCHEMA`)."""
        context = TaskContext.get()
        again = context is not None and context.attemptNumber() > 0
        for batch in batches:
            done = [self.run_task(task, again=again) for task in batch.column(0).to_pylist()]
            yield report(("task", json.dumps(asdict(account))) for account in done)

    def run_task(self, task: int, *, again: bool = False) -> TaskAccount:
        """Send one task's share; `again`: an attempt before this one may have sent some of it."""
        mine = share(self.chunks, task, self.tasks)
        counts = share(self.rows, task, self.tasks)
        if again:
            done = self.tables.settled(self.tables.deliveries.open(), self.slice)
            done = done.filter(pc.equal(done.column("slice"), self.slice)).column("chunk").to_numpy()
            left = ~np.isin(mine, done)
            mine, counts = mine[left], counts[left]
        return asyncio.run(_Task(self, task, mine, counts).run())


@dataclass
class _Result:
    chunk: pa.Table
    outcome: Outcome
    at: datetime


class _Task:
    """One task at work."""

    def __init__(self, job: SendChunks, number: int, mine: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        self._job, self._number = job, number
        self._chunks = _read(job, mine, counts)
        self._results: list[_Result] = []
        self._noted = time.monotonic()
        self._noting = asyncio.Lock()
        self._doubtful: list[_Result] = []
        self._account = TaskAccount(began=time.time())
        self._error: Exception | None = None

    async def run(self) -> TaskAccount:
        """Send, and tell what was done; an error of this project's own as a value: it would come to the driver as mere text."""
        account = self._account
        try:
            await self._send()
        except GameEventsError as error:
            account.stopped, account.kind = str(error), type(error).__name__
        account.ended = time.time()
        return account

    async def _send(self) -> None:
        job, target, account = self._job, self._job.target, self._account
        connector = aiohttp.TCPConnector(limit=target.calls, ssl=target.trust(), keepalive_timeout=30)
        timeout = aiohttp.ClientTimeout(total=target.timeout_s)
        async with (
            Permits(job.permits) as permits,
            aiohttp.ClientSession(connector=connector, timeout=timeout, headers=target.headers) as session,
        ):
            calls = Calls(target, session, permits)
            await asyncio.gather(*(self._work(calls) for _ in range(target.calls)))
            account.answers, account.calls = dict(calls.answers), calls.answers.total()
            account.latencies = calls.latencies[:: max(1, len(calls.latencies) // LATENCIES_TOLD)]
            if account.stopped is None:
                self._results += self._doubtful
            await self._note()
        if self._error is not None:
            raise self._error

    async def _work(self, calls: Calls) -> None:
        """One of the calls that are under way at the same time."""
        try:
            while self._account.stopped is None and self._error is None:
                chunk = next(self._chunks, None)
                if chunk is None:
                    return
                rows = chunk.column("json").to_pylist()
                body = rows[0] if calls.target.as_object else f"[{','.join(rows)}]"
                outcome = await calls.deliver(chunk.column("key")[0].as_py(), body.encode())
                self._settle(_Result(chunk, outcome, datetime.now(UTC)))
                if time.monotonic() - self._noted >= NOTE_EVERY_S * max(1.0, self._job.tasks / TASKS_FOR_IT):
                    await self._note()
        except Exception as error:  # noqa: BLE001 - the other calls end first, and what they delivered is noted
            self._error = self._error or error

    def _settle(self, result: _Result) -> None:
        """Note what became of a chunk, or leave it, and the rest of the task, to a run that fares better.

        Whether a call that was not taken in all its attempts is the rows' fault or the receiver's, the next ones tell.
        """
        outcome, account = result.outcome, self._account
        if outcome.locked_out:
            account.stopped, account.kind = f"the receiver does not let us in: {outcome.reason}", "ConfigurationError"
        elif outcome.taken:
            self._results += [*self._doubtful, result]
            self._doubtful = []
        elif outcome.for_good:
            self._results.append(result)
        else:
            self._doubtful.append(result)
            if len(self._doubtful) >= GIVEN_UP_IN_A_ROW:
                account.stopped = f"{len(self._doubtful)} calls in a row were {outcome.reason}"

    async def _note(self) -> None:
        """Commit what is known by now; the other calls go on meanwhile."""
        async with self._noting:
            results, self._results = self._results, []
            self._noted = time.monotonic()
            if results:
                crash_points.reach("rest_answered", self._number)
                await asyncio.to_thread(self._commit, results)
                for result in results:
                    taken, rows = result.outcome.taken, result.chunk.num_rows
                    self._account.delivered += rows * taken
                    self._account.dead += rows * (not taken)
                    self._account.delivered_calls += taken
                    self._account.dead_calls += not taken

    def _commit(self, results: Sequence[_Result]) -> None:
        tables, job = self._job.tables, self._job
        dead = [r for r in results if not r.outcome.taken]
        if dead:
            schema = dead_letters_schema(tables.person)
            parts = [
                _with(r.chunk, {**_said(r, job.run_id), "reason": r.outcome.reason, "answer": r.outcome.answer}, schema)
                for r in dead
            ]
            _append(
                tables.dead_letters,
                pa.concat_tables(parts),
                {},
                "Rows of chunks that the receiver refused, or did not take in time",
            )
        heads = [
            _with(r.chunk.slice(0, 1), {**_said(r, job.run_id), "outcome": DELIVERED if r.outcome.taken else DEAD}, DELIVERIES)
            for r in results
        ]
        _append(tables.deliveries, pa.concat_tables(heads), {RUN_APP: job.run}, "What became of each chunk of exported rows")


def _said(result: _Result, run_id: str) -> dict[str, Any]:
    outcome = result.outcome
    return {"status": outcome.status, "attempts": outcome.attempts, "at": result.at, "run_id": run_id}


def _with(rows: pa.Table, more: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Rows with further columns, each of one value."""
    arrays = [
        rows.column(f.name).cast(f.type)
        if f.name in rows.column_names and f.name not in more
        else pa.chunked_array([pa.repeat(pa.scalar(more.get(f.name), f.type), rows.num_rows)])
        for f in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _append(table: Table, rows: pa.Table, expected: dict[str, int | None], description: str) -> None:
    """Append rows; rivals that append too are no conflict, another run in charge is.

    Raises:
        ConflictError: another run has taken over, or others won every attempt.
    """
    for attempt in range(APPEND_ATTEMPTS):
        handle = table.open()
        writer = StagedWriter(table, rows.schema)
        writer.write(rows)
        table_id = str(handle.metadata().id) if handle is not None else None
        try:
            commit(Commit(table, rows.schema, writer.close(), expected, {}, table_id, description=description))
            return
        except ConflictError as error:
            now = table.open()
            others = now is not None and any(now.transaction_version(app) != value for app, value in expected.items())
            if others:
                raise ConflictError("another run of the export has taken over: this one stops") from error
            # Of many that append at once, or make the table, one has to come again.
            if attempt == APPEND_ATTEMPTS - 1:
                raise


def _read(job: SendChunks, mine: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    """A task's chunks, one after the other; what an erasure has emptied is left out."""
    names = outbox_schema(job.tables.person).names
    system, prefix = file_system(job.tables.outbox)
    at = 0
    while at < len(mine):
        end = max(at + 1, int(np.searchsorted(np.cumsum(counts[at:]), ROWS_AT_ONCE, side="right")) + at)
        wanted = mine[at:end]
        bounds = [("slice", "=", job.slice), ("chunk", ">=", int(wanted[0])), ("chunk", "<=", int(wanted[-1]))]
        parts = [
            pq.read_table(prefix + path, columns=names, filesystem=system, filters=bounds, partitioning=None)
            for path in job.files
        ]
        rows = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
        rows = rows.filter(pc.is_in(rows.column("chunk"), value_set=pa.array(wanted)))
        rows = rows.sort_by([("chunk", "ascending"), ("number", "ascending")]).combine_chunks()
        numbers = rows.column("chunk").to_numpy()
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for begin, until in zip(starts, [*starts[1:], len(numbers)], strict=True):
            yield rows.slice(int(begin), int(until - begin))
        at = end
