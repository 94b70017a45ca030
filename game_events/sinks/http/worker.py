"""Workers' part of sending: a task's chunks are read, POSTed several at a time, and noted in the ledger as it goes.

Guarantee: what the ledger calls delivered was answered 2xx. Who is killed leaves at most `NOTE_EVERY_S` of each task's answers
unnoted; their chunks are sent again, under the same keys. Rows of a dead letter are in their table before the ledger says so.
What a task has not noted when it ends, the driver notes: many tasks end at once, and their commits would wait for each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from game_events.errors import ConflictError, GameEventsError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, file_system
from game_events.lakehouse.data.worker_job import WorkerJob
from game_events.lakehouse.tables import Table
from game_events.pipeline.reporting.export_result import LATENCIES_TOLD, TaskAccount
from game_events.sinks.http.delivery import Calls, ChunkOutcome, client
from game_events.sinks.http.rate_limiter import LimiterAddress, RateLimiter
from game_events.sinks.http.tables import DEAD, DELIVERED, DELIVERIES, ExportTables, dead_letters_schema, outbox_schema, share
from game_events.sinks.http.target import RestTarget

#: Seconds between two commits of a task to the ledger, for each so many tasks at work: their commits meet on one table.
NOTE_EVERY_S, TASKS_FOR_IT = 2.0, 8
#: Rows of the outbox in a task's memory.
ROWS_AT_ONCE = 20_000
APPEND_ATTEMPTS = 20
LEDGER = "What became of each chunk of exported rows"
#: Chunks given up one after the other, none taken between: it is the receiver, not the rows.
GIVEN_UP_IN_A_ROW = 5


@dataclass(frozen=True)
class Sent:
    """What tasks did, and files of the delivery log with what they have not committed."""

    accounts: list[TaskAccount] = field(default_factory=list)
    files: list[StagedFile] = field(default_factory=list)


@dataclass(frozen=True)
class SendChunks(WorkerJob[Sent]):
    """Sends the chunks of tasks, of which each row is the number; picklable.

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
        limiter: rate limiter of the calls; None: there is no limit.
    """

    result: ClassVar[type] = Sent
    tables: ExportTables
    target: RestTarget
    files: Sequence[str]
    slice: int
    chunks: npt.NDArray[np.int64] = field(repr=False)
    rows: npt.NDArray[np.int64] = field(repr=False)
    tasks: int
    run: int
    run_id: str
    limiter: LimiterAddress | None = None

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Send the chunks of these tasks."""
        context = TaskContext.get()
        again = context is not None and context.attemptNumber() > 0
        sent = Sent()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                account, files = self.run_task(task, again=again)
                sent.accounts.append(account)
                sent.files.extend(files)
        return sent

    def run_task(self, task: int, *, again: bool = False) -> tuple[TaskAccount, list[StagedFile]]:
        """Send one task's share; `again`: an attempt before this one may have sent some of it.

        Returns:
            what it did, and files of the ledger with what it has not noted yet (`note`).
        """
        mine = share(self.chunks, task, self.tasks)
        counts = share(self.rows, task, self.tasks)
        if again:
            done = self.tables.settled(self.tables.deliveries.open(), self.slice)
            done = done.filter(pc.equal(done.column("slice"), self.slice)).column("chunk").to_numpy()
            left = ~np.isin(mine, done)
            mine, counts = mine[left], counts[left]
        return asyncio.run(_Task(self, task, mine, counts).run())

    def note(self, files: Sequence[StagedFile]) -> None:
        """The driver's part: one commit of what the tasks had not noted when they ended.

        Raises:
            ConflictError: another run has taken over.
        """
        if files:
            _add(self.tables.deliveries, DELIVERIES, files, {Txn.EXPORT_RUN: self.run}, LEDGER)


