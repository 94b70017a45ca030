"""Staging: Spark's workers decode the records of a micro-batch (or stored rows) and write files; nothing is committed.

Records that go to quarantine without being decoded are marked here: too large ones, and ones that crash a worker. Large records
are cut in the JVM: no worker, no Arrow batch and no file ever holds one whole.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.decoding.batch_decoder import DecodePlan, TypeKey
from game_events.decoding.core.column_map import ColumnMap
from game_events.decoding.core.reasons import KEPT_BYTES, Reason, too_large
from game_events.errors import ConflictError
from game_events.lakehouse.event_columns import FIRST_MESSAGE, RAW_COLUMNS
from game_events.lakehouse.event_expressions import NO_HEADERS
from game_events.pipeline.bronze.isolation import Deadly, deadly_records
from game_events.pipeline.bronze.quarantine import Decided
from game_events.pipeline.bronze.worker import BronzeTask, DecodeJob, StageResult
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.one_pass import OnePass
from game_events.pipeline.suppression.driver import suppression
from game_events.sources.core.source import MicroBatch
from game_events.sources.files.offsets import FileGap
from game_events.sources.files.source import FileSource
from game_events.sources.kafka.source import KafkaSource
from game_events.spark.config import HEADER_BYTES, KAFKA_ARROW_RECORDS, SMALL_RECORD_BYTES, arrow_batches
from game_events.spark.crashed_workers import WorkerCrashError, crashes_explained, named
from game_events.spark.schemas import quoted

log = logging.getLogger(__name__)

#: Records of one task: fewer tasks for small micro-batches, as each costs about 100 ms.
TASK_RECORDS = 500_000
#: Columns with a record's reason and detail for quarantine; NULL: it is to be decoded.
WHY = ("reason", "detail")
_DEADLY = "_deadly"
Job = TypeVar("Job", bound=DecodeJob)


def stage_micro_batch(
    pipeline: Pipeline,
    bronze: DeltaTable,
    columns: ColumnMap,
    part: MicroBatch,
    batch: int,
    decided: Decided,
    one_pass: OnePass | None = None,
) -> StageResult:
    """Decode a micro-batch and write its files; `one_pass`: gets silver's files of the same rows, where the workers write them.

    `bronze`: the version with the `erasures` that the commit compares; the list of erased data subjects is read after it.
    `batch`: the number of its rows. `decided`: records that are left out, as quarantine holds them.

    Raises:
        ConflictError: a topic was recreated meanwhile; the files are deleted.
        SmallerPartsError: as `KafkaSource.read_by_driver`.
        WorkerCrashError: as `deadly_records`; or workers crash over no record in particular.
    """
    if part.records <= sum(isinstance(gap, FileGap) for gap in part.gaps):  # it only skips a gap
        return StageResult()
    source, catalog, reading = pipeline.source, pipeline.catalog, None
    # Types to plan for before the first record.
    expected: list[TypeKey] = []
    if isinstance(source, FileSource):
        catalog.offer(source.schemas())
        reading, expected = source.reading(), [*source.expected_types()]
    expected += [(i, FIRST_MESSAGE) for subject in source.subjects(part.end) for i in catalog.expected_ids(subject)]
    keep_raw, whom, constants = pipeline.settings.keep_raw == "all", suppression(pipeline, bronze), source.constants(part)
    tables = pipeline.bronze, pipeline.quarantine
    job = BronzeTask(*tables, DecodePlan(), constants, batch, pipeline.run_id, keep_raw, decided, whom, reading)
    attempt = _Attempt(pipeline, job, columns, expected)
    try:
        staged = attempt.with_silver(bronze, part, one_pass)
    except WorkerCrashError as error:
        if not isinstance(source, KafkaSource):  # only in a topic each offset is one record
            raise
        staged = _isolated(attempt, part, error)
    except (PySparkException, Py4JJavaError) as error:
        if not isinstance(source, KafkaSource) or not source.read_by_driver(part, error):
            raise
        staged = attempt.run(part)
    other = source.changed(part)
    if other is not None:
        staged.discard(*tables)
        raise ConflictError(f"{other}. Nothing of it was kept")
    return staged


@dataclass(frozen=True)
class _Attempt:
    """Decodes parts of a micro-batch."""

    pipeline: Pipeline
    job: BronzeTask
    columns: ColumnMap
    expected: list[TypeKey]
    one_pass: OnePass | None = None

    def run(self, part: MicroBatch, deadly: Deadly | None = None) -> StageResult:
        """Decode a part; raises WorkerCrashError. `deadly`: records that are quarantined without being decoded."""
        spark, source = self.pipeline.spark, self.pipeline.source
        small = isinstance(source, KafkaSource) and source.small_records and not deadly
        job, rows = replace(self.job, small=small), source.read(spark, part)
        if job.reading is None:
            most = self.pipeline.settings.max_record_bytes
            names = [name for name in RAW_COLUMNS if name not in job.constants]
            if small:
                rows = for_workers(rows, names, min(most, SMALL_RECORD_BYTES), {}, 0, HEADER_BYTES)
            else:
                rows = for_workers(rows, names, most, deadly or {})
            rows = rows.coalesce(max(1, -(-source.records(part) // TASK_RECORDS)))
        ranges = named([f"{split} {part.start[split]} to {end - 1}" for split, end in sorted(part.end.items())])
        with arrow_batches(spark, KAFKA_ARROW_RECORDS, unlimited=small), crashes_explained(f" over {ranges}"):
            job, staged = run_decode_job(self.pipeline, job, rows, self.columns, self.expected)
        if isinstance(source, KafkaSource) and staged.large:
            # Nothing was written: once more, and from now on, as a job that takes large records.
            job.discard(staged)
            source.small_records = False
            return self.run(part, deadly)
        if self.one_pass is not None:
            self.one_pass.staged(job.fan_out, staged.silver)
        return staged

    def with_silver(self, bronze: DeltaTable, part: MicroBatch, one_pass: OnePass | None) -> StageResult:
        """As `run`; where it is possible, the workers write silver's files of the rows, too."""
        if one_pass is None:
            return self.run(part)
        task = one_pass.plan(self.pipeline, bronze, self.pipeline.source.records(part), TASK_RECORDS)
        return replace(self, job=replace(self.job, one_pass=task), one_pass=one_pass).run(part)


