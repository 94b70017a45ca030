"""Kafka -> `bronze_events` and `quarantine_events`, slice by slice.

Guarantee: every record of a committed slice is in exactly one of the two tables, once, through any crash and beside any
rival; those of forgotten gamers are in neither, and counted. Each commit carries the next offset of every partition it read
and lands only if these still are the slice's start.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import DecodePlan, TypeKey
from game_events.errors import ConflictError
from game_events.lakehouse import crash_points
from game_events.lakehouse.commits import Commit, Landed, commit
from game_events.lakehouse.reading import read_arrow
from game_events.lakehouse.staging import discard
from game_events.lakehouse.store_probe import refuse_unsafe_store
from game_events.lakehouse.tables import Table
from game_events.pipeline.bronze_rebuilt import is_gone, not_there_any_more
from game_events.pipeline.bronze_restored import mend_restored_bronze
from game_events.pipeline.bronze_stage import (
    OWN_COLUMNS,
    QUARANTINE_COLUMNS,
    QUARANTINE_DESCRIPTION,
    BronzeTask,
    StageResult,
    bronze_schema,
    source_columns,
)
from game_events.pipeline.column_comments import BRONZE_DESCRIPTION, about_bronze, documented
from game_events.pipeline.commit_notes import OffsetRanges, slice_info
from game_events.pipeline.context import Pipeline
from game_events.pipeline.generations import erasures
from game_events.pipeline.offset_loss import next_offsets, next_slice, told, went_meanwhile
from game_events.pipeline.planning import run_decode_job
from game_events.pipeline.quarantine_lost import QUARANTINED_APP, refuse_lost_quarantine
from game_events.pipeline.quarantine_reset import finish_reset
from game_events.pipeline.report import RunReport
from game_events.pipeline.spark import kafka_batches
from game_events.pipeline.starting_point import all_there_is, starting_point
from game_events.pipeline.suppression import suppression, unfenced
from game_events.pipeline.topic_identity import identity, partition_app
from game_events.sources.kafka import Gap, Offsets, Slice, TopicOffsets

#: `txn` with the number of bronze's last batch.
BATCH_APP = "batch"
#: Records of one task: fewer tasks for small slices, as each costs ~100 ms of its own.
TASK_RECORDS = 500_000
#: Times a slice is planned again after rivals won.
RIVAL_ATTEMPTS = 50
#: A frame's default path: planned for before any record is seen.
FIRST_MESSAGE = (0,)


def column_map(handle: DeltaTable) -> ColumnMap:
    """Where fields land, from the metadata of the table's columns."""
    schema = pa.schema(handle.schema())
    return ColumnMap.from_metadata((f.name, schema.field(f.name).type, f.metadata) for f in handle.schema().fields)


def load_bronze(pipeline: Pipeline, report: RunReport, until: TopicOffsets | None = None, slices: int | None = None) -> int:
    """Read the topic up to the offsets seen now (or given) into bronze, slice by slice.

    Args:
        pipeline: the parts.
        report: gets what was read.
        until: the topic as it was seen just now; None: it is asked.
        slices: stop after so many commits; what is left is the report's lag.

    Returns:
        the highest batch of bronze afterwards; 0 if it is empty.
    """
    began = time.monotonic()
    target = until or pipeline.topic.offsets()
    handle = _open_or_create(pipeline, target, report)
    handle = mend_restored_bronze(pipeline, report, handle) or handle
    refuse_lost_quarantine(pipeline, handle, report)
    finish_reset(pipeline, report)
    pipeline.catalog.ids_of(f"{target.topic}-value")
    rivals = 0
    while True:
        # Each time: what is planned from a version that was restored meanwhile would cover the restore up for ever.
        handle = mend_restored_bronze(pipeline, report) or handle
        quarantine = refuse_lost_quarantine(pipeline, handle, report)
        now = target if not report.batches and rivals == 0 else pipeline.topic.offsets()
        if any(offset > now.latest[p] for p, offset in next_offsets(handle, now).items()):
            now = pipeline.topic.offsets()  # bronze was opened later: a rival has read what came in between
        if now.topic_id != target.topic_id:  # made anew while this run reads: the ends seen before mean nothing in it
            target = now
        part = next_slice(pipeline.settings, handle, now, target.latest, pipeline.settings.max_records_per_batch)
        if part is None:
            report.lag = {p: max(0, now.latest[p] - o) for p, o in next_offsets(handle, now).items()}
            break
        pipeline.on_progress(f"bronze: {part.records:,} records, {sum(part.lag.values()):,} behind them")
        try:
            _load_slice(pipeline, handle, quarantine, now, part, report)
            if slices is not None and len(report.batches) >= slices:
                report.lag = part.lag
                break
        except ConflictError:
            rivals += 1
            if rivals >= RIVAL_ATTEMPTS:
                raise
        except (PySparkException, Py4JJavaError):
            # Spark refuses to read less than it was told to: then what is left is planned anew, or refused.
            rivals += 1
            if rivals >= RIVAL_ATTEMPTS or not went_meanwhile(pipeline, part):
                raise
    report.seconds["bronze"] = report.seconds.get("bronze", 0.0) + time.monotonic() - began
    return max([int(handle.transaction_version(BATCH_APP) or 0), *report.batches])


