"""Runs an export: sends the outbox's chunks, then new rows, slice by slice.

Guarantee: at least once, in chunks that are fixed before their first call, with the same key and bytes in each call. A chunk
that is delivered by the delivery log is not sent again. Of two concurrent runs the earlier one stops at its next commit.

Plans an export in the driver: one commit to the outbox fixes new rows in chunks, before any of them is sent.

Guarantee: each row of the source is in one chunk. The commit compares and advances each table's exported batch, so one of two
concurrent plans fails.

Failed chunks, in the table `export_failed_calls`, and their replay under the same keys.

Guarantee: a failed chunk is sent again once for each replay, also beside a concurrent replay. It waits for a replay if the
newest entry of its key in the delivery log is "dead", and the outbox does not have it.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

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
from game_events.pipeline.reporting.result import RunResult
from game_events.plugins.export.chunks import (
    DELIVERED,
    DELIVERIES,
    FAILED,
    ChunkOrigin,
    CutChunks,
    ExportTables,
    failed_chunks_schema,
    outbox_schema,
)
from game_events.plugins.export.delivery import RestTarget, preflight
from game_events.plugins.export.rate_limiter import LimiterAddress, RateLimiterServer, RateWindow, limiter_host
from game_events.plugins.export.result import Export
from game_events.plugins.export.rows import OnReplaced, Step, file_rows, find_changes, folder_table, new_files, new_rows
from game_events.plugins.export.settings import ExportSettings
from game_events.plugins.export.worker import DELIVERY_LOG, SendChunks

#: Attempts to commit to the outbox or the delivery log beside concurrent writers.
ATTEMPTS = 5

DESCRIPTION = "Rows fixed in chunks that wait for their call over HTTP; a chunk's rows go when all of its slice is settled"


@retry_on_conflict(ATTEMPTS)
def plan_slice(pipeline: Pipeline, tables: ExportTables, report: RunReport, account: Export, on_replaced: OnReplaced) -> bool:
    """Fix the new rows of silver or gold in chunks; returns whether there were any.

    Raises:
        ConflictError: concurrent writers won every attempt; nothing was sent.
    """
    outbox = tables.outbox.open()
    # A requested resend is done once, also where Dagster tries the run again after its rows were fixed.
    granted = Txn.GRANTED.of(pipeline.run_id)
    if txn(outbox, granted) is not None:
        on_replaced = OnReplaced(on_replaced.usual)
    steps, held = find_changes(pipeline, outbox, on_replaced)
    _report_held(pipeline, report, account, held)
    if not steps:
        return False
    pipeline.on_progress(f"rest export: fixing rows of {len(steps)} {pipeline.settings.names.entities}")
    origins = {step.game: step.origin for step in steps}
    expected = {app: value for step in steps for app, value in step.expected.items()}
    advance = {app: value for step in steps for app, value in step.advance.items()}
    if (on_replaced.resend | on_replaced.go_on) & origins.keys():
        advance[granted] = 1
    files: list[StagedFile] = []
    if any(step.files or step.gold is not None for step in steps):
        files = _staged(pipeline, tables, outbox, new_rows(pipeline, steps), origins)
    if _erased_since(pipeline, steps):
        # Erased rows may be among these.
        discard(tables.outbox, files)
        raise ConflictError("gamers were erased during each of the attempts to plan the export: run it again")
    _commit(tables, outbox, files, expected, advance, account)
    return True


def plan_files(pipeline: Pipeline, tables: ExportTables, account: Export, folder: str) -> bool:
    """Fix the rows of new files in chunks; returns whether there were any. Files without rows make no commit.

    Raises:
        ConfigurationError: there is no such folder, or its files cannot be read together.
        DataError: the files of a Delta table were rewritten.
        ConflictError: another run planned at the same time.
    """
    outbox = tables.outbox.open()
    place = folder_table(pipeline, folder)
    # One version, also of a table that is compacted meanwhile.
    delta = place.open_to_read()
    files = new_files(tables, place, delta, outbox)
    if not files:
        return False
    origins = {file: ChunkOrigin(file, None, place.uri) for file in files}
    staged = _staged(pipeline, tables, outbox, file_rows(pipeline, place, delta, files), origins)
    if staged:
        _commit(tables, outbox, staged, {}, {}, account)
    return bool(staged)


def commit_slice(
    tables: ExportTables,
    outbox: DeltaTable | None,
    files: Sequence[StagedFile],
    expected: Mapping[str, int | None],
    advance: Mapping[str, int],
) -> None:
    """Commit files to the outbox, as its next slice.

    Raises:
        ConflictError: another run has changed the outbox since; the files are deleted.
    """
    commit(
        Commit(
            tables.outbox,
            outbox_schema(tables.person),
            files,
            expect_transactions={**expected, Txn.COMMITS: txn(outbox, Txn.COMMITS)},
            set_transactions={**advance, Txn.COMMITS: next_slice(tables, outbox)},
            table_id=table_id(outbox),
            description=DESCRIPTION,
        )
    )


def next_slice(tables: ExportTables, outbox: DeltaTable | None) -> int:
    """Number of the next slice.

    In a recreated outbox it follows the delivery log's last one: chunks with a reused number would count as settled.
    """
    if outbox is not None:
        return counter(outbox, Txn.COMMITS) + 1
    settled = tables.settled(tables.deliveries.open(), 0, ["slice"])
    return int(pc.max(settled.column("slice")).as_py() or 0) + 1


def _staged(
    pipeline: Pipeline, tables: ExportTables, outbox: DeltaTable | None, rows: DataFrame, origins: Mapping[str, ChunkOrigin]
) -> list[StagedFile]:
    number, limits = (
        next_slice(tables, outbox),
        (
            ExportSettings.of(pipeline.settings).rest_rows_per_call,
            ExportSettings.of(pipeline.settings).rest_bytes_per_call,
        ),
    )
    cut = CutChunks(tables.outbox, tables.person, number, *limits, origins)
    files = [file for found in cut.collect(rows) for file in found.files]
    failpoints.reach("rest_staged")
    return files


def _commit(
    tables: ExportTables,
    outbox: DeltaTable | None,
    files: Sequence[StagedFile],
    expected: Mapping[str, int | None],
    advance: Mapping[str, int],
    account: Export,
) -> None:
    commit_slice(tables, outbox, files, expected, advance)
    failpoints.reach("rest_planned")
    account.planned_rows += sum(file.rows for file in files)
    now = tables.outbox.open()
    if now is not None:
        chunks = read_arrow(tables.outbox, now, ["chunk"], [file.path for file in files])
        account.planned_chunks += pc.count_distinct(chunks.column("chunk")).as_py()


def _erased_since(pipeline: Pipeline, steps: Sequence[Step]) -> bool:
    now = ((step, pipeline.tables.peek(pipeline.lakehouse.silver(step.game))) for step in steps)
    return any(handle is None or erasures(handle) != erasures(step.silver) for step, handle in now)


def _report_held(pipeline: Pipeline, report: RunReport, account: Export, held: Mapping[str, str]) -> None:
    """Report each game that is not exported as a failure of the run, once."""
    of_game = (
        pipeline.lakehouse.silver if ExportSettings.of(pipeline.settings).rest_source == "silver" else pipeline.lakehouse.gold
    )
    for game, why in held.items():
        if game not in account.held:
            account.held[game] = why
            report.add_failed("rest", of_game(game), why, game)


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
    on_replaced = on_replaced or OnReplaced(ExportSettings.of(settings).rest_on_replaced)
    account = report.part(Export) or Export()
    report.add(RunResult(parts={account.key: account}))
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
        self._limit = RateWindow.of(
            ExportSettings.of(settings).rest_calls_per_s, ExportSettings.of(settings).rest_calls_per_min
        )

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
        tasks = min(ExportSettings.of(settings).rest_tasks, chunks.num_rows)
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


#: The newest entry of each key is what holds; a chunk in the outbox is about to be sent.
_WAITING = """
WITH newest AS (SELECT key, max(slice) AS slice FROM entries GROUP BY key)
SELECT e.* FROM entries e JOIN newest USING (key, slice)
WHERE e.outcome = 'dead' AND e.key NOT IN (SELECT key FROM outbox)
"""


def failed_chunks(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Counts of the failed chunks that wait, by source, game and status, with reason and times; without rows."""
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    with connect(**_views(tables)) as connection:
        return records(
            # The join leaves out chunks with only erased rows.
            connection.execute(
                f"SELECT w.source, w.game, w.status, any_value(f.reason) AS reason, any_value(f.answer) AS answer, "  # noqa: S608
                "count(DISTINCT w.key) AS chunks, count(DISTINCT (w.key, f.number)) AS rows, "
                "min(w.at) AS first, max(w.at) AS last "
                f"FROM ({_WAITING}) w JOIN failed f USING (key, slice) GROUP BY ALL ORDER BY rows DESC, source, status"
            )
        )


