"""What Spark's workers do for an export: cut rows into chunks, and send them.

Cutting: a task writes the chunks of its sorted rows as files of the planned calls.

Sending: each task reads its chunks, POSTs several at a time, and commits outcomes to the delivery log. With a rate limit one
task sends all chunks, and counts its calls itself.

Guarantee: a chunk that the log has as delivered was answered 2xx. A killed run loses at most `NOTE_EVERY_S` of each task's
answers; these chunks are sent again, under the same keys. A failed call's rows are committed before its outcome. The driver
commits a task's last outcomes: many tasks end at once, and their commits would wait for each other.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from operator import add
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
from game_events.lakehouse.commits.transactions import Txn, txns
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, file_system, staged
from game_events.lakehouse.tables import Table, table_id
from game_events.plugins.export.delivery import LOCKED_OUT, Calls, ChunkOutcome, ExportTarget, RateWindow, client
from game_events.plugins.export.tables import (
    CHUNK,
    DELIVERED,
    DELIVERIES,
    FAILED,
    OUTCOME,
    ChunkOrigin,
    ExportTables,
    failed_calls_schema,
    planned_schema,
)
from game_events.workers.job import WorkerJob
from game_events.workers.results import add_counts, extend, merged

#: Bits of a chunk's number that count within a task; the task's number is above them.
COUNT_BITS = 32

KEY_CHARS = 32

#: Rows of a row group: each task that sends opens every file and reads those with its share.
GROUP_ROWS = 2_048


@dataclass(frozen=True)
class Cut:
    """Files of planned calls, and the number of chunks in them."""

    files: list[StagedFile]
    chunks: int


@dataclass(frozen=True)
class CutChunks(WorkerJob[Cut]):
    """Writes chunks of rows (`tables.ROWS`) of groups with some origins as files of the next slice of planned calls; picklable.

    A chunk is limited by number of rows and by bytes of JSON; a larger row is a chunk by itself. Its key is a hash of its rows'
    origin: rows that are planned again after a loss of the planned calls get the same key.
    """

    result: ClassVar[type] = Cut
    table: Table
    person: str
    slice: int
    rows_per_call: int
    bytes_per_call: int
    origins: Mapping[str, ChunkOrigin] = field(repr=False)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Cut:
        """Write a task's chunks."""
        context = TaskContext.get()
        writer = StagedWriter(self.table, planned_schema(self.person), group_rows=GROUP_ROWS)
        chunks = 0
        for rows in self.cut((pa.Table.from_batches([b]) for b in batches), context.partitionId() if context else 0):
            writer.write(rows)
            chunks += pc.count_distinct(rows.column("chunk")).as_py()
        return Cut(writer.close(), chunks)

    def cut(self, parts: Iterable[pa.Table], task: int) -> Iterator[pa.Table]:
        """Rows of planned calls; a chunk may span several parts."""
        left: pa.Table | None = None
        number = task << COUNT_BITS
        positions = dict.fromkeys(self.origins, 0)
        for part in parts:
            rows = part if left is None else pa.concat_tables([left, part])
            starts = self._starts(rows)
            # The last one may go on.
            whole = int(starts[-1]) if len(starts) else 0
            if whole:
                yield self._chunks(rows.slice(0, whole), starts[:-1], number, positions)
                number += len(starts) - 1
            left = rows.slice(whole)
        if left is not None and left.num_rows:
            yield self._chunks(left, self._starts(left), number, positions)

    def _starts(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Row at which each chunk begins."""
        if not rows.num_rows:
            return np.empty(0, dtype=np.int64)
        sizes = _sizes(rows)
        groups = rows.column("_group").combine_chunks()
        changed = pc.not_equal(groups.slice(1), groups.slice(0, len(groups) - 1)).to_numpy(zero_copy_only=False)
        bounds = np.concatenate([[0], np.flatnonzero(changed) + 1, [rows.num_rows]])
        ends = np.cumsum(sizes)
        starts: list[int] = []
        for begin, end in pairwise(bounds.tolist()):
            at = begin
            while at < end:
                starts.append(at)
                limit = (ends[at - 1] if at else 0) + self.bytes_per_call - 1
                fits = int(np.searchsorted(ends, limit, side="right"))
                at = max(at + 1, min(fits, at + self.rows_per_call, end))
        return np.asarray(starts, dtype=np.int64)

    def _chunks(self, rows: pa.Table, starts: npt.NDArray[np.int64], number: int, positions: dict[str, int]) -> pa.Table:
        counts = np.diff(np.append(starts, rows.num_rows))
        chunks = pa.Table.from_pylist(list(self._of_chunks(rows, starts, counts, number, positions)), schema=CHUNK)
        planned = chunks.take(np.repeat(np.arange(len(starts)), counts))
        columns = dict(zip(planned.column_names, planned.columns, strict=True))
        columns["number"] = pa.array(np.arange(rows.num_rows) - np.repeat(starts, counts))
        columns |= {self.person: rows.column("_person"), "json": rows.column("json"), "_kafka_topic": rows.column("_place")}
        columns |= {name: rows.column(name) for name in ("_kafka_partition", "_kafka_offset", "_batch")}
        return pa.Table.from_pydict(columns, schema=planned_schema(self.person))

    def _of_chunks(
        self,
        rows: pa.Table,
        starts: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        number: int,
        positions: dict[str, int],
    ) -> Iterator[dict[str, Any]]:
        """Each chunk, in the columns of `CHUNK`; `positions`: rows of each group before, which this continues."""
        firsts = _coordinates(rows.take(pa.array(starts)))
        lasts = _coordinates(rows.take(pa.array(starts + counts - 1)))
        groups = rows.column("_group").take(pa.array(starts)).to_pylist()
        sizes = np.add.reduceat(_sizes(rows), starts) + 1
        for at, group in enumerate(groups):
            origin = self.origins[group]
            count = int(counts[at])
            # Rows without coordinates are named by their position among those that the batches have changed.
            first = firsts[at] or f"#{positions[group]}"
            last = lasts[at] or f"#{positions[group] + count - 1}"
            positions[group] += count
            yield {
                "slice": self.slice,
                "chunk": number + at,
                "key": _key(origin, first, last),
                "source": origin.source,
                "game": origin.game,
                "batch_from": origin.batch_from,
                "batch_to": origin.batch_to,
                "first": first,
                "last": last,
                "rows": count,
                "bytes": int(sizes[at]),
            }


def _sizes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Bytes of each row in an array: its JSON, and the comma or bracket behind it."""
    return np.asarray(pc.binary_length(rows.column("json")).to_numpy(), dtype=np.int64) + 1


def _coordinates(rows: pa.Table) -> list[str | None]:
    """Coordinates of rows, as text; None: the row has none."""
    texts: list[str | None] = []
    for row in rows.select(["_place", "_kafka_partition", "_kafka_offset"]).to_pylist():
        offset = row["_kafka_offset"]
        partition = row["_kafka_partition"]
        if offset is None:
            texts.append(None)
        else:
            texts.append(f"@{offset}" if partition is None else f"{row['_place']}[{partition}]@{offset}")
    return texts


def _key(origin: ChunkOrigin, first: str, last: str) -> str:
    parts = (origin.source, origin.era, origin.batch_from, origin.batch_to, first, last)
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:KEY_CHARS]


