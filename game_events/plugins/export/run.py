"""A run of the export: plans new rows in chunks, sends what is planned, slice by slice; and failed calls.

Guarantee: at least once, in chunks that are fixed before their first call, with the same key and bytes in each call. Each row
of the source is in one chunk: a commit compares and advances each table's exported batch, so one of two concurrent plans fails.
A chunk that is delivered by the delivery log is not sent again. Of two concurrent runs the earlier one stops at its next
commit.

A failed call is sent again once for each replay, under its key, also beside a concurrent replay. It waits for a replay if the
newest entry of its key in the delivery log is not "delivered", and it is not planned.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from game_events.errors import ConfigurationError, ConflictError, DataError, GameEventsError, TransientError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit, retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn, counter, erasures, txn
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import StagedFile, discard, staged
from game_events.lakehouse.duckdb_connection import connect, records
from game_events.lakehouse.tables import paths, table_id
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import PluginResult, RunResult
from game_events.plugins.export.delivery import ExportTarget, preflight
from game_events.plugins.export.rows import OnReplaced, Step, file_rows, find_changes, folder_table, new_files, new_rows
from game_events.plugins.export.settings import ExportSettings
from game_events.plugins.export.tables import (
    DELIVERED,
    DELIVERIES,
    ChunkOrigin,
    ExportTables,
    failed_calls_schema,
    planned_schema,
)
from game_events.plugins.export.worker import DELIVERY_LOG, Cut, CutChunks, SendChunks, SentCounts, TaskAccount
from game_events.workers.job import task_numbers
from game_events.workers.results import merged_values

#: Attempts to commit beside concurrent writers.
ATTEMPTS = 5

DESCRIPTION = "Rows of planned calls over HTTP; a call's rows go when all of its slice is settled"

#: Attributes with another name in `--json`.
KEYS = {"failed_rows": "dead_rows", "failed_calls": "dead_chunks"}


@dataclass
class Export(SentCounts, PluginResult):
    """Result of one run of the export over HTTP.

    Attributes:
        planned_rows, planned_chunks: planned by this run.
        waiting_chunks: left for the next run.
        held: game -> why nothing of it was planned.
        tasks, at_once: Spark tasks that sent, and the most of them that ran at the same time.
        seconds: of sending alone.
        latency_s: median and 95th percentile of answered calls.
    """

    key: ClassVar[str] = "export"

    planned_rows: int = 0
    planned_chunks: int = 0
    waiting_chunks: int = 0
    held: dict[str, str] = field(default_factory=dict)
    tasks: int = 0
    at_once: int = 0
    seconds: float = 0.0
    latency_s: tuple[float, float] | None = None

    def add(self, tasks: Sequence[TaskAccount]) -> None:
        """Add the tasks of one micro-batch."""
        for task in tasks:
            for name, value in merged_values(self, task).items():
                setattr(self, name, value)
        begins = [(task.began, 1) for task in tasks]
        moments = sorted(begins + [(task.ended, -1) for task in tasks])
        running = 0
        for _, change in moments:
            running += change
            self.at_once = max(self.at_once, running)
        self.tasks = max(self.tasks, len(tasks))
        if len(self.latencies) > 1:
            cuts = quantiles(self.latencies, n=20)
            self.latency_s = (cuts[9], cuts[18])

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        hidden = ("at_once", "latency_s", "latencies")
        values = {KEYS.get(name, name): value for name, value in vars(self).items() if name not in hidden}
        return values | {
            "answers": dict(sorted(self.answers.items())),
            "tasks_at_once": self.at_once,
            "seconds": round(self.seconds, 3),
            "rows_per_s": self._per_s(self.delivered_rows),
            "calls_per_s": self._per_s(self.calls),
            "latency_ms": {n: round(s * 1000, 1) for n, s in zip(("p50", "p95"), self.latency_s or (), strict=False)},
        }

    def _per_s(self, count: int) -> float | None:
        return round(count / self.seconds, 1) if self.seconds else None

    def event_rows(self) -> Iterator[dict[str, Any]]:
        """Row of the event log."""
        if self.planned_chunks or self.calls or self.held:
            states = {"held": self.held, "waiting": self.waiting_chunks, "failed calls": self.failed_calls, "done": True}
            status = next(state for state, applies in states.items() if applies)
            counts = {"rows": self.delivered_rows, "seconds": round(self.seconds, 3)}
            yield {"kind": "exported", "layer": "export", "status": status, "detail": self.to_dict()} | counts


def export_rows(pipeline: Pipeline, report: RunReport, on_replaced: OnReplaced | None = None, files: str | None = None) -> None:
    """Send waiting chunks and all new rows; the report gets the result (`export`) during the run.

    `on_replaced`: how tables with replaced rows are exported, None: as set; `files`: a folder of Parquet files, or a Delta
    table, instead of silver or gold.

    Raises:
        ConfigurationError: the export is off, or the receiver refuses the credentials.
        TransientError: the receiver does not answer, or accepts nothing: the remaining chunks wait for the next run.
        ConflictError: another run has taken over.
    """
    on_replaced = on_replaced or OnReplaced(ExportSettings.of(pipeline.settings).rest_on_replaced)
    exporter = Exporter(pipeline, report)
    exporter.send_all()
    while exporter.plan_files(files) if files else exporter.plan_slice(on_replaced):
        exporter.send_all()


#: Errors that stop a task, the most urgent first.
_ERRORS: dict[str, type[GameEventsError]] = {
    error.__name__: error for error in (ConfigurationError, DataError, ConflictError, TransientError)
}


class Exporter:
    """One run of the export."""

    def __init__(self, pipeline: Pipeline, report: RunReport) -> None:
        """ConfigurationError: the export is off."""
        self._pipeline = pipeline
        self._report = report
        self._settings = ExportSettings.of(pipeline.settings)
        self._target = ExportTarget.of(pipeline.settings)
        self._tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
        self.account = report.part(Export) or Export()
        report.add(RunResult(parts={self.account.key: self.account}))
        self._run: int | None = None
        # With a rate limit: this run's calls that still count, by this process's clock; none arrived later.
        self._counted: list[float] = []

    @retry_on_conflict(ATTEMPTS)
    def plan_slice(self, on_replaced: OnReplaced) -> bool:
        """Fix the new rows of silver or gold in chunks; returns whether there were any.

        Raises:
            ConflictError: concurrent writers won every attempt; nothing was sent.
        """
        pipeline = self._pipeline
        planned = self._tables.planned.open()
        # A requested resend is done once, also where Dagster tries the run again after its rows were fixed.
        granted = Txn.GRANTED.of(pipeline.run_id)
        if txn(planned, granted) is not None:
            on_replaced = OnReplaced(on_replaced.usual)
        steps, held = find_changes(pipeline, planned, on_replaced)
        self._report_held(held)
        if not steps:
            return False
        pipeline.on_progress(f"export: fixing rows of {len(steps)} {pipeline.settings.names.entities}")
        origins = {step.name: step.origin for step in steps}
        expected: dict[str, int | None] = {}
        advance: dict[str, int] = {}
        for step in steps:
            expected |= step.expected
            advance |= step.advance
        if (on_replaced.resend | on_replaced.go_on) & {step.game for step in steps}:
            advance[granted] = 1
        cut = Cut([], 0)
        if any(step.files.data or step.gold is not None for step in steps):
            cut = self._cut(planned, new_rows(pipeline, steps), origins)
        self._refuse_erased(steps, cut)
        self._commit(planned, cut, expected, advance)
        return True

    def _refuse_erased(self, steps: Sequence[Step], cut: Cut) -> None:
        """Discard chunks and raise ConflictError if people were erased since: their rows may be among these."""
        pipeline = self._pipeline
        now = ((s, pipeline.tables.peek(pipeline.lakehouse.silver(s.name))) for step in steps for s in step.of_silver)
        if any(handle is None or erasures(handle) != erasures(step.silver) for step, handle in now):
            discard(self._tables.planned, cut.files)
            raise ConflictError("people were erased during each of the attempts to plan the export: run it again")

    def plan_files(self, folder: str) -> bool:
        """Fix the rows of new files in chunks; returns whether there were any. Files without rows make no commit.

        Raises:
            ConfigurationError: there is no such folder, or its files cannot be read together.
            DataError: the files of a Delta table were rewritten.
            ConflictError: another run planned at the same time.
        """
        planned = self._tables.planned.open()
        place = folder_table(self._pipeline, folder)
        # One version, also of a table that is compacted meanwhile.
        delta = place.open_to_read()
        files = new_files(self._tables, place, delta, planned)
        if not files:
            return False
        origins = {file: ChunkOrigin(file, None, place.uri) for file in files}
        cut = self._cut(planned, file_rows(self._pipeline, place, delta, files), origins)
        if cut.files:
            self._commit(planned, cut, {}, {})
        return bool(cut.files)

    def _report_held(self, held: Mapping[str, str]) -> None:
        """Report each game that is not exported as a failure of the run, once."""
        lakehouse = self._pipeline.lakehouse
        of_game = lakehouse.gold if self._settings.rest_source == "gold" else lakehouse.silver
        for game, why in held.items():
            if game not in self.account.held:
                self.account.held[game] = why
                self._report.add_failed("export", of_game(game), why, game)

    def _cut(self, planned: DeltaTable | None, rows: DataFrame, origins: Mapping[str, ChunkOrigin]) -> Cut:
        tables = self._tables
        limits = (self._settings.rest_rows_per_call, self._settings.rest_bytes_per_call)
        tasks = CutChunks(tables.planned, tables.person, next_slice(tables, planned), *limits, origins).collect(rows)
        failpoints.reach("export_staged")
        return Cut([file for task in tasks for file in task.files], sum(task.chunks for task in tasks))

    def _commit(
        self, planned: DeltaTable | None, cut: Cut, expected: Mapping[str, int | None], advance: Mapping[str, int]
    ) -> None:
        commit_slice(self._tables, planned, cut.files, expected, advance)
        failpoints.reach("export_planned")
        self.account.planned_rows += sum(file.rows for file in cut.files)
        self.account.planned_chunks += cut.chunks

    def send_all(self) -> None:
        """Send every waiting chunk, then empty the table of planned calls."""
        tables = self._tables
        while True:
            planned = tables.planned.open()
            waiting = tables.waiting(planned, tables.deliveries.open())
            self.account.waiting_chunks = waiting.num_rows
            if not waiting.num_rows:
                break
            if self._run is None:
                preflight(self._pipeline.settings, self._target)
                self._run = _take_over(tables, self._pipeline.run_id)
            number = waiting.column("slice")[0].as_py()
            self._send(self._run, number, waiting.filter(pc.equal(waiting.column("slice"), number)))
        if planned is not None and paths(planned):
            failpoints.reach("export_settled")
            _clear(tables)

    def _send(self, run: int, number: int, chunks: pa.Table) -> None:
        """Send a slice's chunks by one Spark job; with a rate limit by one task."""
        pipeline = self._pipeline
        # As it is now: somebody may have been erased since.
        planned = self._tables.planned.open()
        if planned is None:
            return
        most = 1 if self._target.limits else self._settings.rest_tasks
        tasks = min(most, chunks.num_rows)
        pipeline.on_progress(f"export: {chunks.num_rows:,} calls to {self._target.shown}")
        began = time.monotonic()
        job = SendChunks(
            self._tables,
            self._target,
            paths(planned),
            number,
            chunks.column("chunk").to_numpy().astype(np.int64),
            chunks.column("rows").to_numpy().astype(np.int64),
            tasks,
            run,
            pipeline.run_id,
            [began - moment for moment in self._counted],
        )
        sent = job.collect(task_numbers(pipeline.spark, tasks))
        done = [account for task in sent for account in task.accounts]
        ended = time.monotonic()
        self._counted = [ended - age for account in done for age in account.counted]
        job.note([file for task in sent for file in task.files])
        self.account.seconds += time.monotonic() - began
        self.account.add(done)
        self._raise_if_stopped(done)

    def _raise_if_stopped(self, done: Sequence[TaskAccount]) -> None:
        stopped = [task for task in done if task.stopped is not None]
        if not stopped:
            return
        tables = self._tables
        waiting = tables.waiting(tables.planned.open(), tables.deliveries.open()).num_rows
        self.account.waiting_chunks = waiting
        urgency = [*_ERRORS, *(task.kind for task in stopped)]
        task = min(stopped, key=lambda task: urgency.index(task.kind))
        error = _ERRORS.get(task.kind, DataError)
        raise error(f"{self._target.shown}: {task.stopped}. {waiting:,} calls wait for the next run")