@retry_on_conflict(ATTEMPTS)
def replay_failed_chunks(pipeline: Pipeline, statuses: Collection[int] = ()) -> tuple[int, int]:
    """Put failed chunks (with some HTTP statuses; empty: all) back into the outbox, from which they are sent under their keys.

    Returns:
        (chunks, rows) of the outbox.

    Raises:
        ConflictError: concurrent writers won every attempt.
    """
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    outbox = tables.outbox.open()
    rows = _waiting(tables, statuses, next_slice(tables, outbox))
    if not rows.num_rows:
        return 0, 0
    commit_slice(tables, outbox, staged(tables.outbox, rows), {}, {})
    return pc.count_distinct(rows.column("chunk")).as_py(), rows.num_rows


def _waiting(tables: ExportTables, statuses: Collection[int], number: int) -> pa.Table:
    """Rows of the failed chunks that wait, as a slice of the outbox."""
    schema = outbox_schema(tables.person)
    numbered = {"slice": "$slice AS slice", "chunk": "dense_rank() OVER (ORDER BY key) AS chunk"}
    names = ", ".join(numbered.get(name, f'f."{name}"') for name in schema.names)
    with connect(**_views(tables)) as connection:
        # A run that was killed before the entry in the delivery log has written the chunk twice.
        found = connection.sql(
            f"WITH w AS ({_WAITING}), "  # noqa: S608
            "once AS (SELECT *, row_number() OVER (PARTITION BY key, number) AS copy FROM failed JOIN (SELECT key, slice "
            "FROM w WHERE len($statuses) = 0 OR list_contains($statuses, status)) USING (key, slice)) "
            f"SELECT {names} FROM once f WHERE copy = 1 ORDER BY chunk, number",
            params={"statuses": [int(s) for s in statuses], "slice": number},
        ).to_arrow_table()
    return found.cast(schema)


