"""Full refresh of bronze: everything that the source still has is read and decoded again, and replaces bronze's rows.

Guarantee: readers see the old bronze or the new, nothing between; a crash before the one commit changes nothing, after it the
next run finishes. The table's id stays and batch numbers continue; the `txn` `incarnation` is the first batch of the new rows.
Records that the source has lost are lost: a full refresh is refused, with what would be lost, until a setting allows it.
Rows of topics that the settings do not name at the moment, or that an archive does not have, stay: their offsets stay, too, so
no run would read them again.
"""

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F

from game_events.decoding.columns import ColumnMap
from game_events.errors import ConfigurationError, ConflictError, DataError, TransientError, first_few
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit, refuse_restored
from game_events.lakehouse.commits.group import for_games
from game_events.lakehouse.commits.transactions import WITHOUT_EXPIRED, Txn, counter, expired_rows, txns
from game_events.lakehouse.data.columns import COORDINATES, HEADERS, SOURCE
from game_events.lakehouse.data.reading import row_count
from game_events.lakehouse.data.spark_files import read_table, travelling
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.tables import Layer, Table, names_of
from game_events.pipeline.bronze.load import archive_schemas, commit_of, incomplete_records, report_batch, stage_micro_batch
from game_events.pipeline.bronze.offsets import all_there_is, epochs_noted, epochs_unknown, sources_noted
from game_events.pipeline.context import Pipeline
from game_events.pipeline.definitions import refuse_misfits, refuse_other_types, refuse_others, report_definitions
from game_events.pipeline.offsets import archive_noted, batch_info, ends_of_origins, identity, kept_info
from game_events.pipeline.quarantine import ResetList, complete_quarantine, forget, is_finished, is_noted, keep, sweep
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult
from game_events.sources.factory import not_read
from game_events.sources.source import MicroBatch, Offsets, SourceSnapshot
from game_events.workers.job import Coordinates, FileStage
from game_events.workers.results import StagedRows

ALLOW = "GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH"

#: Partitions that a message names one by one.
PARTITIONS_NAMED = 8


class RowCounts(NamedTuple):
    """Rows of a table: all; those of records that the source does not have any more; those that a full refresh keeps."""

    rows: int = 0
    gone: int = 0
    staying: int = 0


class Expired(NamedTuple):
    """Rows that a full refresh of bronze cannot bring back: decoded ones of bronze, undecodable ones of quarantine."""

    bronze: RowCounts = RowCounts()
    quarantine: RowCounts = RowCounts()

    def named(self, pipeline: Pipeline) -> str:
        """For messages."""
        return (
            f"{self.bronze.gone:,} of the {self.bronze.rows:,} rows of {pipeline.bronze.name} and {self.quarantine.gone:,} of "
            f"the {self.quarantine.rows:,} undecodable rows of {pipeline.quarantine.name}"
        )


def refuse_unless_allowed(pipeline: Pipeline) -> None:
    """Refuse a full refresh by mistake: ConfigurationError names the setting that allows it, and what would be lost."""
    if pipeline.settings.allow_bronze_full_refresh or pipeline.open_bronze() is None:
        return
    source = pipeline.source
    try:
        now = source_to_read(pipeline)
        expired = f"{count_expired(pipeline, now).named(pipeline)} {source.gone_text('are', 'have')}"
        if now.unit > 1:
            there = f"{sum(now.there.values()):,} {source.things}"
        else:
            named = [f"{p} from {source.offset_name} {o:,}" for p, o in sorted(now.earliest.items())]
            rest = f" and {len(named) - PARTITIONS_NAMED} partitions more" if len(named) > PARTITIONS_NAMED else ""
            there = ", ".join(named[:PARTITIONS_NAMED]) + rest
        lost = f"The source has {there}: {expired} and would be lost"
    except TransientError as error:
        holder = pipeline.source.holder(pipeline.settings)
        lost = f"What {holder} does not have any more would be lost, and {holder} does not answer how much that is ({error})"
    raise ConfigurationError(
        f"{pipeline.bronze.name} is protected from a full refresh. {lost}. Nothing was changed. To replace it all the same, "
        f"set {ALLOW}=true"
    )


def refuse_without_expired(pipeline: Pipeline) -> None:
    """Refuse a full refresh after which silver, made again, would lack rows that only silver has: DataError says how many."""
    bronze = pipeline.open_bronze()
    if not expired_rows(bronze) or pipeline.settings.allow_refresh_without_expired:
        return
    lost = +Counter(for_games(pipeline.lakehouse.games(), partial(_lost, pipeline, bronze)))
    if lost:
        raise DataError(
            f"silver would be made again without {lost.total():,} rows that {pipeline.bronze.name} has lost by age "
            f"(GAME_EVENTS_RETENTION_DAYS): of {first_few(sorted(lost), PARTITIONS_NAMED, ', ')}. Nothing was changed. "
            f"{WITHOUT_EXPIRED}"
        )