APPEND_ATTEMPTS = 20

DELIVERY_LOG = "Outcome of each chunk of exported rows"


@dataclass
class ChunkResult:
    """A chunk, and its outcome at a time."""

    chunk: pa.Table
    outcome: ChunkOutcome
    at: datetime


def about(results: Sequence[ChunkResult], run_id: str, schema: pa.Schema, count: int | None = None) -> pa.Table:
    """The first `count` rows (None: all) of each chunk, with the columns of its outcome."""
    parts = [result.chunk.slice(0, count) for result in results]
    outcomes = [
        {"outcome": DELIVERED if result.outcome.taken else FAILED, "at": result.at, "run_id": run_id}
        | {name: getattr(result.outcome, name) for name in ("status", "attempts", "reason", "answer")}
        for result in results
    ]
    more = pa.Table.from_pylist(outcomes, schema=OUTCOME)
    more = more.take(np.repeat(np.arange(len(results)), [part.num_rows for part in parts]))
    rows = pa.concat_tables(parts)
    for name in more.column_names:
        rows = rows.append_column(name, more.column(name))
    return rows.select(schema.names).cast(schema)


def append(table: Table, rows: pa.Table, expected: dict[str, int | None], description: str) -> None:
    """Append rows, again after a conflict with another append; otherwise as `append_files`."""
    for left in reversed(range(APPEND_ATTEMPTS)):
        try:
            append_files(table, rows.schema, staged(table, rows), expected, description)
            return
        except ConflictError:
            if not left or _taken_over(table, expected):
                raise


def append_files(
    table: Table, schema: pa.Schema, files: Sequence[StagedFile], expected: dict[str, int | None], description: str
) -> None:
    """Append files.

    Raises:
        ConflictError: another run has taken over (`expected`), or another writer was faster; the files are deleted.
    """
    try:
        commit(Commit(table, schema, files, expected, {}, table_id(table.open()), description=description))
    except ConflictError as error:
        if _taken_over(table, expected):
            raise ConflictError("another run of the export has taken over: this one stops") from error
        raise


