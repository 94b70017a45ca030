"""Staging: Spark's workers read and decode the records of a micro-batch (or stored rows) and write files; nothing is committed.

Spark gets the numbers of the tasks only: the workers read the records themselves (`sources.source.Reading`).

Search for the records that crash a worker, each by itself: they go to quarantine without being decoded.

Undecodable records of a micro-batch: their commit to quarantine, before bronze's, so that no record is ever in both tables.

Two tables have two commits, and two runs may read the same records and know different schemas. So a micro-batch with
undecodable records is announced in bronze first (`quarantine_begun`): bronze commits that were planned before the announcement
fail. A run that plans after it, while the announced micro-batch is not in bronze, cannot know whether the other run is still at
work: it makes an announcement and a commit to quarantine of its own, even without a row, so both commits of the other run fail.
"""

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import DecodePlan, TypeKey
from game_events.errors import ConflictError, GameEventsError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit, without_rows
from game_events.lakehouse.commits.transactions import Txn, counter, erasure_fence, txn, txns
from game_events.lakehouse.data.columns import COORDINATES, FIRST_MESSAGE, QUARANTINE_COLUMNS, QUARANTINE_DESCRIPTION
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.tables import Layer, Table, table_id, version_of
from game_events.pipeline.context import Pipeline, record_filter
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.offsets import next_offsets
from game_events.pipeline.reporting.report import RunReport
from game_events.sources.source import MicroBatch, Offsets, Partition, Reading
from game_events.spark.failures import (
    DEATHS_ALONE,
    NOTHING_COMMITTED,
    WorkerCrashError,
    crashes_explained,
    named,
    worker_errors_named,
)
from game_events.workers.decode import BronzeTask, DecodeJob
from game_events.workers.job import task_numbers
from game_events.workers.record_filter import RecordFilter
from game_events.workers.results import StagedRows

log = logging.getLogger(__name__)

#: Jobs that may crash for a micro-batch: one record of two million costs 25 of them, each some seconds.
MAX_DEATHS = 60

#: Partition and offset of a record that crashes a worker -> detail for quarantine.
Deadly = Mapping[tuple[Partition, int], str]


def deadly_records(part: MicroBatch, error: WorkerCrashError, attempt: Callable[[MicroBatch], None]) -> Deadly:
    """Find the records of a crashed micro-batch that each crash a worker by themselves, twice.

    `error`: the crash; `attempt`: decodes a part of the micro-batch and keeps nothing.

    Raises:
        WorkerCrashError: `error`: nothing of the micro-batch can be decoded, so its records are not the cause; or workers crash
            over too many.
    """
    deadly: dict[tuple[Partition, int], str] = {}
    waiting = deque(_halves(part))
    alone = Counter[tuple[Partition, int]]()
    crashes = 1
    decoded = 0
    while waiting:
        some = waiting.popleft()
        try:
            attempt(some)
            decoded += some.records
        except WorkerCrashError as died:
            crashes += 1
            if crashes >= MAX_DEATHS:
                raise error from None
            if some.records > 1:
                waiting.extend(_halves(some))
                continue
            ((partition, offset),) = some.start.items()
            alone[partition, offset] += 1
            if alone[partition, offset] < DEATHS_ALONE:
                waiting.append(some)
            else:
                deadly[partition, offset] = (
                    f"{str(died).removesuffix(NOTHING_COMMITTED)}; it happened {DEATHS_ALONE} times with no other record"
                )
    if not decoded:
        raise error
    return deadly


def _halves(part: MicroBatch) -> list[MicroBatch]:
    """The first half of a micro-batch's offsets, split by partition, and the second."""
    room = (part.records + 1) // 2
    middle: Offsets = {}
    for partition, start in part.start.items():
        middle[partition] = min(part.end[partition], start + room)
        room -= middle[partition] - start
    return [half for half in (_between(part, part.start, middle), _between(part, middle, part.end)) if half.start]


def _between(part: MicroBatch, start: Offsets, end: Offsets) -> MicroBatch:
    partitions = [partition for partition in part.start if start[partition] < end[partition]]
    return replace(part, start={p: start[p] for p in partitions}, end={p: end[p] for p in partitions}, gaps=())


#: (topic id, partition) -> offsets of records that quarantine holds already.
Decided = Mapping[tuple[str, int], frozenset[int]]