def commit_slice(
    tables: ExportTables,
    planned: DeltaTable | None,
    files: Sequence[StagedFile],
    expected: Mapping[str, int | None],
    advance: Mapping[str, int],
) -> None:
    """Commit files of planned calls, as the next slice.

    Raises:
        ConflictError: another run has planned since; the files are deleted.
    """
    commit(
        Commit(
            tables.planned,
            planned_schema(tables.person),
            files,
            {**expected, Txn.COMMITS: txn(planned, Txn.COMMITS)},
            {**advance, Txn.COMMITS: next_slice(tables, planned)},
            table_id(planned),
            description=DESCRIPTION,
        )
    )


def next_slice(tables: ExportTables, planned: DeltaTable | None) -> int:
    """Number of the next slice.

    In a recreated table it follows the delivery log's last one: chunks with a reused number would count as settled.
    """
    if planned is not None:
        return counter(planned, Txn.COMMITS) + 1
    settled = tables.settled(tables.deliveries.open(), 0, ["slice"])
    return int(pc.max(settled.column("slice")).as_py() or 0) + 1


@retry_on_conflict(ATTEMPTS)
def _take_over(tables: ExportTables, run_id: str) -> int:
    """Make this run the only writer of the delivery log; returns the value of its `txn`."""
    deliveries = tables.deliveries.open()
    before = txn(deliveries, Txn.EXPORT_RUN)
    number = (before or 0) + 1
    commit(
        Commit(
            tables.deliveries,
            DELIVERIES,
            [],
            {Txn.EXPORT_RUN: before},
            {Txn.EXPORT_RUN: number},
            table_id(deliveries),
            info={"run_id": run_id},
            description=DELIVERY_LOG,
        )
    )
    return number