def _taken_over(table: Table, expected: dict[str, int | None]) -> bool:
    now = table.open()
    return now is not None and txns(now, expected) != expected


#: Seconds between two commits of a task to the delivery log, per `TASKS_FOR_IT` tasks, as all commit to one table.
NOTE_EVERY_S = 2.0
TASKS_FOR_IT = 8

#: Planned rows in a task's memory.
ROWS_AT_ONCE = 20_000

#: Consecutive chunks without success after which the receiver is at fault, not the rows.
FAILED_IN_A_ROW = 5

#: Latencies that a task reports.
LATENCIES_REPORTED = 200


@dataclass
class SentCounts:
    """What was sent.

    Attributes:
        delivered_rows, delivered_chunks: accepted by the receiver.
        failed_rows, failed_calls: refused, or accepted in none of their attempts.
        calls: attempts; `answers`: status, or kind of failure -> attempts.
        latencies: seconds of some answered calls.
    """

    delivered_rows: int = merged(add, int)
    delivered_chunks: int = merged(add, int)
    failed_rows: int = merged(add, int)
    failed_calls: int = merged(add, int)
    calls: int = merged(add, int)
    answers: dict[str, int] = merged(add_counts, dict)
    latencies: list[float] = merged(extend, list)


@dataclass
class TaskAccount(SentCounts):
    """Result of one task that sends.

    Attributes:
        began, ended: seconds since 1970.
        counted: with a rate limit: calls that still count at the end (`RateWindow.ages`).
        stopped: why it stopped before its chunks were sent, if so.
        kind: class of that error.
    """

    began: float = 0.0
    ended: float = 0.0
    counted: list[float] = field(default_factory=list)
    stopped: str | None = None
    kind: str = "TransientError"


@dataclass(frozen=True)
class Sent:
    """Results of tasks, and files of the delivery log that are not committed yet."""

    accounts: list[TaskAccount]
    files: list[StagedFile]