def decided_on(table: Table, quarantine: DeltaTable | None, part: MicroBatch) -> Decided:
    """Records of the micro-batch that quarantine holds already: only after a crash between its commit and bronze's.

    `quarantine` was opened after the version of bronze that the micro-batch is planned from.
    """
    ahead = _ahead(quarantine, part)
    if quarantine is None or not ahead:
        return {}
    rows = read_arrow(table, quarantine, [*COORDINATES, "layer"])
    rows = rows.filter(pc.equal(rows.column("layer"), Layer.BRONZE))
    # Other offsets are no records': then all that quarantine holds was decided.
    first = {(p.topic_id, p.number): part.start[p] for p in ahead if p.has_record_offsets}
    if len(first) == len(ahead):
        rows = _of_partitions(rows, ahead)
    decided = defaultdict[tuple[str, int], set[int]](set)
    for topic_id, number, offset in zip(*(rows.column(name).to_pylist() for name in COORDINATES), strict=True):
        if offset >= first.get((topic_id, number), 0):
            decided[topic_id, number].add(offset)
    return {partition: frozenset(offsets) for partition, offsets in decided.items()}


def _ahead(quarantine: DeltaTable | None, part: MicroBatch) -> list[Partition]:
    """Partitions of the micro-batch of which quarantine has decided on some offsets."""
    until = next_offsets(quarantine, part.end)
    return [partition for partition in part.end if until.get(partition, 0) > part.start[partition]]


def _of_partitions(rows: pa.Table, partitions: list[Partition]) -> pa.Table:
    """The rows of these partitions' records."""
    names = pa.table(
        {
            "_kafka_topic_id": [partition.topic_id for partition in partitions],
            "_kafka_partition": [partition.number for partition in partitions],
        }
    )
    names = names.cast(pa.schema([rows.schema.field(name) for name in names.column_names]))
    return rows.join(names, names.column_names, join_type="left semi")


def commit_undecodable(
    pipeline: Pipeline,
    bronze: DeltaTable,
    quarantine: DeltaTable | None,
    part: MicroBatch,
    staged: StagedRows,
    report: RunReport,
) -> int:
    """Announce a micro-batch in bronze, then commit its undecodable records to quarantine; perhaps without a row.

    Returns the announcement's number, which the micro-batch's commit to bronze compares.

    Raises:
        ConflictError: a concurrent run's micro-batch was first, or an erasure ran since `bronze` was opened; the files of both
            tables are deleted.
    """
    begun = _announce(pipeline, bronze, part, staged)
    failpoints.reach("quarantine_announced")
    until = next_offsets(quarantine, part.end)
    app = Txn.MICRO_BATCHES
    plan = Commit(
        pipeline.quarantine,
        QUARANTINE_COLUMNS,
        staged.quarantine,
        expect_transactions={p.app: until.get(p) for p in part.end} | {app: txn(quarantine, app)},
        set_transactions={p.app: max(end, until.get(p, 0)) for p, end in part.end.items()}
        | {app: counter(quarantine, app) + 1},
        table_id=table_id(quarantine),
        from_version=version_of(quarantine),
        info={"run_id": pipeline.run_id},
        description=QUARANTINE_DESCRIPTION,
    )
    try:
        landed = commit(plan)
    except ConflictError:
        discard(pipeline.bronze, staged.bronze)
        raise
    pipeline.tables.publish(pipeline.quarantine, landed.handle)
    if staged.quarantine:
        report.add_landed(Layer.QUARANTINE, pipeline.quarantine, landed, QUARANTINE_COLUMNS, counter(bronze, Txn.BATCH) + 1)
    failpoints.reach("quarantine_committed")
    return begun


def _announce(pipeline: Pipeline, bronze: DeltaTable, part: MicroBatch, staged: StagedRows) -> int:
    """Announce in bronze a commit to quarantine: micro-batches that were planned before cannot be committed any more.

    Raises as `commit_undecodable`.
    """
    before = txns(bronze, (Txn.BATCH, Txn.QUARANTINE_BEGUN, *(p.app for p in part.end)))
    number = counter(bronze, Txn.QUARANTINE_BEGUN) + 1
    # With the batch as it is: a concurrent commit with a new batch (a replay, a full refresh) excludes this one.
    advance: dict[str, int] = {Txn.QUARANTINE_BEGUN: number, Txn.BATCH: counter(bronze, Txn.BATCH)}
    try:
        info = {"run_id": pipeline.run_id}
        expected = before | erasure_fence(bronze)
        commit(without_rows(pipeline.bronze, bronze, info, expected, advance))
    except GameEventsError:
        staged.discard(pipeline.bronze, pipeline.quarantine)
        raise
    return number