def _open_or_create(pipeline: Pipeline, topic: TopicOffsets, report: RunReport) -> DeltaTable:
    """Bronze's handle; a new table is made with the offsets it starts from."""
    handle = pipeline.bronze.open()
    if handle is not None:
        return handle
    refuse_unsafe_store(pipeline.lakehouse)
    start = starting_point(pipeline, topic)
    gaps: tuple[Gap, ...] = ()
    if is_gone(pipeline):
        start, gaps = all_there_is(pipeline, topic), not_there_any_more(pipeline, topic)
        report.gaps += gaps
        report.notices += ["bronze_events is gone: it is made again from what Kafka has", *told(gaps)]
    apps = {partition_app(topic.topic, topic.topic_id, p): o for p, o in start.items()}
    plan = Commit(
        pipeline.bronze,
        OWN_COLUMNS,
        [],
        expected={},
        advance=apps | identity(topic.topic, topic.topic_id) | {BATCH_APP: 0},
        table_id=None,
        info=slice_info(0, 0, 0, OffsetRanges(topic.topic, topic.topic_id, {p: (o, o) for p, o in start.items()}), gaps),
        description=BRONZE_DESCRIPTION,
    )
    with suppress(ConflictError):  # a rival made it: its start offsets hold for us too
        commit(plan)
    made = pipeline.bronze.open()
    if made is None:
        raise ConflictError(f"{pipeline.bronze.name} was removed right after it was made")
    return made


def _load_slice(
    pipeline: Pipeline, handle: DeltaTable, quarantine: DeltaTable | None, now: TopicOffsets, part: Slice, report: RunReport
) -> None:
    """Stage one slice in the workers, then commit quarantine, then bronze: both as they were when restores were looked for."""
    batch = int(handle.transaction_version(BATCH_APP) or 0) + 1
    decided_until = next_offsets(quarantine, now)
    decided = _decided(pipeline.quarantine, quarantine, part, decided_until)
    staged = stage_slice(pipeline, handle, column_map(handle), part, batch, decided)
    crash_points.reach("bronze_staged")

    seen = pipeline.catalog.message_columns(column_map(handle), staged.types)
    archive_schemas(pipeline, report, staged.types)
    crash_points.reach("schemas_archived")
    if staged.quarantine:
        _refuse_if_erased_meanwhile(pipeline, handle, staged)
        held = _commit_quarantine(pipeline, quarantine, part, decided_until, staged)
        report.add_landed("quarantine", pipeline.quarantine, held, QUARANTINE_COLUMNS, batch)
        crash_points.reach("quarantine_committed")
    schema = documented(pipeline, bronze_schema(seen), seen, staged.types)
    known = {f.name for f in handle.schema().fields}
    # Every partition has a place from the start: behind one without, nobody would look for those of a topic that is gone.
    begun = {_app(part, p) for p in now.latest.keys() - next_offsets(handle, now).keys() - part.end.keys()}
    plan = Commit(
        pipeline.bronze,
        schema,
        staged.bronze,
        expected={_app(part, p): handle.transaction_version(_app(part, p)) for p in part.end}
        | dict.fromkeys(begun)
        | {BATCH_APP: batch - 1}
        | unfenced(handle),
        advance=dict.fromkeys(begun, 0)
        | {_app(part, p): end for p, end in part.end.items()}
        | identity(part.topic, part.topic_id)
        | {BATCH_APP: batch},
        table_id=str(handle.metadata().id),
        seen=handle.version(),
        owns_map=True,
        info=slice_info(
            batch,
            sum(f.rows for f in staged.bronze),
            sum(f.rows for f in staged.quarantine),
            OffsetRanges(part.topic, part.topic_id, {p: (part.start[p], part.end[p]) for p in part.end}),
            part.gaps,
            staged.suppressed,
        )
        | {"run_id": pipeline.run_id},
        about=about_bronze(pipeline, handle, staged.types),
    )
    if staged.quarantine:
        before = int(handle.transaction_version(QUARANTINED_APP) or 0)
        plan = replace(plan, advance={**plan.advance, QUARANTINED_APP: before + sum(f.rows for f in staged.quarantine)})
    landed = commit(plan)
    crash_points.reach("bronze_committed")
    entry = report.add_landed("bronze", pipeline.bronze, landed, schema, batch)
    entry.new_columns += [f.name for f in schema if f.name not in known]
    report.add_read(part.start, part.end)
    report.gaps += part.gaps
    report.notices += told(part.gaps)
    report.batches.append(batch)
    report.schema_ids.update(i for i, _ in staged.types)
    report.rejected += staged.reasons
    report.suppressed += staged.suppressed
    report.arrived(staged.arrivals)