@dataclass(frozen=True)
class SendChunks(WorkerJob[Sent]):
    """Sends the chunks of tasks, of which each row is the number; picklable.

    Attributes:
        files: paths of the files of planned calls.
        chunks, rows: waiting chunks of the slice with the number `slice`, in order, and the number of rows of each.
        tasks: number of tasks.
        run: this run's `txn` of the delivery log.
        counted: with a rate limit: this run's calls before that still count (`RateWindow.ages`).
    """

    result: ClassVar[type] = Sent
    tables: ExportTables
    target: ExportTarget
    files: Sequence[str]
    slice: int
    chunks: npt.NDArray[np.int64] = field(repr=False)
    rows: npt.NDArray[np.int64] = field(repr=False)
    tasks: int
    run: int
    run_id: str
    counted: Sequence[float] = ()

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Send the chunks of these tasks."""
        context = TaskContext.get()
        again = context is not None and context.attemptNumber() > 0
        done = [self.run_task(task, again=again) for batch in batches for task in batch.column(0).to_pylist()]
        return Sent([account for account, _ in done], [file for _, files in done for file in files])

    def run_task(self, task: int, *, again: bool = False) -> tuple[TaskAccount, list[StagedFile]]:
        """Send one task's chunks; `again`: an earlier attempt may have sent some of them.

        Returns:
            the task's result, and files of the delivery log that are not committed yet (`note`).
        """
        mine = np.array_split(self.chunks, self.tasks)[task]
        counts = np.array_split(self.rows, self.tasks)[task]
        if again:
            done = self.tables.settled(self.tables.deliveries.open(), self.slice)
            done = done.filter(pc.equal(done.column("slice"), self.slice)).column("chunk").to_numpy()
            left = ~np.isin(mine, done)
            mine = mine[left]
            counts = counts[left]
        return asyncio.run(_Task(self, task, mine, counts, again=again).run())

    def note(self, files: Sequence[StagedFile]) -> None:
        """Commit the tasks' last outcomes, in the driver.

        Raises:
            ConflictError: another run has taken over.
        """
        if files:
            append_files(self.tables.deliveries, DELIVERIES, files, {Txn.EXPORT_RUN: self.run}, DELIVERY_LOG)


class _Task:
    """A running task."""

    def __init__(
        self, job: SendChunks, number: int, mine: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], *, again: bool
    ) -> None:
        self._job = job
        self._number = number
        self._chunks = _read(job, mine, counts)
        # More would have nothing to do.
        self._at_once = min(job.target.calls, len(mine))
        self._window = RateWindow(job.target.limits)
        if again:
            self._window.resume_used_up(time.monotonic())
        else:
            self._window.resume(job.counted, time.monotonic())
        self._results: list[ChunkResult] = []
        self._noted = time.monotonic()
        self._noting = asyncio.Lock()
        self._undecided: list[ChunkResult] = []
        self._account = TaskAccount(began=time.time())
        self._error: Exception | None = None

    async def run(self) -> tuple[TaskAccount, list[StagedFile]]:
        """Send and return the result, errors of this project included: Spark would pass only their text to the driver."""
        account = self._account
        files: list[StagedFile] = []
        try:
            await self._send()
            last = self._known()
            if last:
                files = staged(self._job.tables.deliveries, about(last, self._job.run_id, DELIVERIES, 1))
                self._count(last)
        except GameEventsError as error:
            account.stopped = str(error)
            account.kind = type(error).__name__
        account.counted = self._window.ages(time.monotonic())
        account.ended = time.time()
        return account, files

    async def _send(self) -> None:
        target = self._job.target
        account = self._account
        async with client(target, limit=target.calls, keepalive_timeout=30) as session:
            calls = Calls(target, session, self._window)
            await asyncio.gather(*(self._work(calls) for _ in range(self._at_once)))
            account.answers = dict(calls.answers)
            account.calls = calls.answers.total()
            account.latencies = calls.latencies[:: max(1, len(calls.latencies) // LATENCIES_REPORTED)]
            if account.stopped is None and self._error is None:
                self._results += self._undecided
            if self._error is not None or not all(result.outcome.taken for result in self._results):
                await self._note()
        if self._error is not None:
            raise self._error

    async def _work(self, calls: Calls) -> None:
        """Send chunks one after another; several of these coroutines run concurrently."""
        try:
            while self._account.stopped is None and self._error is None:
                chunk = next(self._chunks, None)
                if chunk is None:
                    return
                rows = chunk.column("json").to_pylist()
                body = rows[0] if calls.target.as_object else f"[{','.join(rows)}]"
                outcome = await calls.deliver(chunk.column("key")[0].as_py(), body.encode())
                self._settle(ChunkResult(chunk, outcome, datetime.now(UTC)))
                if time.monotonic() - self._noted >= NOTE_EVERY_S * max(1.0, self._job.tasks / TASKS_FOR_IT):
                    await self._note()
        except Exception as error:  # noqa: BLE001 - raised by `_send`, after the other calls' outcomes are committed
            self._error = self._error or error

    def _settle(self, result: ChunkResult) -> None:
        """Record a chunk's outcome, or stop the task.

        A chunk without attempts left has failed if a later one succeeds; else the receiver is at fault.
        """
        outcome = result.outcome
        account = self._account
        if outcome.status in LOCKED_OUT:
            account.stopped = f"the receiver does not let us in: {outcome.reason}"
            account.kind = "ConfigurationError"
        elif outcome.taken:
            self._results += [*self._undecided, result]
            self._undecided = []
        elif outcome.for_good:
            self._results.append(result)
        else:
            self._undecided.append(result)
            if len(self._undecided) >= FAILED_IN_A_ROW:
                account.stopped = f"{len(self._undecided)} calls in a row were {outcome.reason}"

    async def _note(self) -> None:
        """Commit the known outcomes; other calls continue."""
        async with self._noting:
            self._noted = time.monotonic()
            results = self._known()
            if results:
                await asyncio.to_thread(self._commit, results)
                self._count(results)

    def _known(self) -> list[ChunkResult]:
        """The outcomes that are not committed yet; the caller commits them."""
        results = self._results
        self._results = []
        if results:
            failpoints.reach("export_answered", self._number)
        return results

    def _count(self, results: Sequence[ChunkResult]) -> None:
        account = self._account
        for result in results:
            rows = result.chunk.num_rows
            if result.outcome.taken:
                account.delivered_rows += rows
                account.delivered_chunks += 1
            else:
                account.failed_rows += rows
                account.failed_calls += 1

    def _commit(self, results: Sequence[ChunkResult]) -> None:
        job = self._job
        tables = job.tables
        failed = [r for r in results if not r.outcome.taken]
        if failed:
            rows = about(failed, job.run_id, failed_calls_schema(tables.person))
            append(tables.failed_calls, rows, {}, "Rows of calls that the receiver refused, or did not take in time")
        append(tables.deliveries, about(results, job.run_id, DELIVERIES, 1), {Txn.EXPORT_RUN: job.run}, DELIVERY_LOG)


def _read(job: SendChunks, mine: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    """A task's chunks, except those that an erasure has emptied."""
    names = planned_schema(job.tables.person).names
    system, prefix = file_system(job.tables.planned)
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
