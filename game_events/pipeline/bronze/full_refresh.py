"""Full refresh of bronze: everything that the source still has is read and decoded again, and replaces bronze's rows.

Guarantee: readers see the old bronze or the new, nothing between; a crash before the one commit changes nothing, after it the
next run finishes. The table's id stays and batch numbers continue; the `txn` `generation` is the first batch of the new rows.
Records that the source has lost are lost: a full refresh is refused until a setting allows it. Rows of topics that the settings
do not name at the moment, or that an archive does not have, stay: their offsets stay, too, so no run would read them again.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F

from game_events.decoding.core.column_map import ColumnMap
from game_events.errors import ConflictError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.commits.restore_check import refuse_restored
from game_events.lakehouse.commits.transactions import Txn, counter, txns
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.data.table_writer import FileStage
from game_events.lakehouse.event_columns import HEADERS, bronze_schema, column_map
from game_events.lakehouse.event_expressions import travelling
from game_events.lakehouse.layers import Layer
from game_events.pipeline.bronze.decode_job import StageResult
from game_events.pipeline.bronze.full_refresh_guard import Expired, count_expired, refuse_unless_allowed, source_to_read
from game_events.pipeline.bronze.load import archive_schemas
from game_events.pipeline.bronze.staging import stage_micro_batch
from game_events.pipeline.bronze.truncated_log import epochs_noted, epochs_unknown
from game_events.pipeline.column_comments import documented
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quarantine.full_refresh import finish_reset, is_finished, sweep
from game_events.pipeline.quarantine.refresh_list import ResetList, forget, keep
from game_events.pipeline.quarantine.replay_marks import is_noted, note_replay
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult
from game_events.pipeline.state.commit_info import batch_info, kept_info
from game_events.pipeline.state.offsets import archive_noted, ends_of_origins, identity
from game_events.pipeline.state.row_conditions import not_read
from game_events.sources.core.micro_batch import plan_micro_batch
from game_events.sources.core.source import FILES, Offsets, SourceSnapshot


@dataclass
class _Staged:
    """All micro-batches together: files and counts, never rows."""

    columns: ColumnMap
    found: StageResult = field(default_factory=StageResult)
    start: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    #: rows among those of `found.bronze` that were not read again
    kept: int = 0


def replace_bronze(pipeline: Pipeline, report: RunReport) -> None:
    """Replace bronze, and the undecodable rows of quarantine, by what the source has now.

    Micro-batches are decoded and written one by one; then one commit removes the old files and adds the new ones.

    Raises:
        ConfigurationError: the setting does not allow it.
        ConflictError: a run committed to bronze meanwhile: nothing has changed.
    """
    refuse_unless_allowed(pipeline)
    began = time.monotonic()
    finish_reset(pipeline, report)
    note_replay(pipeline)
    bronze, quarantine = pipeline.bronze.open(), pipeline.quarantine.open()
    if bronze is None:
        return  # the first run reads the whole topic anyway
    if quarantine is not None and not (is_noted(bronze, quarantine) and is_finished(bronze, quarantine)):
        raise ConflictError(f"{pipeline.bronze.name}: a concurrent run is at work on it. Nothing was changed: run again")
    now = source_to_read(pipeline)
    # All micro-batches are one batch, as they are one commit.
    batch = counter(bronze, Txn.BATCH) + 1
    # Names the list of quarantine's files: each of two concurrent full refreshes has its own list.
    ticket = max(counter(bronze, Txn.FULL_REFRESH) + 1, time.time_ns() // 1000)
    staged = _Staged(column_map(bronze))
    try:
        expired = _stage(pipeline, bronze, now, batch, ticket, staged)
        archive_schemas(pipeline, report, {*staged.found.types, *staged.found.undecoded})
    except Exception:
        _drop(pipeline, staged, ticket)
        raise
    failpoints.reach("reset_staged")
    landed = _commit_or_drop(pipeline, bronze, staged, batch, ticket, now, expired.undecodable_staying)
    failpoints.reach("reset_committed")
    finish_reset(pipeline, report)
    sweep(pipeline)
    _record(pipeline, bronze, staged, batch, landed, expired, report)
    report.add_read(staged.start, staged.end, now.unit)
    report.add_seconds(Layer.BRONZE, time.monotonic() - began)


def _stage(pipeline: Pipeline, bronze: DeltaTable, now: SourceSnapshot, batch: int, ticket: int, staged: _Staged) -> Expired:
    """Write all files, and the list of those of quarantine."""
    _stage_all(pipeline, bronze, now, batch, staged)
    expired = count_expired(pipeline, now, staged.found.origins)
    if expired.staying:
        refuse_restored(pipeline.bronze, bronze, "name all topics that bronze was read from in the settings")
        _keep_others(pipeline, bronze, now, batch, staged)
    listed = ResetList(batch, staged.end, staged.found.quarantine, frozenset(staged.found.origins))
    keep(pipeline.quarantine, ticket, listed)
    return expired


def _commit_or_drop(
    pipeline: Pipeline, bronze: DeltaTable, staged: _Staged, batch: int, ticket: int, now: SourceSnapshot, undecodable_kept: int
) -> Landed:
    try:
        return _commit(pipeline, bronze, staged, batch, ticket, now, undecodable_kept)
    except DataError:
        _drop(pipeline, staged, ticket)
        raise
    except ConflictError as error:  # after any other failure the outcome may be unknown: then the files are needed
        _drop(pipeline, staged, ticket)
        raise ConflictError(f"{error}. Nothing was changed: run again while no other run is at work") from None


def _stage_all(pipeline: Pipeline, bronze: DeltaTable, now: SourceSnapshot, batch: int, staged: _Staged) -> None:
    """Decode and write the whole source, in micro-batches; fields keep their columns."""
    staged.start, staged.end = dict(now.earliest), dict(now.earliest)
    for subject in pipeline.source.subjects(now.latest):
        pipeline.catalog.ids_of(subject)
    while part := plan_micro_batch(now, staged.end, now.latest, pipeline.source.batch_limit(staged.end)):
        part = replace(part, gaps=(*part.gaps, *pipeline.files_gone(part)))  # counted as expired
        pipeline.on_progress(f"full refresh: {part.records:,} {pipeline.things}, {sum(part.lag.values()):,} left")
        found = stage_micro_batch(pipeline, bronze, staged.columns, part, batch, {})
        staged.found.add(found)
        staged.columns = pipeline.catalog.message_columns(staged.columns, found.types)
        staged.end |= part.end


def _keep_others(pipeline: Pipeline, bronze: DeltaTable, now: SourceSnapshot, batch: int, staged: _Staged) -> None:
    """Copy rows of topics that are not read as rows of the new batch: later layers take them again with it."""
    schema = pa.schema(bronze.schema())
    others = not_read({*now.latest, *staged.found.origins})
    rows = read_table(pipeline.spark, bronze).where(others)
    rows = rows.withColumn("_batch", F.lit(batch).cast("long")).select(travelling(schema.names))
    files = FileStage(pipeline.bronze, schema, HEADERS).write(rows)
    staged.found.bronze += files
    staged.kept = sum(f.rows for f in files)


def _commit(
    pipeline: Pipeline, bronze: DeltaTable, staged: _Staged, batch: int, ticket: int, now: SourceSnapshot, undecodable_kept: int
) -> Landed:
    # A run that reads an archive's topics continues at the archive's end, even if bronze had more: those rows are removed.
    to = staged.end | ends_of_origins(staged.found.origins)
    # With rows from elsewhere, which the archive may get later.
    archive = {Txn.ARCHIVE: 0} if staged.kept or undecodable_kept else archive_noted(bronze, pipeline.source)
    compared = (Txn.BATCH, Txn.INCARNATION, Txn.FULL_REFRESH, Txn.REPLAY, Txn.ERASURES, *(p.app for p in to))
    read = {p: (staged.start[p], end) for p, end in staged.end.items()}
    rows, undecodable = sum(f.rows for f in staged.found.bronze), sum(f.rows for f in staged.found.quarantine)
    note = batch_info(batch, rows, undecodable, read, (), staged.found.suppressed) | kept_info(staged.kept)
    return commit(
        Commit(
            pipeline.bronze,
            documented(pipeline, bronze_schema(staged.columns), staged.columns, staged.found.types),
            staged.found.bronze,
            expected=txns(bronze, compared),
            advance={p.app: at for p, at in to.items()}
            | identity(to)
            | epochs_unknown(split for split in to if split not in staged.end)
            | epochs_noted(now, staged.end)
            | archive
            | {Txn.RECORDS_QUARANTINED: undecodable + undecodable_kept}
            | {Txn.BATCH: batch, Txn.INCARNATION: batch, Txn.FULL_REFRESH: ticket},
            table_id=str(bronze.metadata().id),
            seen=bronze.version() if staged.kept else None,
            replace=True,
            owns_map=True,
            info=note | {"full_refresh": "rows of batches before this one are gone", "run_id": pipeline.run_id},
        )
    )


def _drop(pipeline: Pipeline, staged: _Staged, ticket: int) -> None:
    """Delete the files of a commit that is known to have failed."""
    with suppress(OSError):
        discard(pipeline.bronze, staged.found.bronze)
        forget(pipeline.quarantine, ticket, staged.found.quarantine)


def _record(
    pipeline: Pipeline, before: DeltaTable, staged: _Staged, batch: int, landed: Landed, expired: Expired, report: RunReport
) -> None:
    schema = bronze_schema(staged.columns)
    known = {f.name for f in before.schema().fields}
    report.add_landed(Layer.BRONZE, pipeline.bronze, landed, schema, batch, known_columns=known)
    other_types = pipeline.catalog.other_types(staged.found.undecoded)
    report.add_batch(batch, (*staged.found.types, *staged.found.undecoded), other_types)
    report.add_rejected(staged.found.reasons)
    report.add(BronzeResult(suppressed=staged.found.suppressed, expired=expired.expired + expired.undecodable_expired))
    holder = pipeline.settings.source_holder
    gone = "is gone from there" if pipeline.settings.source == FILES else "has expired there"
    if staged.kept:
        report.warn(f"{staged.kept:,} rows of {pipeline.bronze.name} stay: of topics that are not read now")
    report.warn(f"{pipeline.bronze.name} was replaced by what {holder} has; lost with it, as it {gone}: {expired}")