def _isolated(attempt: _Attempt, part: MicroBatch, error: WorkerCrashError) -> StageResult:
    """Decode a micro-batch over which a worker crashed; without the records that crash it if it crashes again."""
    attempt.pipeline.on_progress(f"bronze: {error}. The micro-batch is tried again, then its halves")
    try:
        return attempt.run(part)
    except WorkerCrashError as again:
        job = attempt.job
        deadly = deadly_records(part, again, lambda some: attempt.run(some).discard(job.bronze, job.quarantine))
        return attempt.run(part, deadly)


def for_workers(
    records: DataFrame, names: Iterable[str], most: int, deadly: Deadly, kept_bytes: int = KEPT_BYTES, header_bytes: int = 0
) -> DataFrame:
    """Columns of a source's records as they travel to the workers, and `WHY`; of those too large only the first `kept_bytes`.

    `records` has `RAW_COLUMNS`; `most`: bytes of value, key and headers together, a header counts `header_bytes` more than its
    own; `deadly`: records that crash a worker. One selection of SQL texts: made of Spark's objects, call by call, it took a
    twelfth of a small micro-batch's time.
    """
    # As one text: Spark compiles that, and does not compile a function for each header.
    texts = "array_join(concat(headers.key, CAST(headers.value AS array<string>)), '')"
    in_headers = f"if(size(headers) > 0, octet_length({texts}) + size(headers) * {header_bytes}, 0)"
    size = f"coalesce(length(value), 0) + coalesce(length(key), 0) + {in_headers}"
    large = f"{size} > {most}"
    before, after = too_large("\0", most).split("\0")
    reason = f"WHEN {large} THEN '{Reason.TOO_LARGE}'"
    detail = f"WHEN {large} THEN concat('{before}', format_number({size}, 0), '{after}')"
    if deadly:
        records = records.withColumn(_DEADLY, _detail_of(deadly))
        reason, detail = f"{reason} WHEN {_DEADLY} IS NOT NULL THEN '{Reason.MALFORMED}'", f"{detail} ELSE {_DEADLY}"
    parts = {name: f"if({large}, substring({name}, 1, {kept_bytes}), {name})" for name in ("value", "key")}
    no_room = f"{large} AND {in_headers} > {min(most, kept_bytes)}"
    parts["headers"] = f"if({no_room} OR headers IS NULL, {NO_HEADERS}, headers)"
    columns = [f"{parts.get(name, quoted(name))} AS {quoted(name)}" for name in names]
    return records.selectExpr(*columns, f"CASE {reason} END AS {WHY[0]}", f"CASE {detail} END AS {WHY[1]}")


def _detail_of(deadly: Deadly) -> Column:
    """Detail for quarantine of the records that crash a worker; NULL: any other record."""
    found = F.lit(None).cast("string")
    for (split, offset), why in deadly.items():
        here = (F.col("topic_id") == split.topic_id) & (F.col("partition") == split.partition) & (F.col("offset") == offset)
        found = F.when(here, F.lit(why)).otherwise(found)
    return found


def run_decode_job(
    pipeline: Pipeline, job: Job, rows: DataFrame, columns: ColumnMap, wanted: Iterable[TypeKey]
) -> tuple[Job, StageResult]:
    """Run rows through the workers, again if types occurred that the plan did not know: only the driver asks the registry.

    Files of earlier attempts are deleted; so are files of a plan with types that did not occur and that changed columns, as the
    commit gives the table the columns of the types that occurred. Not again if there are `large` records.

    `wanted`: types to plan for at once; those that this process met are added. Returns the job with the plan of the last
    attempt, too.

    Raises:
        TransientError: a type's schema is not archived and the registry does not answer.
    """
    catalog = pipeline.catalog
    planned = set(wanted) | catalog.met_types() | {(schema_id, ()) for schema_id in catalog.unknown_ids()}
    room, rest = catalog.max_unknown_ids, None
    while True:
        job = replace(job, plan=catalog.plan(columns, planned, rest))
        staged = StageResult.sum(job.collect(rows))
        catalog.offer(staged.schemas)
        new = staged.unknown - planned
        if staged.large or (not new and _same_columns(job.plan.columns, catalog.message_columns(columns, staged.types))):
            return job, staged
        job.discard(staged)
        asked, missed = catalog.look_up(new, room)
        room -= missed
        if asked < new:
            log.warning("schema_ids_not_asked=%d limit=%d", len(new - asked), catalog.max_unknown_ids)
            rest = f"the registry was not asked: it does not know more than {catalog.max_unknown_ids:,} ids of one micro-batch"
            rest += " (GAME_EVENTS_MAX_UNKNOWN_IDS)"
        planned = planned | asked if new else {*staged.types, *staged.undecoded}


def _same_columns(planned: ColumnMap, occurred: ColumnMap) -> bool:
    """Whether no column of the plan depends on a type that did not occur."""
    return dict(planned.columns) == dict(occurred.columns) and all(
        planned.names.get(key) == name for key, name in occurred.names.items()
    )
