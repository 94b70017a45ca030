"""Runs an export: sends the outbox's chunks, then new rows, slice by slice.

Guarantee: at least once, in chunks that are fixed before their first call, with the same key and bytes in each call. A chunk
that is delivered by the delivery log is not sent again. Of two concurrent runs the earlier one stops at its next commit.
"""

import time
from contextlib import AbstractContextManager, nullcontext, suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from game_events.errors import ConfigurationError, ConflictError, DataError, GameEventsError, TransientError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn, txn
from game_events.lakehouse.tables import paths, table_id
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult
from game_events.pipeline.reporting.steps import Export
from game_events.sinks.http.changes import OnReplaced
from game_events.sinks.http.delivery import preflight
from game_events.sinks.http.outcomes import DELIVERY_LOG
from game_events.sinks.http.plan import ATTEMPTS, plan_files, plan_slice
from game_events.sinks.http.rate_limiter import LimiterAddress, RateLimiterServer, limiter_host
from game_events.sinks.http.rate_window import RateWindow
from game_events.sinks.http.tables import DELIVERIES, ExportTables, outbox_schema
from game_events.sinks.http.target import RestTarget
from game_events.sinks.http.worker import SendChunks

#: Errors that stop a task, the most urgent first.
_ERRORS: dict[str, type[GameEventsError]] = {
    error.__name__: error for error in (ConfigurationError, DataError, ConflictError, TransientError)
}


def export_rows(pipeline: Pipeline, report: RunReport, on_replaced: OnReplaced | None = None, files: str | None = None) -> None:
    """Send waiting chunks and all new rows; the report gets the result (`export`) during the run.

    `on_replaced`: how tables with replaced rows are exported, None: as set; `files`: a folder of Parquet files, or a Delta
    table, instead of silver or gold.

    Raises:
        ConfigurationError: the export is off, or the receiver refuses the credentials.
        TransientError: the receiver does not answer, or accepts nothing: the remaining chunks wait for the next run.
        ConflictError: another run has taken over.
    """
    settings = pipeline.settings
    target = RestTarget.of(settings)
    on_replaced = on_replaced or OnReplaced(settings.rest_on_replaced)
    account = report.export or Export()
    report.add(RunResult(export=account))
    tables = ExportTables.of(pipeline.lakehouse, settings.key_column)
    exporter = _Exporter(pipeline, tables, target, account)
    exporter.send_all()
    while plan_files(pipeline, tables, account, files) if files else plan_slice(pipeline, tables, report, account, on_replaced):
        exporter.send_all()


class _Exporter:
    """Sends the outbox's chunks."""

    def __init__(self, pipeline: Pipeline, tables: ExportTables, target: RestTarget, account: Export) -> None:
        self._pipeline, self._tables, self._target, self._account = pipeline, tables, target, account
        self._run: int | None = None
        settings = pipeline.settings
        self._limit = RateWindow.of(settings.rest_calls_per_s, settings.rest_calls_per_min)

    def send_all(self) -> None:
        """Send every waiting chunk, then empty the outbox."""
        tables, account = self._tables, self._account
        while True:
            outbox, deliveries = tables.outbox.open(), tables.deliveries.open()
            waiting = tables.waiting(outbox, deliveries)
            account.waiting_chunks = waiting.num_rows
            if not waiting.num_rows:
                break
            if self._run is None:
                preflight(self._pipeline.settings, self._target)
                self._run = _take_over(tables, self._pipeline.run_id)
            number = waiting.column("slice")[0].as_py()
            self._send(number, waiting.filter(pc.equal(waiting.column("slice"), number)))
        if outbox is not None and paths(outbox):
            failpoints.reach("rest_settled")
            _clear(tables)

    def _send(self, number: int, chunks: pa.Table) -> None:
        """Send a slice's chunks by one Spark job."""
        pipeline, settings = self._pipeline, self._pipeline.settings
        outbox = self._tables.outbox.open()
        if outbox is None or self._run is None:
            return
        tasks = min(settings.rest_tasks, chunks.num_rows)
        pipeline.on_progress(f"rest export: {chunks.num_rows:,} calls to {self._target.shown}")
        limited: AbstractContextManager[LimiterAddress | None] = nullcontext()
        if self._limit.windows:
            limited = RateLimiterServer(self._limit, limiter_host(settings))
        began = time.monotonic()
        with limited as limiter:
            job = SendChunks(
                self._tables,
                self._target,
                paths(outbox),
                number,
                chunks.column("chunk").to_numpy().astype(np.int64),
                chunks.column("rows").to_numpy().astype(np.int64),
                tasks,
                self._run,
                pipeline.run_id,
                limiter,
            )
            found = job.collect(pipeline.spark.range(0, tasks, 1, tasks))
        job.note([file for sent in found for file in sent.files])
        done = [account for sent in found for account in sent.accounts]
        self._account.seconds += time.monotonic() - began
        self._account.add(done)
        stopped = [task for task in done if task.stopped is not None]
        if stopped:
            self._account.waiting_chunks = self._tables.waiting(outbox, self._tables.deliveries.open()).num_rows
            # Errors that need a change by the user first, transient ones last.
            task = min(stopped, key=lambda task: list(_ERRORS).index(task.kind) if task.kind in _ERRORS else len(_ERRORS))
            what = f"{task.stopped}. {self._account.waiting_chunks:,} calls wait for the next run"
            raise _ERRORS.get(task.kind, DataError)(f"{self._target.shown}: {what}")


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
    """Empty the outbox, once the delivery log has every chunk's outcome; concurrent planning is not blocked."""
    outbox = tables.outbox.open()
    if outbox is None or tables.waiting(outbox, tables.deliveries.open()).num_rows:
        return
    commits = txn(outbox, Txn.COMMITS)
    plan = Commit(
        tables.outbox,
        outbox_schema(tables.person),
        [],
        {Txn.COMMITS: commits},
        {Txn.COMMITS: (commits or 0) + 1},
        table_id(outbox),
        replace=True,
    )
    with suppress(ConflictError):  # a run that planned, or erased, since will empty it
        commit(plan)
