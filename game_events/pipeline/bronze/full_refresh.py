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
from game_events.lakehouse.event_columns import HEADERS, column_map
from game_events.lakehouse.event_expressions import travelling
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import names_of
from game_events.pipeline.bronze.full_refresh_guard import Expired, count_expired, refuse_unless_allowed, source_to_read
from game_events.pipeline.bronze.load import archive_schemas, commit_of, incomplete_records, report_batch
from game_events.pipeline.bronze.offset_plan import epochs_noted, epochs_unknown
from game_events.pipeline.bronze.staging import stage_micro_batch
from game_events.pipeline.bronze.worker import StageResult
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quarantine.full_refresh import ResetList, finish_reset, forget, is_finished, keep, sweep
from game_events.pipeline.quarantine.replay_marks import is_noted, note_replay
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult
from game_events.pipeline.state.commit_info import batch_info, kept_info
from game_events.pipeline.state.offsets import archive_noted, ends_of_origins, identity
from game_events.pipeline.state.row_conditions import not_read
from game_events.sources.core.micro_batch import plan_micro_batch
from game_events.sources.core.source import FILES, Offsets, SourceSnapshot


def replace_bronze(pipeline: Pipeline, report: RunReport) -> None:
    """Replace bronze, and the undecodable rows of quarantine, by what the source has now.

    Micro-batches are decoded and written one by one; then one commit removes the old files and adds the new ones.

    Raises:
        ConfigurationError: the setting does not allow it.
        ConflictError: a run committed to bronze meanwhile: nothing has changed.
        DataError: bronze was altered so that its rows cannot be replaced (`Table.writable`): nothing has changed.
    """
    refuse_unless_allowed(pipeline)
    began = time.monotonic()
    finish_reset(pipeline, report)
    note_replay(pipeline)
    bronze, quarantine = pipeline.open_bronze(), pipeline.open_quarantine()
    if bronze is None:
        return  # the first run reads the whole topic anyway
    pipeline.bronze.writable(bronze, replaced=True)
    if quarantine is not None:
        pipeline.quarantine.writable(quarantine, replaced=True)
    if quarantine is not None and not (is_noted(bronze, quarantine) and is_finished(bronze, quarantine)):
        raise ConflictError(f"{pipeline.bronze.name}: a concurrent run is at work on it. Nothing was changed: run again")
    work = _FullRefresh(pipeline, bronze, source_to_read(pipeline), column_map(bronze))
    try:
        work.stage()
        archive_schemas(pipeline, report, work.found)
        planned = work.planned()
    except Exception:
        work.drop()
        raise
    failpoints.reach("reset_staged")
    landed = work.commit_or_drop(planned)
    failpoints.reach("reset_committed")
    finish_reset(pipeline, report)
    sweep(pipeline)
    report_batch(pipeline, report, names_of(bronze), planned, landed, work.found)
    work.report_lost(report)
    report.add_read(work.start, work.end, work.now.unit)
    report.add_seconds(Layer.BRONZE, time.monotonic() - began)