Job = TypeVar("Job", bound=DecodeJob)


def stage_micro_batch(
    pipeline: Pipeline,
    bronze: DeltaTable,
    columns: ColumnMap,
    part: MicroBatch,
    batch: int,
    decided: Decided,
    one_pass: OnePass | None = None,
) -> StagedRows:
    """Decode a micro-batch and write its files; `one_pass` gets silver's files of the same rows, where the workers write them.

    `bronze`: the version with the `erasures` that the commit compares; the list of erased people is read after it.
    `batch`: the number of its rows. `decided`: records that are left out, as quarantine holds them.

    Raises:
        ConflictError: a topic was recreated meanwhile, or records expired; the files are deleted.
        WorkerCrashError: as `deadly_records`; or workers crash over no record in particular.
    """
    if part.records <= sum(gap.is_planned for gap in part.gaps):  # it only skips a gap
        return StagedRows()
    source = pipeline.source
    catalog = pipeline.catalog
    catalog.offer(source.schemas())
    # Types to plan for before the first record.
    expected = source.expected_types()
    expected += [(i, FIRST_MESSAGE) for subject in source.subjects(part.end) for i in catalog.expected_ids(subject)]
    attempt = _Attempt(pipeline, columns, expected, batch, decided, record_filter(pipeline, bronze))
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
    record_filter: RecordFilter | None
    sparing: bool = False

    def run(self, part: MicroBatch, deadly: Deadly | None = None) -> StagedRows:
        """Decode a part; raises WorkerCrashError. `deadly`: records that are quarantined without being decoded."""
        reading = self.pipeline.source.reading(part)
        _, staged = self._decoded(part, self._job(reading.sparing() if self.sparing else reading, deadly or {}))
        return staged

    def with_silver(self, bronze: DeltaTable, part: MicroBatch, one_pass: OnePass | None) -> StagedRows:
        """As `run`; where it is possible, the workers write silver's files of the rows, too."""
        if one_pass is None:
            return self.run(part)
        reading = self.pipeline.source.reading(part)
        planned = replace(self._job(reading, {}), one_pass=one_pass.plan(self.pipeline, bronze, reading.tasks))
        job, staged = self._decoded(part, planned)
        one_pass.staged(job.fan_out, staged.silver)
        return staged

    def _job(self, reading: Reading, deadly: Deadly) -> BronzeTask:
        pipeline = self.pipeline
        keep_raw = pipeline.settings.keep_raw == "all"
        return BronzeTask(
            pipeline.bronze,
            pipeline.quarantine,
            DecodePlan(),
            reading,
            self.batch,
            pipeline.run_id,
            keep_raw,
            self.decided,
            self.record_filter,
            _by_partition(deadly),
        )

    def _decoded(self, part: MicroBatch, job: BronzeTask) -> tuple[BronzeTask, StagedRows]:
        """The job with its last plan, and what it wrote."""
        ranges = named([f"{partition} {part.start[partition]} to {end - 1}" for partition, end in sorted(part.end.items())])
        with crashes_explained(f" over {ranges}"), worker_errors_named():
            numbers = task_numbers(self.pipeline.spark, job.reading.tasks)
            return run_decode_job(self.pipeline, job, numbers, self.columns, self.expected)


def _by_partition(deadly: Deadly) -> Mapping[tuple[str, int], Mapping[int, str]]:
    """(topic id, partition) -> offset -> detail for quarantine."""
    by_partition: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for (partition, offset), detail in deadly.items():
        by_partition[partition.topic_id, partition.number][offset] = detail
    return by_partition


def _isolated(attempt: _Attempt, part: MicroBatch, error: WorkerCrashError) -> StagedRows:
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
) -> tuple[Job, StagedRows]:
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
    room = catalog.max_unknown_ids
    rest = None
    while True:
        job = job.planned(catalog.plan(columns, planned, rest))
        staged = StagedRows.sum(job.collect(rows))
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