def _clear(tables: ExportTables) -> None:
    """Remove all planned rows, once the delivery log has every chunk's outcome; concurrent planning is not blocked."""
    planned = tables.planned.open()
    if planned is None or tables.waiting(planned, tables.deliveries.open()).num_rows:
        return
    commits = txn(planned, Txn.COMMITS)
    emptied = Commit(
        tables.planned,
        planned_schema(tables.person),
        [],
        {Txn.COMMITS: commits},
        {Txn.COMMITS: (commits or 0) + 1},
        table_id(planned),
        replace=True,
    )
    with suppress(ConflictError):  # a run that planned, or erased, since will empty it
        commit(emptied)


#: Delivery log's entries of failed calls that wait. The newest entry of each key holds; a planned call is about to be sent.
_WAITING = f"""
WITH newest AS (SELECT key, max(slice) AS slice FROM entries GROUP BY key)
SELECT e.* FROM entries e JOIN newest USING (key, slice)
WHERE e.outcome <> '{DELIVERED}' AND e.key NOT IN (SELECT key FROM planned)
"""  # noqa: S608

#: The join leaves out calls with only erased rows.
_COUNTS = f"""
SELECT w.source, w.game, w.status, any_value(f.reason) AS reason, any_value(f.answer) AS answer,
  count(DISTINCT w.key) AS chunks, count(DISTINCT (w.key, f.number)) AS rows, min(w.at) AS first, max(w.at) AS last
FROM ({_WAITING}) w JOIN failed f USING (key, slice) GROUP BY ALL ORDER BY rows DESC, source, status
"""  # noqa: S608