@dataclass
class _FullRefresh:
    """A full refresh under way: what it is planned from, and all micro-batches together: files and counts, never rows.

    Attributes:
        bronze, now: the version of bronze, and the source.
        columns: of the new rows; fields keep their columns.
        found: the new files.
        start, end: split -> [start, end) read.
        kept: rows among those of `found.bronze` that were not read again.
        expired: rows that are lost or stay.
    """

    pipeline: Pipeline
    bronze: DeltaTable
    now: SourceSnapshot
    columns: ColumnMap
    found: StageResult = field(default_factory=StageResult)
    start: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    kept: int = 0
    expired: Expired = field(default_factory=Expired)

    def __post_init__(self) -> None:
        # All micro-batches are one batch, as they are one commit. In an older copy of bronze silver's batch is the later one.
        taken = self.pipeline.progress.silver_batch(self.bronze)
        self.batch = max(counter(self.bronze, Txn.BATCH), taken) + 1
        # Names the list of quarantine's files: each of two concurrent full refreshes has its own list.
        self.ticket = max(counter(self.bronze, Txn.FULL_REFRESH) + 1, time.time_ns() // 1000)

    def stage(self) -> None:
        """Write all files, and the list of those of quarantine."""
        self._stage_source()
        self.expired = count_expired(self.pipeline, self.now, self.found.origins)
        if self.expired.bronze.staying:
            refuse_restored(self.pipeline.bronze, self.bronze, "name all topics that bronze was read from in the settings")
            self._keep_others()
        listed = ResetList(self.batch, self.end, self.found.quarantine, frozenset(self.found.origins))
        keep(self.pipeline.quarantine, self.ticket, listed)

    def _stage_source(self) -> None:
        """Decode and write the whole source, in micro-batches."""
        pipeline, now = self.pipeline, self.now
        self.start, self.end = dict(now.earliest), dict(now.earliest)
        for subject in pipeline.source.subjects(now.latest):
            pipeline.catalog.ids_of(subject)
        while part := plan_micro_batch(now, self.end, now.latest, pipeline.source.batch_limit(self.end)):
            part = replace(part, gaps=(*part.gaps, *pipeline.source.missing(part)))  # counted as expired
            pipeline.on_progress(f"full refresh: {part.records:,} {pipeline.things}, {sum(part.lag.values()):,} left")
            found = stage_micro_batch(pipeline, self.bronze, self.columns, part, self.batch, {})
            self.found.add(found)
            self.columns = pipeline.catalog.message_columns(self.columns, found.types)
            self.end |= part.end

    def _keep_others(self) -> None:
        """Copy rows of topics that are not read as rows of the new batch: later layers take them again with it."""
        schema = pa.schema(self.bronze.schema())
        rows = read_table(self.pipeline.spark, self.bronze).where(not_read({*self.now.latest, *self.found.origins}))
        rows = rows.withColumn("_batch", F.lit(self.batch).cast("long")).select(travelling(schema.names))
        files = FileStage(self.pipeline.bronze, schema, HEADERS).write(rows)
        self.found.bronze += files
        self.kept = sum(f.rows for f in files)

    def planned(self) -> Commit:
        """The commit, which replaces bronze's files."""
        pipeline, bronze, found, batch = self.pipeline, self.bronze, self.found, self.batch
        # A run that reads an archive's topics continues at the archive's end, even if bronze had more: those rows are removed.
        to = self.end | ends_of_origins(found.origins)
        undecodable_kept = self.expired.quarantine.staying
        # With rows from elsewhere, which the archive may get later.
        archive = {Txn.ARCHIVE: 0} if self.kept or undecodable_kept else archive_noted(bronze, pipeline.source)
        compared = (Txn.BATCH, Txn.INCARNATION, Txn.FULL_REFRESH, Txn.REPLAY, Txn.ERASURES, *(p.app for p in to))
        rows, undecodable = (sum(f.rows for f in files) for files in (found.bronze, found.quarantine))
        read = {p: (self.start[p], end) for p, end in self.end.items()}
        info = batch_info(batch, rows, undecodable, read, (), found.suppressed) | kept_info(self.kept)
        info |= {"full_refresh": "rows of batches before this one are gone"}
        advance = {p.app: at for p, at in to.items()} | identity(to) | archive
        advance |= epochs_unknown(split for split in to if split not in self.end) | epochs_noted(self.now, self.end)
        advance |= {Txn.RECORDS_QUARANTINED: undecodable + undecodable_kept, Txn.QUARANTINE_COMMITS: 0}
        advance |= {Txn.BATCH: batch, Txn.INCARNATION: batch, Txn.FULL_REFRESH: self.ticket}
        plan = commit_of(pipeline, bronze, found, txns(bronze, compared), advance, info, self.columns)
        return replace(plan, replace=True, seen=bronze.version() if self.kept else None)

    def commit_or_drop(self, plan: Commit) -> Landed:
        """Commit; the files are deleted if that is known to have failed."""
        try:
            return commit(plan)
        except DataError:
            self.drop()
            raise
        except ConflictError as error:  # after any other failure the outcome may be unknown: then the files are needed
            self.drop()
            raise ConflictError(f"{error}. Nothing was changed: run again while no other run is at work") from None

    def drop(self) -> None:
        """Delete the files of a commit that is known to have failed."""
        with suppress(OSError):
            discard(self.pipeline.bronze, self.found.bronze)
            forget(self.pipeline.quarantine, self.ticket, self.found.quarantine)

    def report_lost(self, report: RunReport) -> None:
        """Report what became of rows that are not in the new bronze."""
        pipeline, expired = self.pipeline, self.expired
        report.add_rejected(self.found.reasons)
        report.warn(*incomplete_records(self.found))
        gone_rows = expired.bronze.gone + expired.quarantine.gone
        report.add(BronzeResult(suppressed=self.found.suppressed, expired=gone_rows, nulled=self.found.nulled))
        name, holder = pipeline.bronze.name, pipeline.settings.source_holder
        gone = "is gone from there" if pipeline.settings.source == FILES else "has expired there"
        if self.kept:
            report.warn(f"{self.kept:,} rows of {name} stay: of topics that are not read now")
        report.warn(f"{name} was replaced by what {holder} has; lost with it, as it {gone}: {expired.named(pipeline)}")