@dataclass
class _Result:
    chunk: pa.Table
    outcome: ChunkOutcome
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

    async def run(self) -> tuple[TaskAccount, list[StagedFile]]:
        """Send, and return what was done; a project's error as a value: raised, it would reach the driver as mere text."""
        account, files = self._account, list[StagedFile]()
        try:
            await self._send()
            files = self._hand_over()
        except GameEventsError as error:
            account.stopped, account.kind = str(error), type(error).__name__
        account.ended = time.time()
        return account, files

    async def _send(self) -> None:
        job, target, account = self._job, self._job.target, self._account
        async with RateLimiter(job.limiter) as limiter, client(target, limit=target.calls, keepalive_timeout=30) as session:
            calls = Calls(target, session, limiter)
            await asyncio.gather(*(self._work(calls) for _ in range(target.calls)))
            account.answers, account.calls = dict(calls.answers), calls.answers.total()
            account.latencies = calls.latencies[:: max(1, len(calls.latencies) // LATENCIES_TOLD)]
            if account.stopped is None and self._error is None:
                self._results += self._doubtful
            if self._error is not None or not all(result.outcome.taken for result in self._results):
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
                failpoints.reach("rest_answered", self._number)
                await asyncio.to_thread(self._commit, results)
                self._count(results)

    def _hand_over(self) -> list[StagedFile]:
        """What is left, as files that the driver commits."""
        results, self._results = self._results, []
        if not results:
            return []
        failpoints.reach("rest_answered", self._number)
        files = _staged(self._job.tables.deliveries, self._heads(results))
        self._count(results)
        return files

    def _count(self, results: Sequence[_Result]) -> None:
        account = self._account
        for result in results:
            taken, rows = result.outcome.taken, result.chunk.num_rows
            account.delivered += rows * taken
            account.dead += rows * (not taken)
            account.delivered_calls += taken
            account.dead_calls += not taken

    def _commit(self, results: Sequence[_Result]) -> None:
        tables, job = self._job.tables, self._job
        dead = [r for r in results if not r.outcome.taken]
        if dead:
            rows = pa.concat_tables([r.chunk for r in dead])
            said = [
                _said(r, job.run_id) | {"reason": r.outcome.reason, "answer": r.outcome.answer}
                for r in dead
                for _ in range(r.chunk.num_rows)
            ]
            _append(
                tables.dead_letters,
                _with(rows, said, dead_letters_schema(tables.person)),
                {},
                "Rows of chunks that the receiver refused, or did not take in time",
            )
        _append(tables.deliveries, self._heads(results), {Txn.EXPORT_RUN: job.run}, LEDGER)

    def _heads(self, results: Sequence[_Result]) -> pa.Table:
        """Rows of the ledger."""
        heads = pa.concat_tables([result.chunk.slice(0, 1) for result in results])
        said = [_said(r, self._job.run_id) | {"outcome": DELIVERED if r.outcome.taken else DEAD} for r in results]
        return _with(heads, said, DELIVERIES)


def _said(result: _Result, run_id: str) -> dict[str, Any]:
    outcome = result.outcome
    return {"status": outcome.status, "attempts": outcome.attempts, "at": result.at, "run_id": run_id}


def _with(rows: pa.Table, more: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows with further columns, of values for each row."""
    arrays = [
        pa.chunked_array([pa.array([values[f.name] for values in more], f.type)])
        if f.name in more[0]
        else rows.column(f.name).cast(f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _append(table: Table, rows: pa.Table, expected: dict[str, int | None], description: str) -> None:
    """Append rows; rivals that append too are no conflict, another run in charge is.

    Raises:
        ConflictError: another run has taken over, or others won every attempt.
    """
    for attempt in range(APPEND_ATTEMPTS):
        try:
            _add(table, rows.schema, _staged(table, rows), expected, description)
            return
        except ConflictError:
            # Of many that append at once, or make the table, one has to come again.
            if attempt == APPEND_ATTEMPTS - 1 or _taken_over(table, expected):
                raise


def _staged(table: Table, rows: pa.Table) -> list[StagedFile]:
    writer = StagedWriter(table, rows.schema)
    writer.write(rows)
    return writer.close()


def _add(
    table: Table, schema: pa.Schema, files: Sequence[StagedFile], expected: dict[str, int | None], description: str
) -> None:
    """One attempt to append files; they are deleted if it fails."""
    handle = table.open()
    table_id = str(handle.metadata().id) if handle is not None else None
    try:
        commit(Commit(table, schema, files, expected, {}, table_id, description=description))
    except ConflictError as error:
        if _taken_over(table, expected):
            raise ConflictError("another run of the export has taken over: this one stops") from error
        raise


def _taken_over(table: Table, expected: dict[str, int | None]) -> bool:
    now = table.open()
    return now is not None and any(now.transaction_version(app) != value for app, value in expected.items())


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
            # Many tasks share few cores: threads would only wait for each other.
            pq.read_table(prefix + path, columns=names, filesystem=system, filters=bounds, partitioning=None, use_threads=False)
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