#: Each row once: a run that was killed before the entry in the delivery log has written a failed call twice.
_ROWS = f"""
WITH w AS ({_WAITING}),
  chosen AS (SELECT key, slice FROM w WHERE len($statuses) = 0 OR list_contains($statuses, status)),
  once AS (SELECT *, row_number() OVER (PARTITION BY key, number) AS copy FROM failed JOIN chosen USING (key, slice))
SELECT * REPLACE ($slice AS slice, dense_rank() OVER (ORDER BY key) AS chunk) FROM once WHERE copy = 1 ORDER BY key, number
"""  # noqa: S608


@retry_on_conflict(ATTEMPTS)
def replay_failed_calls(pipeline: Pipeline, statuses: Collection[int] = ()) -> tuple[int, int]:
    """Plan failed calls (with some HTTP statuses; empty: all) once more, under their keys.

    Returns:
        number of calls, and of their rows.

    Raises:
        ConflictError: concurrent writers won every attempt.
    """
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    planned = tables.planned.open()
    schema = planned_schema(tables.person)
    params = {"statuses": [int(status) for status in statuses], "slice": next_slice(tables, planned)}
    with connect(**_views(tables)) as connection:
        rows = connection.sql(_ROWS, params=params).to_arrow_table().select(schema.names).cast(schema)
    if not rows.num_rows:
        return 0, 0
    commit_slice(tables, planned, staged(tables.planned, rows), {}, {})
    return pc.count_distinct(rows.column("chunk")).as_py(), rows.num_rows


def export_status(pipeline: Pipeline) -> dict[str, Any]:
    """Counts of waiting, delivered and failed calls and their rows; of failed ones by source, game and status, with reason."""
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    deliveries = tables.deliveries.open()
    waiting = tables.waiting(tables.planned.open(), deliveries)
    settled = tables.settled(deliveries, 0, ["rows", "outcome"])
    delivered = settled.filter(pc.equal(settled.column("outcome"), DELIVERED))
    with connect(**_views(tables)) as connection:
        failed = records(connection.execute(_COUNTS))
    return {
        "waiting": {"chunks": waiting.num_rows, "rows": pc.sum(waiting.column("rows")).as_py() or 0},
        "delivered": {"chunks": delivered.num_rows, "rows": pc.sum(delivered.column("rows")).as_py() or 0},
        "dead": {"chunks": sum(entry["chunks"] for entry in failed), "rows": sum(entry["rows"] for entry in failed)},
        "dead_letters": failed,
    }


def _views(tables: ExportTables) -> dict[str, pa.Table]:
    failed = tables.failed_calls.open()
    empty = failed_calls_schema(tables.person).empty_table()
    return {
        "failed": empty if failed is None else read_arrow(tables.failed_calls, failed),
        "entries": tables.settled(tables.deliveries.open(), 0),
        "planned": tables.chunks(tables.planned.open()),
    }
