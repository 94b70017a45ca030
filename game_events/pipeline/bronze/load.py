"""The source -> `bronze_events` and `quarantine_events`, slice by slice, all of its topics together.

Guarantee: every record of a committed slice is in exactly one of the two tables, once, through any crash and beside any
rival; those of forgotten gamers are in neither, and counted. Each commit carries the next position of every lane it read
(the next offset of a partition) and lands only if these still are the slice's start.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.decoding.batch_decoder import TypeKey
from game_events.errors import ConflictError, GameEventsError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.retry import CONFLICT_ATTEMPTS
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.event_columns import (
    OWN_COLUMNS,
    QUARANTINE_COLUMNS,
    bronze_schema,
    column_map,
)
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.store_probe import refuse_unsafe_store
from game_events.pipeline.bronze.data_loss import next_slice, told, went_meanwhile
from game_events.pipeline.bronze.quarantine import announce, commit_undecodable, decided_on, is_under_way
from game_events.pipeline.bronze.staging import stage_slice
from game_events.pipeline.bronze.starting_offsets import all_there_is, is_gone, not_there_any_more, starting_point
from game_events.pipeline.bronze.truncated_log import epochs_noted, epochs_unknown, refuse_cut_log
from game_events.pipeline.column_comments import BRONZE_DESCRIPTION, about_bronze, documented
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quarantine.full_refresh import finish_reset
from game_events.pipeline.quarantine.intact import intact_tables
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.state.archive_origin import archive_noted, behind_origins
from game_events.pipeline.state.commit_info import slice_info
from game_events.pipeline.state.offsets import identity, next_offsets
from game_events.pipeline.suppression.driver import erasure_fence
from game_events.sources.core.source import Gap, MicroBatch, Offsets, SourceSnapshot
from game_events.sources.files.source import FileSource
from game_events.sources.kafka.source import KafkaSource


def load_bronze(pipeline: Pipeline, report: RunReport, until: SourceSnapshot | None = None, slices: int | None = None) -> int:
    """Read the source up to the offsets seen now (or given) into bronze, slice by slice.

    Args:
        pipeline: the parts.
        report: gets what was read.
        until: the source as it was seen just now; None: it is asked.
        slices: stop after so many commits; what is left is the report's lag.

    Returns:
        the highest batch of bronze afterwards; 0 if it is empty.
    """
    began = time.monotonic()
    target = until or pipeline.source.snapshot()
    if intact_tables(pipeline, report) is None:
        _create(pipeline, target, report)
    finish_reset(pipeline, report)
    for subject in pipeline.source.subjects(target.latest):
        pipeline.catalog.ids_of(subject)
    rivals = 0
    while True:
        # Each time: a commit that is planned from a version restored meanwhile would hide the restore from all later runs.
        tables = intact_tables(pipeline, report)
        if tables is None:
            raise ConflictError(f"{pipeline.bronze.name} was removed while the run was at work")
        handle, quarantine = tables
        now = target if not report.batches and rivals == 0 else pipeline.source.snapshot()
        reached = next_offsets(handle, now.latest)
        if any(offset > now.latest[p] for p, offset in reached.items()):
            now = pipeline.source.snapshot()  # bronze was opened later: a rival has read what came in between
            reached = next_offsets(handle, now.latest)
        # Of a topic that joined, or was made anew while this run reads, the ends seen before say nothing.
        target = replace(target, latest=now.latest | {p: end for p, end in target.latest.items() if p in now.latest})
        refuse_cut_log(pipeline, handle, now, reached)
        part = next_slice(
            pipeline.settings, handle, now, target.latest, pipeline.source.batch_limit(reached), pipeline.files_gone
        )
        if part is None:
            report.lag = {p: max(0, now.latest[p] - o) // now.unit for p, o in reached.items()}
            tell_group(pipeline, reached, report)
            break
        pipeline.on_progress(f"bronze: {part.records:,} {pipeline.things}, {sum(part.lag.values()):,} behind them")
        try:
            _load_slice(pipeline, handle, quarantine, now, part, report)
            if slices is not None and len(report.batches) >= slices:
                report.lag = part.lag
                tell_group(pipeline, reached | part.end, report)
                break
        except ConflictError:
            rivals += 1
            if rivals >= CONFLICT_ATTEMPTS:
                raise
        except (PySparkException, Py4JJavaError):
            # Spark refuses to read less than it was told to: then what is left is planned anew, or refused.
            rivals += 1
            if rivals >= CONFLICT_ATTEMPTS or not went_meanwhile(pipeline, part):
                raise
    if isinstance(pipeline.source, FileSource):
        report.add_files(pipeline.source.counts)
    report.seconds[Layer.BRONZE] = report.seconds.get(Layer.BRONZE, 0.0) + time.monotonic() - began
    return max([int(handle.transaction_version(Txn.BATCH) or 0), *report.batches])


def _create(pipeline: Pipeline, now: SourceSnapshot, report: RunReport) -> None:
    """Create bronze with the offsets that it starts from."""
    refuse_unsafe_store(pipeline.lakehouse)
    start = starting_point(pipeline, now)
    gaps: tuple[Gap, ...] = ()
    if is_gone(pipeline):
        start, gaps = all_there_is(pipeline, now), not_there_any_more(pipeline, now)
        report.gaps += gaps
        report.notices += [
            f"{pipeline.bronze.name} is gone: it is made again from what {pipeline.settings.source_holder} has",
            *told(gaps),
        ]
    plan = Commit(
        pipeline.bronze,
        OWN_COLUMNS,
        [],
        expected={},
        advance={p.app: at for p, at in start.items()} | identity(start) | epochs_noted(now, start) | {Txn.BATCH: 0},
        table_id=None,
        info=slice_info(0, 0, 0, {p: (at, at) for p, at in start.items()}, gaps),
        description=BRONZE_DESCRIPTION,
    )
    with suppress(ConflictError):  # another run created it: its starting offsets hold for this run, too
        commit(plan)


def _load_slice(
    pipeline: Pipeline,
    handle: DeltaTable,
    quarantine: DeltaTable | None,
    now: SourceSnapshot,
    part: MicroBatch,
    report: RunReport,
) -> None:
    """Stage one slice in the workers, then commit quarantine, then bronze: both as they were when restores were looked for."""
    batch = int(handle.transaction_version(Txn.BATCH) or 0) + 1
    decided = decided_on(pipeline.quarantine, quarantine, part)
    staged = stage_slice(pipeline, handle, column_map(handle), part, batch, decided)
    failpoints.reach("bronze_staged")

    seen = pipeline.catalog.message_columns(column_map(handle), staged.types)
    archive_schemas(pipeline, report, {*staged.types, *staged.undecoded})
    failpoints.reach("schemas_archived")
    begun = handle.transaction_version(Txn.QUARANTINE_BEGUN)
    if staged.quarantine or is_under_way(handle):
        begun = announce(pipeline, handle, part, staged)
        failpoints.reach("quarantine_announced")
        held = commit_undecodable(pipeline, quarantine, part, staged)
        if staged.quarantine:
            report.add_landed(Layer.QUARANTINE, pipeline.quarantine, held, QUARANTINE_COLUMNS, batch)
        failpoints.reach("quarantine_committed")
    schema = documented(pipeline, bronze_schema(seen), seen, staged.types)
    behind = behind_origins(handle, staged.origins)
    known = {f.name for f in handle.schema().fields}
    # Every lane has a place from the start: behind one without, nobody would look for those of a topic that is gone.
    placeless = now.latest.keys() - next_offsets(handle, now.latest).keys() - part.end.keys()
    placed = {p: part.reached[p] for p in placeless}
    plan = Commit(
        pipeline.bronze,
        schema,
        staged.bronze,
        expected={p.app: handle.transaction_version(p.app) for p in (*part.end, *placed, *behind)}
        | {Txn.BATCH: batch - 1, Txn.QUARANTINE_BEGUN: begun}
        | erasure_fence(handle),
        advance={p.app: at for p, at in (placed | part.end | behind).items()}
        | identity([*part.end, *placed, *behind])
        | epochs_noted(now, part.end)
        | epochs_unknown(behind)
        | archive_noted(handle, pipeline.source)
        | {Txn.BATCH: batch, Txn.QUARANTINE_BEGUN: begun or 0, Txn.QUARANTINE_DONE: begun or 0},
        table_id=str(handle.metadata().id),
        seen=handle.version(),
        owns_map=True,
        info=slice_info(
            batch,
            sum(f.rows for f in staged.bronze),
            sum(f.rows for f in staged.quarantine),
            {p: (part.start[p], part.end[p]) for p in part.end},
            part.gaps,
            staged.suppressed,
            now.latest,
        )
        | {"run_id": pipeline.run_id},
        about=about_bronze(pipeline, handle, staged.types),
    )
    if staged.quarantine:
        before = int(handle.transaction_version(Txn.RECORDS_QUARANTINED) or 0)
        plan = replace(plan, advance={**plan.advance, Txn.RECORDS_QUARANTINED: before + sum(f.rows for f in staged.quarantine)})
    landed = commit(plan)
    failpoints.reach("bronze_committed")
    entry = report.add_landed(Layer.BRONZE, pipeline.bronze, landed, schema, batch)
    entry.new_columns += [f.name for f in schema if f.name not in known]
    report.add_read(part.start, part.end, part.unit)
    report.gaps += part.gaps
    report.notices += [*told(part.gaps), *(f"topic {topic} joins: all that it has is read" for topic in part.joined)]
    report.batches.append(batch)
    report.schema_ids.update(i for i, _ in (*staged.types, *staged.undecoded))
    report.other_types += pipeline.catalog.other_types(staged.undecoded)
    report.add_rejected(staged.reasons)
    report.suppressed += staged.suppressed
    report.arrived(staged.arrivals)


def archive_schemas(pipeline: Pipeline, report: RunReport, types: Iterable[TypeKey]) -> None:
    """Keep the texts of the schemas that occurred, and note those that are new."""
    for schema_id in pipeline.catalog.archive(i for i, _ in types):
        report.new_schemas[schema_id] = pipeline.catalog.version_of(schema_id)


def tell_group(pipeline: Pipeline, positions: Offsets, report: RunReport) -> None:
    """Commit bronze's next offsets for the group of the setting `consumer_group`, if there is one.

    After bronze's own commit: the group is behind it by a moment, never ahead. If the broker refuses, that is a notice, and the
    run goes on.
    """
    group, source = pipeline.settings.consumer_group, pipeline.source
    if group is None or not positions or not isinstance(source, KafkaSource):
        return
    try:
        source.commit_group_offsets(group, positions)
    except GameEventsError as error:
        report.notices.append(f"consumer group {group} was not told where bronze stands: {error}")
