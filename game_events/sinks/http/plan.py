"""Plans an export in the driver: one commit to the outbox fixes new rows in chunks, before any of them is sent.

Guarantee: each row of the source is in one chunk. The commit compares and advances each table's exported batch, so one of two
concurrent plans fails.
"""

from collections.abc import Mapping, Sequence

import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.incarnations import erasures
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn, counter, txn
from game_events.lakehouse.data.snapshot import read_arrow
from game_events.lakehouse.data.staging import StagedFile, discard
from game_events.lakehouse.tables import table_id
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.steps import Export
from game_events.sinks.http.changes import OnReplaced, Step, find_changes
from game_events.sinks.http.chunks import ChunkOrigin, CutChunks
from game_events.sinks.http.rows import file_rows, folder_table, new_files, new_rows
from game_events.sinks.http.tables import ExportTables, outbox_schema

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
            expected={**expected, Txn.COMMITS: txn(outbox, Txn.COMMITS)},
            advance={**advance, Txn.COMMITS: next_slice(tables, outbox)},
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
    number, limits = next_slice(tables, outbox), (pipeline.settings.rest_rows_per_call, pipeline.settings.rest_bytes_per_call)
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
    now = ((step, pipeline.handles.look(pipeline.lakehouse.silver(step.game))) for step in steps)
    return any(handle is None or erasures(handle) != erasures(step.silver) for step, handle in now)


def _report_held(pipeline: Pipeline, report: RunReport, account: Export, held: Mapping[str, str]) -> None:
    """Report each game that is not exported as a failure of the run, once."""
    of_game = pipeline.lakehouse.silver if pipeline.settings.rest_source == "silver" else pipeline.lakehouse.gold
    for game, why in held.items():
        if game not in account.held:
            account.held[game] = why
            report.add_failed("rest", of_game(game), why, game)