def archive_schemas(pipeline: Pipeline, report: RunReport, types: Iterable[TypeKey]) -> None:
    """Keep the texts of the schemas that occurred, and note those that are new."""
    subject = f"{pipeline.settings.kafka_topic}-value"
    for schema_id in pipeline.catalog.archive(i for i, _ in types):
        report.new_schemas[schema_id] = pipeline.catalog.version_of(subject, schema_id)


def stage_slice(
    pipeline: Pipeline,
    bronze: DeltaTable,
    columns: ColumnMap,
    part: Slice,
    batch: int,
    decided: Mapping[int, frozenset[int]],
) -> StageResult:
    """Run a slice through the workers; nothing is committed.

    Args:
        pipeline: the parts.
        bronze: the handle whose `erasures` the slice's commit compares: whom to keep out is looked up here, behind it.
        columns: where fields land so far.
        part: the slice.
        batch: the number its rows get.
        decided: partition -> offsets that are left out, as quarantine holds them.

    Raises:
        ConflictError: the topic was made anew meanwhile; the files are deleted.
    """

    def task(plan: DecodePlan) -> BronzeTask:
        keep_raw = pipeline.settings.keep_raw == "all"
        return BronzeTask(
            pipeline.bronze,
            pipeline.quarantine,
            plan,
            part.topic,
            part.topic_id,
            batch,
            pipeline.run_id,
            keep_raw,
            decided,
            whom,
        )

    def read() -> DataFrame:
        records = pipeline.topic.read(pipeline.spark, part).select(*source_columns())
        return records.coalesce(max(1, -(-part.records // TASK_RECORDS)))

    wanted: list[TypeKey] = [(i, FIRST_MESSAGE) for i in pipeline.catalog.expected_ids(f"{part.topic}-value")]
    if not part.records:  # it only passes over a gap
        return StageResult([], [], set(), set(), Counter())
    whom = suppression(pipeline, bronze)
    with kafka_batches(pipeline.spark):
        staged = run_decode_job(pipeline, columns, wanted, read, task)
    # Spark reads by name: a topic that was made anew meanwhile has other records at the same offsets.
    if pipeline.topic.topic_id() != part.topic_id:
        discard(pipeline.bronze, staged.bronze)
        discard(pipeline.quarantine, staged.quarantine)
        raise ConflictError(f"topic {part.topic} was deleted and made again while it was read. Nothing of it was kept")
    return staged


def _decided(table: Table, handle: DeltaTable | None, part: Slice, until: Offsets) -> dict[int, frozenset[int]]:
    """Offsets of the slice that quarantine holds already: only after a crash between its commit and bronze's."""
    ahead = [p for p in part.end if until.get(p, 0) > part.start[p]]
    if handle is None or not ahead:
        return {}
    rows = read_arrow(table, handle, ["_kafka_topic_id", "_kafka_partition", "_kafka_offset", "layer"])
    mine = pc.and_(pc.equal(rows.column("_kafka_topic_id"), part.topic_id), pc.equal(rows.column("layer"), "bronze"))
    rows = rows.filter(mine)
    found: dict[int, frozenset[int]] = {}
    for partition in ahead:
        offsets = rows.filter(pc.equal(rows.column("_kafka_partition"), partition)).column("_kafka_offset")
        found[partition] = frozenset(o for o in offsets.to_pylist() if o >= part.start[partition])
    return found


def _refuse_if_erased_meanwhile(pipeline: Pipeline, handle: DeltaTable, staged: StageResult) -> None:
    """Bronze's commit would be refused; quarantine's, which is before it, could leave a forgotten gamer's records there.

    Raises:
        ConflictError: gamers were erased since `handle` was opened; the files are deleted.
    """
    bronze = pipeline.bronze.open()
    if bronze is None or erasures(bronze) != erasures(handle):
        discard(pipeline.bronze, staged.bronze)
        discard(pipeline.quarantine, staged.quarantine)
        raise ConflictError("bronze_events: gamers were erased since this slice was planned")


def _commit_quarantine(
    pipeline: Pipeline, handle: DeltaTable | None, part: Slice, decided_until: Offsets, staged: StageResult
) -> Landed:
    """Quarantine's own commit, before bronze's; if it does not land, bronze's files go too."""
    plan = Commit(
        pipeline.quarantine,
        QUARANTINE_COLUMNS,
        staged.quarantine,
        expected={_app(part, p): decided_until.get(p) for p in part.end},
        advance={_app(part, p): max(end, decided_until.get(p, 0)) for p, end in part.end.items()},
        table_id=str(handle.metadata().id) if handle is not None else None,
        seen=handle.version() if handle is not None else None,
        info={"run_id": pipeline.run_id},
        description=QUARANTINE_DESCRIPTION,
    )
    try:
        return commit(plan)
    except ConflictError:
        discard(pipeline.bronze, staged.bronze)
        raise


def _app(part: Slice, partition: int) -> str:
    return partition_app(part.topic, part.topic_id, partition)
