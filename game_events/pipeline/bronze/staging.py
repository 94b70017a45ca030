"""Staging of one micro-batch: its records are decoded by Spark's workers and written to files; nothing is committed."""

from dataclasses import dataclass, replace

from deltalake import DeltaTable
from pyspark.sql import DataFrame

from game_events.decoding.batch_decoder import DecodePlan, TypeKey
from game_events.decoding.core.column_map import ColumnMap
from game_events.errors import ConflictError
from game_events.lakehouse.event_columns import FIRST_MESSAGE
from game_events.lakehouse.event_expressions import source_columns
from game_events.pipeline.bronze.decode_job import StageResult, run_decode_job
from game_events.pipeline.bronze.excluded_records import WHY, Deadly, deadly_records, mark_excluded
from game_events.pipeline.bronze.quarantine import Decided
from game_events.pipeline.bronze.worker import BronzeTask
from game_events.pipeline.context import Pipeline
from game_events.pipeline.suppression.driver import suppression
from game_events.sources.core.source import MicroBatch
from game_events.sources.files.offsets import FileGap
from game_events.sources.files.source import FileSource
from game_events.sources.kafka.source import KafkaSource
from game_events.spark.config import HEADER_BYTES, KAFKA_ARROW_RECORDS, SMALL_RECORD_BYTES, arrow_batches
from game_events.spark.crashed_workers import WorkerCrashError, crashes_explained, named

#: Records of one task: fewer tasks for small micro-batches, as each costs about 100 ms.
TASK_RECORDS = 500_000


def stage_micro_batch(
    pipeline: Pipeline, bronze: DeltaTable, columns: ColumnMap, part: MicroBatch, batch: int, decided: Decided
) -> StageResult:
    """Decode a micro-batch and write its files.

    `bronze`: the version with the `erasures` that the commit compares; the list of erased data subjects is read after it.
    `batch`: the number of its rows. `decided`: records that are left out, as quarantine holds them.

    Raises:
        ConflictError: a topic was recreated meanwhile; the files are deleted.
        WorkerCrashError: as `deadly_records`; or workers crash over no record in particular.
    """
    if part.records <= sum(isinstance(gap, FileGap) for gap in part.gaps):  # it only skips a gap
        return StageResult()
    source = pipeline.source
    reading = None
    if isinstance(source, FileSource):
        pipeline.catalog.offer(source.schemas())
        reading = source.reading()
    keep_raw, whom, constants = pipeline.settings.keep_raw == "all", suppression(pipeline, bronze), source.constants(part)
    tables = pipeline.bronze, pipeline.quarantine
    job = BronzeTask(*tables, DecodePlan(), constants, batch, pipeline.run_id, keep_raw, decided, whom, reading)
    attempt = _Attempt(pipeline, job, columns, _expected_types(pipeline, part))
    try:
        staged = attempt.run(part)
    except WorkerCrashError as error:
        if not isinstance(source, KafkaSource):  # only in a topic each offset is one record
            raise
        staged = _isolated(attempt, part, error)
    other = source.changed(part)
    if other is not None:
        staged.discard(*tables)
        raise ConflictError(f"{other}. Nothing of it was kept")
    return staged


def _expected_types(pipeline: Pipeline, part: MicroBatch) -> list[TypeKey]:
    """Types to plan for before the first record."""
    ids = [i for subject in pipeline.source.subjects(part.end) for i in pipeline.catalog.expected_ids(subject)]
    expected = pipeline.source.expected_types() if isinstance(pipeline.source, FileSource) else []
    return [*((i, FIRST_MESSAGE) for i in ids), *expected]


@dataclass(frozen=True)
class _Attempt:
    """Decodes parts of a micro-batch."""

    pipeline: Pipeline
    job: BronzeTask
    columns: ColumnMap
    expected: list[TypeKey]

    def run(self, part: MicroBatch, deadly: Deadly | None = None) -> StageResult:
        """Decode a part; raises WorkerCrashError.

        `deadly`: records that are quarantined without being decoded.
        """
        source = self.pipeline.source
        if isinstance(source, KafkaSource) and source.small_records and not deadly:
            staged = self._run(replace(self.job, small=True), part, {})
            if not staged.large:
                return staged
            staged.discard(self.job.bronze, self.job.quarantine)
            source.small_records = False
        return self._run(self.job, part, deadly or {})

    def _run(self, job: BronzeTask, part: MicroBatch, deadly: Deadly) -> StageResult:
        ranges = named([f"{split} {part.start[split]} to {end - 1}" for split, end in sorted(part.end.items())])
        rows = self._rows(part, deadly, small=job.small)
        with arrow_batches(self.pipeline.spark, KAFKA_ARROW_RECORDS, unlimited=job.small), crashes_explained(f" over {ranges}"):
            return run_decode_job(self.pipeline, job, rows, self.columns, self.expected)

    def _rows(self, part: MicroBatch, deadly: Deadly, *, small: bool) -> DataFrame:
        source, most = self.pipeline.source, self.pipeline.settings.max_record_bytes
        rows = source.read(self.pipeline.spark, part)
        if self.job.reading is not None:
            return rows
        if small:
            records = mark_excluded(rows, min(most, SMALL_RECORD_BYTES), {}, 0, HEADER_BYTES)
        else:
            records = mark_excluded(rows, most, deadly)
        records = records.select(*source_columns(self.job.constants), *WHY)
        return records.coalesce(max(1, -(-source.records(part) // TASK_RECORDS)))

    def discard(self, part: MicroBatch) -> None:
        """Decode a part and keep nothing."""
        self.run(part).discard(self.job.bronze, self.job.quarantine)


def _isolated(attempt: _Attempt, part: MicroBatch, error: WorkerCrashError) -> StageResult:
    """Decode a micro-batch over which a worker crashed; without the records that crash it if it crashes again."""
    attempt.pipeline.on_progress(f"bronze: {error}. The micro-batch is tried again, then its halves")
    try:
        return attempt.run(part)
    except WorkerCrashError as again:
        return attempt.run(part, deadly_records(part, again, attempt.discard))