def export_status(pipeline: Pipeline) -> dict[str, Any]:
    """Counts of waiting, delivered and failed chunks and rows."""
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    outbox, deliveries = tables.outbox.open(), tables.deliveries.open()
    waiting = tables.waiting(outbox, deliveries)
    settled = tables.settled(deliveries, 0, ["rows", "outcome"])
    delivered = settled.filter(pc.equal(settled.column("outcome"), DELIVERED))
    failed = failed_chunks(pipeline)
    return {
        "waiting": {"chunks": waiting.num_rows, "rows": pc.sum(waiting.column("rows")).as_py() or 0},
        "delivered": {"chunks": delivered.num_rows, "rows": pc.sum(delivered.column("rows")).as_py() or 0},
        FAILED: {"chunks": sum(e["chunks"] for e in failed), "rows": sum(e["rows"] for e in failed)},
        "dead_letters": failed,
    }


def _views(tables: ExportTables) -> dict[str, pa.Table]:
    failed = tables.failed_chunks.open()
    empty = failed_chunks_schema(tables.person).empty_table()
    return {
        "failed": empty if failed is None else read_arrow(tables.failed_chunks, failed),
        "entries": tables.settled(tables.deliveries.open(), 0),
        "outbox": tables.chunks(tables.outbox.open()),
    }
