"""Staging: Spark's workers read and decode the records of a micro-batch (or stored rows) and write files; nothing is committed.

Spark gets the numbers of the tasks only: the workers read the records themselves (`sources.core.reading`).
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from deltalake import DeltaTable
from pyspark.sql import DataFrame

from game_events.decoding.batch_decoder import DecodePlan, TypeKey
from game_events.decoding.core.column_map import ColumnMap
from game_events.errors import ConflictError
from game_events.lakehouse.data.worker_job import task_numbers
from game_events.lakehouse.event_columns import FIRST_MESSAGE
from game_events.pipeline.bronze.isolation import Deadly, deadly_records
from game_events.pipeline.bronze.quarantine import Decided
from game_events.pipeline.bronze.worker import BronzeTask, DecodeJob, StageResult
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.one_pass import OnePass
from game_events.pipeline.suppression.driver import suppression
from game_events.pipeline.suppression.worker import Suppression
from game_events.sources.core.reading import Reading
from game_events.sources.core.source import MicroBatch
from game_events.sources.files.offsets import FileGap
from game_events.spark.crashed_workers import WorkerCrashError, crashes_explained, named
from game_events.spark.worker_errors import worker_errors_named

log = logging.getLogger(__name__)
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
    """Decode a micro-batch and write its files; `one_pass` gets silver's files of the same rows, where the workers write them.

    `bronze`: the version with the `erasures` that the commit compares; the list of erased data subjects is read after it.
    `batch`: the number of its rows. `decided`: records that are left out, as quarantine holds them.

    Raises:
        ConflictError: a topic was recreated meanwhile, or records expired; the files are deleted.
        WorkerCrashError: as `deadly_records`; or workers crash over no record in particular.
    """
    if part.records <= sum(isinstance(gap, FileGap) for gap in part.gaps):  # it only skips a gap
        return StageResult()
    source, catalog = pipeline.source, pipeline.catalog
    catalog.offer(source.schemas())
    # Types to plan for before the first record.
    expected = source.expected_types()
    expected += [(i, FIRST_MESSAGE) for subject in source.subjects(part.end) for i in catalog.expected_ids(subject)]
    attempt = _Attempt(pipeline, columns, expected, batch, decided, suppression(pipeline, bronze))
    try:
        staged = attempt.with_silver(bronze, part, one_pass)
    except WorkerCrashError as error:
        if not source.one_by_one:
            raise
        staged = _isolated(replace(attempt, sparing=True), part, error)
    other = source.changed(part)
    if other is not None:
        staged.discard(pipeline.bronze, pipeline.quarantine)
        raise ConflictError(f"{other}. Nothing of it was kept")
    return staged


@dataclass(frozen=True)
class _Attempt:
    """Decodes parts of a micro-batch; `sparing`: with as little memory as possible."""

    pipeline: Pipeline
    columns: ColumnMap
    expected: list[TypeKey]
    batch: int
    decided: Decided
    suppression: Suppression | None
    sparing: bool = False

    def run(self, part: MicroBatch, deadly: Deadly | None = None) -> StageResult:
        """Decode a part; raises WorkerCrashError. `deadly`: records that are quarantined without being decoded."""
        reading = self.pipeline.source.reading(part)
        _, staged = self._decoded(part, self._job(reading.sparing() if self.sparing else reading, deadly or {}))
        return staged

    def with_silver(self, bronze: DeltaTable, part: MicroBatch, one_pass: OnePass | None) -> StageResult:
        """As `run`; where it is possible, the workers write silver's files of the rows, too."""
        if one_pass is None:
            return self.run(part)
        reading = self.pipeline.source.reading(part)
        planned = replace(self._job(reading, {}), one_pass=one_pass.plan(self.pipeline, bronze, reading.tasks))
        job, staged = self._decoded(part, planned)
        one_pass.staged(job.fan_out, staged.silver)
        return staged

    def _job(self, reading: Reading, deadly: Deadly) -> BronzeTask:
        pipeline, keep_raw = self.pipeline, self.pipeline.settings.keep_raw == "all"
        return BronzeTask(
            pipeline.bronze,
            pipeline.quarantine,
            DecodePlan(),
            reading,
            self.batch,
            pipeline.run_id,
            keep_raw,
            self.decided,
            self.suppression,
            _by_partition(deadly),
        )

    def _decoded(self, part: MicroBatch, job: BronzeTask) -> tuple[BronzeTask, StageResult]:
        """The job with its last plan, and what it wrote."""
        ranges = named([f"{split} {part.start[split]} to {end - 1}" for split, end in sorted(part.end.items())])
        with crashes_explained(f" over {ranges}"), worker_errors_named():
            numbers = task_numbers(self.pipeline.spark, job.reading.tasks)
            return run_decode_job(self.pipeline, job, numbers, self.columns, self.expected)


def _by_partition(deadly: Deadly) -> Mapping[tuple[str, int], Mapping[int, str]]:
    """(topic id, partition) -> offset -> detail for quarantine."""
    found: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for (split, offset), detail in deadly.items():
        found[split.topic_id, split.partition][offset] = detail
    return found


def _isolated(attempt: _Attempt, part: MicroBatch, error: WorkerCrashError) -> StageResult:
    """Decode a micro-batch over which a worker crashed; without the records that crash it if it crashes again."""
    pipeline = attempt.pipeline
    pipeline.on_progress(f"bronze: {error}. The micro-batch is tried again, then its halves")
    try:
        return attempt.run(part)
    except WorkerCrashError as again:

        def decode(some: MicroBatch) -> None:
            attempt.run(some).discard(pipeline.bronze, pipeline.quarantine)

        return attempt.run(part, deadly_records(part, again, decode))


def run_decode_job(
    pipeline: Pipeline, job: Job, rows: DataFrame, columns: ColumnMap, wanted: Iterable[TypeKey]
) -> tuple[Job, StageResult]:
    """Run rows through the workers, again if types occurred that the plan did not know: only the driver asks the registry.

    Files of earlier attempts are deleted; so are files of a plan with types that did not occur and that changed columns, as the
    commit gives the table the columns of the types that occurred.

    `rows`: numbers of tasks, or stored rows. `wanted`: types to plan for at once; those that this process met are added.
    Returns the job with the plan of the last attempt, too.

    Raises:
        TransientError: a type's schema is not archived and the registry does not answer.
    """
    catalog = pipeline.catalog
    planned = set(wanted) | catalog.met_types() | {(schema_id, ()) for schema_id in catalog.unknown_ids()}
    room, rest = catalog.max_unknown_ids, None
    while True:
        job = job.planned(catalog.plan(columns, planned, rest))
        staged = StageResult.sum(job.collect(rows))
        catalog.offer(staged.schemas)
        new = staged.unknown - planned
        if not new and _same_columns(job.plan.columns, catalog.message_columns(columns, staged.types)):
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