def _lost(pipeline: Pipeline, bronze: DeltaTable | None, game: str) -> int:
    """Rows that bronze has lost by age and a game's silver has."""
    names = [game, *pipeline.lakehouse.type_tables().get(game, [])]
    tables = [pipeline.tables.open_to_read(pipeline.lakehouse.silver(name)) for name in names]
    return max(0, expired_rows(bronze, game) - sum(map(expired_rows, tables)))


def count_expired(pipeline: Pipeline, now: SourceSnapshot, origins: Offsets | None = None) -> Expired:
    """Count what the source does not have any more; one Spark job over three columns of each table.

    `origins`: of the records of its files, partition -> end; None: they were not read yet, so the contents of an archive are
    unknown, and every row that is not of one of its files counts as lost.
    """
    return Expired(*(_counts(pipeline, table, now, origins) for table in (pipeline.bronze, pipeline.quarantine)))


def _counts(pipeline: Pipeline, table: Table, now: SourceSnapshot, origins: Offsets | None) -> RowCounts:
    handle = table.open()
    if handle is None or not row_count(handle):
        return RowCounts()
    rows = read_table(pipeline.spark, handle)
    if table is pipeline.quarantine:
        rows = rows.where(F.col("layer") == Layer.BRONZE)
    source = pipeline.source
    # What an archive has is not known before its files are read.
    is_known = source.archive is None or origins is not None
    read = {*now.latest, *(origins or ())}
    stays = not_read(read, sourced=SOURCE in rows.columns) if is_known else F.lit(False)
    lost = source.lost_rows(now, origins)
    if lost is None:
        there = Coordinates(source.reading(MicroBatch(now.earliest, now.latest))).rows(pipeline.spark)
        rows = rows.join(there.withColumn("_there", F.lit(False)), list(COORDINATES), "left")
        lost = F.col("_there").isNull()
    gone = lost & ~stays
    which = {"rows": F.lit(1), "gone": F.when(gone, 1), "staying": F.when(stays, 1)}
    (counted,) = rows.agg(*(F.count(condition).alias(name) for name, condition in which.items())).collect()
    return RowCounts(*counted)


def source_to_read(pipeline: Pipeline) -> SourceSnapshot:
    """The source as it will be read: what is older than the starting time counts as gone."""
    source = pipeline.source
    now = source.snapshot(full_refresh=True)
    return replace(now, earliest=all_there_is(pipeline, now))


def replace_bronze(pipeline: Pipeline, report: RunReport) -> None:
    """Replace bronze, and the undecodable rows of quarantine, by what the source has now.

    Micro-batches are decoded and written one by one; then one commit removes the old files and adds the new ones.

    Raises:
        ConfigurationError: the setting does not allow it.
        ConflictError: a run committed to bronze meanwhile: nothing has changed.
        DataError: bronze was altered so that its rows cannot be replaced (`Table.writable`): nothing has changed.
    """
    refuse_unless_allowed(pipeline)
    refuse_without_expired(pipeline)
    began = time.monotonic()
    complete_quarantine(pipeline, report)
    bronze = pipeline.open_bronze()
    quarantine = pipeline.open_quarantine()
    if bronze is None:
        return  # the first run reads the whole topic anyway
    pipeline.bronze.writable(bronze, replaced=True)
    if quarantine is not None:
        pipeline.quarantine.writable(quarantine, replaced=True)
        if not (is_noted(bronze, quarantine) and is_finished(bronze, quarantine)):
            raise ConflictError(f"{pipeline.bronze.name}: a concurrent run is at work on it. Nothing was changed: run again")
    refuse_other_types(pipeline, bronze)
    work = _FullRefresh(pipeline, bronze, source_to_read(pipeline), pipeline.column_map(bronze))
    try:
        work.stage()
        archive_schemas(pipeline, report, work.staged)
        planned = work.planned()
    except Exception:
        work.drop()
        raise
    failpoints.reach("reset_staged")
    try:
        landed = commit(planned)
    except (ConflictError, DataError) as error:  # after any other failure the outcome may be unknown: then the files are needed
        work.drop()
        if isinstance(error, DataError):
            raise
        raise ConflictError(f"{error}. Nothing was changed: run again while no other run is at work") from None
    failpoints.reach("reset_committed")
    complete_quarantine(pipeline, report)
    sweep(pipeline)
    report_batch(pipeline, report, names_of(bronze), planned, landed, work.staged)
    work.report_lost(report)
    report.add_read(work.now.earliest, work.end, work.now.unit_of)
    report.add_seconds(Layer.BRONZE, time.monotonic() - began)


@dataclass
class _FullRefresh:
    """A full refresh under way: what it is planned from, and all micro-batches together: files and counts, never rows.

    Attributes:
        bronze, now: the version of bronze, and the source.
        columns: of the new rows; fields keep their columns.
        staged: the new files.
        end: partition -> offset up to which it was read.
        kept: rows among those of `staged.bronze` that were not read again.
        expired: rows that are lost or stay.
    """

    pipeline: Pipeline
    bronze: DeltaTable
    now: SourceSnapshot
    columns: ColumnMap
    staged: StagedRows = field(default_factory=StagedRows)
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
        """Write all files, in micro-batches, and the list of those of quarantine."""
        pipeline = self.pipeline
        now = self.now
        self.end = dict(now.earliest)
        for subject in pipeline.source.subjects(now.latest):
            pipeline.catalog.ids_of(subject)
        while part := pipeline.source.plan(now, self.end, now.latest):
            part = replace(part, gaps=(*part.gaps, *pipeline.source.missing(part)))  # counted as expired
            pipeline.on_progress(f"full refresh: {part.records:,} {pipeline.source.things}, {sum(part.lag.values()):,} left")
            staged = stage_micro_batch(pipeline, self.bronze, self.columns, part, self.batch, {})
            self.staged.add(staged)
            self.columns = pipeline.catalog.message_columns(self.columns, staged.types)
            self.end |= part.end
        refuse_misfits(pipeline, self.bronze, self.staged)
        self.expired = count_expired(pipeline, now, self.staged.origins)
        if self.expired.bronze.staying:
            refuse_restored(pipeline.bronze, self.bronze, "name all topics that bronze was read from in the settings")
            refuse_others(pipeline, self.bronze)
            self._keep_others()
        listed = ResetList(self.batch, self.end, self.staged.quarantine, frozenset(self.staged.origins))
        keep(pipeline.quarantine, self.ticket, listed)

    def _keep_others(self) -> None:
        """Copy rows of topics that are not read as rows of the new batch: later layers take them again with it."""
        schema = pa.schema(self.bronze.schema())
        rows = read_table(self.pipeline.spark, self.bronze)
        rows = rows.where(not_read({*self.now.latest, *self.staged.origins}, sourced=SOURCE in rows.columns))
        rows = rows.withColumn("_batch", F.lit(self.batch).cast("long")).select(travelling(schema.names))
        files = FileStage(self.pipeline.bronze, schema, HEADERS).write(rows)
        self.staged.bronze += files
        self.kept = sum(f.rows for f in files)

    def _archive_noted(self) -> dict[str, int]:
        """The archive that all rows are from; none if there are rows from elsewhere, which the archive may get later."""
        has_others = self.kept or self.expired.quarantine.staying
        return {Txn.ARCHIVE: 0} if has_others else archive_noted(self.bronze, self.pipeline.source)

    def planned(self) -> Commit:
        """The commit, which replaces bronze's files and counts what quarantine has."""
        bronze = self.bronze
        staged = self.staged
        # A run that reads an archive's topics continues at the archive's end, even if bronze had more: those rows are removed.
        to = self.end | ends_of_origins(staged.origins)
        undecodable = sum(file.rows for file in staged.quarantine)
        undecodable_kept = self.expired.quarantine.staying

        of_rows = (Txn.BATCH, Txn.INCARNATION, Txn.FULL_REFRESH, Txn.REPLAY, Txn.ERASURES)
        compared = (*of_rows, Txn.EXPIRED, Txn.RAW_EXPIRED, *(p.app for p in to))
        advance = {partition.app: offset for partition, offset in to.items()}
        advance |= identity(to)
        advance |= self._archive_noted()
        advance |= epochs_unknown(partition for partition in to if partition not in self.end)
        advance |= epochs_noted(self.now, self.end) | sources_noted(bronze, self.now)
        advance |= {Txn.RECORDS_QUARANTINED: undecodable + undecodable_kept, Txn.QUARANTINE_COMMITS: 0}
        advance |= {Txn.BATCH: self.batch, Txn.INCARNATION: self.batch, Txn.FULL_REFRESH: self.ticket}

        read = {partition: (self.now.earliest[partition], end) for partition, end in self.end.items()}
        rows = sum(file.rows for file in staged.bronze)
        info = batch_info(self.batch, rows, undecodable, read, (), staged.suppressed) | kept_info(self.kept)
        info["full_refresh"] = "rows of batches before this one are gone"
        plan = commit_of(self.pipeline, bronze, staged, txns(bronze, compared), advance, info, self.columns)
        return replace(plan, replace=True, from_version=bronze.version() if self.kept else None)

    def drop(self) -> None:
        """Delete the files of a commit that is known to have failed."""
        with suppress(OSError):
            discard(self.pipeline.bronze, self.staged.bronze)
            forget(self.pipeline.quarantine, self.ticket, self.staged.quarantine)

    def report_lost(self, report: RunReport) -> None:
        """Report what became of rows that are not in the new bronze."""
        pipeline = self.pipeline
        expired = self.expired
        report.add_rejected(self.staged.reasons)
        report.warn(*incomplete_records(self.staged))
        report_definitions(pipeline, report, self.bronze, self.staged)
        gone_rows = expired.bronze.gone + expired.quarantine.gone
        report.add(BronzeResult(suppressed=self.staged.suppressed, expired=gone_rows))
        report.add(BronzeResult(nulled=self.staged.nulled, rescued=self.staged.rescued))
        name = pipeline.bronze.name
        holder = pipeline.source.holder(pipeline.settings)
        gone = pipeline.source.gone_text("is", "has")
        if self.kept:
            report.warn(f"{self.kept:,} rows of {name} stay: of topics that are not read now")
        report.warn(f"{name} was replaced by what {holder} has; lost with it, as it {gone}: {expired.named(pipeline)}")
