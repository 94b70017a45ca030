"""The source -> `bronze_events` and `quarantine_events`, in micro-batches, all topics together.

Guarantee: every record of a committed micro-batch is in exactly one of the two tables, once, through any crash and beside any
concurrent run; those of erased people are in neither, and counted. Each commit sets the next offset of every partition
that it read, and fails unless these offsets are still the start of its micro-batch.
"""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.decoding.columns import ColumnMap
from game_events.errors import ConflictError, GameEventsError, first_few
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import CONFLICT_ATTEMPTS, Commit, Landed, commit
from game_events.lakehouse.commits.transactions import Txn, counter, erasure_fence, txns
from game_events.lakehouse.data.columns import OWN_COLUMNS, bronze_schema, column_map
from game_events.lakehouse.store_probe import refuse_unsafe_store
from game_events.lakehouse.tables import Layer, names_of
from game_events.pipeline.bronze.offsets import (
    OffsetPlan,
    all_there_is,
    epochs_noted,
    epochs_unknown,
    is_gone,
    loss_messages,
    not_there_any_more,
    starting_point,
    went_meanwhile,
)
from game_events.pipeline.bronze.staging import commit_undecodable, decided_on, stage_micro_batch
from game_events.pipeline.context import Pipeline
from game_events.pipeline.descriptions import BRONZE_DESCRIPTION, about_bronze, documented
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.offsets import after_origins, archive_noted, batch_info, identity
from game_events.pipeline.quarantine import complete_quarantine, intact_tables
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult
from game_events.sources.source import Gap, MicroBatch, SourceSnapshot
from game_events.workers.results import StagedRows

#: Records that a notice names.
EXAMPLES = 5
#: Bronze and, if it exists, quarantine, in versions that lack no row.
Tables = tuple[DeltaTable, DeltaTable | None]


def load_bronze(
    pipeline: Pipeline,
    report: RunReport,
    until: SourceSnapshot | None = None,
    max_commits: int | None = None,
    one_pass: OnePass | None = None,
) -> int:
    """Read the source up to the offsets seen now (or given) into bronze, in micro-batches.

    `until`: the source as of a moment ago; None: it is asked. `max_commits`: stop after so many commits; what is left is the
    report's lag. `one_pass`: if silver follows in this process: gets its files, written in the same pass. Returns the highest
    batch of bronze afterwards; 0 if it is empty.
    """
    began = time.monotonic()
    target = until or pipeline.source.snapshot()
    _prepare(pipeline, target, report)
    failures = 0
    while True:
        # Each time: a commit that is planned from a version restored meanwhile would hide the restore from all later runs.
        tables = intact_tables(pipeline, report)
        if tables is None:
            raise ConflictError(f"{pipeline.bronze.name} was removed while the run was at work")
        is_first = not report.batches and failures == 0
        now = target if is_first else pipeline.source.snapshot()
        plan = OffsetPlan.of(pipeline, tables[0], now, target.latest)
        target = replace(target, latest=plan.until)
        if plan.micro_batch is None:
            break
        try:
            _commit_micro_batch(pipeline, tables, plan, plan.micro_batch, report, one_pass)
        except (ConflictError, PySparkException, Py4JJavaError) as error:
            failures += 1
            if failures >= CONFLICT_ATTEMPTS or not _is_planned_again(pipeline, plan.micro_batch, error):
                raise
            continue
        if max_commits is not None and len(report.batches) >= max_commits:
            break
    _report_source(pipeline, plan, report)
    report.add_seconds(Layer.BRONZE, time.monotonic() - began)
    return max([counter(tables[0], Txn.BATCH), *report.batches])


def _prepare(pipeline: Pipeline, now: SourceSnapshot, report: RunReport) -> None:
    """Create bronze if there is none, finish what an earlier run began, and ask the registry for the subjects' versions."""
    if intact_tables(pipeline, report) is None:
        _create(pipeline, now, report)
    complete_quarantine(pipeline, report)
    for subject in pipeline.source.subjects(now.latest):
        pipeline.catalog.ids_of(subject)


def _is_planned_again(pipeline: Pipeline, part: MicroBatch, error: Exception) -> bool:
    """Whether a failed micro-batch is planned again: Spark refuses to read fewer records than planned."""
    return isinstance(error, ConflictError) or went_meanwhile(pipeline, part)


def _create(pipeline: Pipeline, now: SourceSnapshot, report: RunReport) -> None:
    """Create bronze with the offsets that it starts from."""
    refuse_unsafe_store(pipeline.lakehouse)
    start = starting_point(pipeline, now)
    gaps: tuple[Gap, ...] = ()
    if is_gone(pipeline):
        start = all_there_is(pipeline, now)
        gaps = not_there_any_more(pipeline, now)
        report.add(BronzeResult(gaps=gaps))
        report.warn(
            f"{pipeline.bronze.name} is gone: it is recreated from what {pipeline.settings.source_holder} has",
            *loss_messages(gaps),
        )
    plan = Commit(
        pipeline.bronze,
        OWN_COLUMNS,
        [],
        expect_transactions={},
        set_transactions={p.app: offset for p, offset in start.items()}
        | identity(start)
        | epochs_noted(now, start)
        | {Txn.BATCH: 0},
        table_id=None,
        info=batch_info(0, 0, 0, {p: (offset, offset) for p, offset in start.items()}, gaps),
        description=BRONZE_DESCRIPTION,
    )
    with suppress(ConflictError):  # another run created it: its starting offsets hold for this run, too
        commit(plan)


def _commit_micro_batch(
    pipeline: Pipeline, tables: Tables, plan: OffsetPlan, part: MicroBatch, report: RunReport, one_pass: OnePass | None = None
) -> None:
    """Read a micro-batch and commit it, from the versions of the tables that were checked; a crash anywhere loses nothing.

    1. The workers decode its records and write files, but for records that quarantine has of an attempt that crashed.
    2. The schemas that occurred are archived, so that the rows can be decoded again.
    3. If there are undecodable records, they are announced in bronze and committed to quarantine (`commit_undecodable`).
    4. Bronze is committed: rows, next offsets and what quarantine has, if all of these are still as planned.
    5. What was read, lost and rejected is reported.
    """
    bronze, quarantine = tables
    batch = counter(bronze, Txn.BATCH) + 1
    pipeline.on_progress(f"bronze: {part.records:,} {pipeline.source.things}, {sum(part.lag.values()):,} left")
    decided = decided_on(pipeline.quarantine, quarantine, part)
    staged = stage_micro_batch(pipeline, bronze, column_map(bronze), part, batch, decided, one_pass)
    failpoints.reach("bronze_staged")
    archive_schemas(pipeline, report, staged)
    failpoints.reach("schemas_archived")
    begun = bronze.transaction_version(Txn.QUARANTINE_BEGUN)
    # If they differ, an announced micro-batch is not in bronze: its run crashed, is at work, or lost to a concurrent run.
    if staged.quarantine or begun != bronze.transaction_version(Txn.QUARANTINE_DONE):
        begun = commit_undecodable(pipeline, bronze, quarantine, part, staged, report)
    planned = _planned(pipeline, tables, plan, part, staged, begun)
    about = about_bronze(pipeline, bronze, staged.types)
    known = names_of(bronze)
    landed = commit(replace(planned, description_now=about, from_table=bronze))
    pipeline.tables.publish(pipeline.bronze, landed.handle)
    if one_pass is not None:
        one_pass.committed(staged.bronze)
    failpoints.reach("bronze_committed")
    report_batch(pipeline, report, known, planned, landed, staged)
    _report_part(report, part, staged)


def _planned(
    pipeline: Pipeline, tables: Tables, plan: OffsetPlan, part: MicroBatch, staged: StagedRows, begun: int | None
) -> Commit:
    """The commit of a micro-batch to bronze; `begun`: announcements of commits to quarantine that it was planned after."""
    bronze, quarantine = tables
    batch = counter(bronze, Txn.BATCH) + 1
    rows = sum(file.rows for file in staged.bronze)
    quarantined = sum(file.rows for file in staged.quarantine)
    from_archive = after_origins(bronze, staged.origins)
    next_offset = plan.ends | from_archive

    expected = txns(bronze, (partition.app for partition in next_offset)) | erasure_fence(bronze)
    expected |= {Txn.BATCH: batch - 1, Txn.QUARANTINE_BEGUN: begun}

    advance = {partition.app: offset for partition, offset in next_offset.items()}
    advance |= identity(next_offset)
    advance |= archive_noted(bronze, pipeline.source)
    advance |= epochs_noted(plan.now, part.end) | epochs_unknown(from_archive)
    advance |= {Txn.BATCH: batch, Txn.QUARANTINE_BEGUN: begun or 0, Txn.QUARANTINE_DONE: begun or 0}
    if quarantined:
        advance[Txn.RECORDS_QUARANTINED] = counter(bronze, Txn.RECORDS_QUARANTINED) + quarantined
        advance[Txn.QUARANTINE_COMMITS] = counter(quarantine, Txn.MICRO_BATCHES) + 1

    read = {partition: (part.start[partition], end) for partition, end in part.end.items()}
    info = batch_info(batch, rows, quarantined, read, part.gaps, staged.suppressed, plan.now.latest)
    return commit_of(pipeline, bronze, staged, expected, advance, info)


def _report_part(report: RunReport, part: MicroBatch, staged: StagedRows) -> None:
    """Report what was read of the source, and what is not in bronze of it."""
    report.add_read(part.start, part.end, part.unit)
    report.add(BronzeResult(gaps=part.gaps, suppressed=staged.suppressed, nulled=staged.nulled))
    report.warn(*loss_messages(part.gaps), *(f"topic {topic} joins: all that it has is read" for topic in part.joined))
    report.warn(*incomplete_records(staged))
    report.add_rejected(staged.reasons)
    report.arrived(staged.arrivals)


def archive_schemas(pipeline: Pipeline, report: RunReport, staged: StagedRows) -> None:
    """Keep the texts of the schemas that occurred, before the commit of their rows, and note those that are new."""
    new = pipeline.catalog.archive(i for i, _ in (*staged.types, *staged.undecoded))
    report.add(BronzeResult(new_schemas={schema_id: pipeline.catalog.version_of(schema_id) for schema_id in new}))


def commit_of(
    pipeline: Pipeline,
    bronze: DeltaTable,
    staged: StagedRows,
    expected: Mapping[str, int | None],
    advance: Mapping[str, int],
    info: Mapping[str, str],
    columns: ColumnMap | None = None,
) -> Commit:
    """The commit of rows planned from a version of bronze; `columns`: None: its own and those of types that occurred."""
    columns = columns or pipeline.catalog.message_columns(column_map(bronze), staged.types)
    return Commit(
        pipeline.bronze,
        documented(pipeline, bronze_schema(columns), columns, staged.types),
        staged.bronze,
        expected,
        advance,
        table_id=str(bronze.metadata().id),
        from_version=bronze.version(),
        merges_column_map=True,
        info={**info, "run_id": pipeline.run_id},
    )


def incomplete_records(staged: StagedRows) -> list[str]:
    """A notice about records that were read without what no column can hold."""
    if not staged.incomplete:
        return []
    named = first_few(staged.examples[:EXAMPLES], EXAMPLES)
    more = f"; and {staged.incomplete - EXAMPLES:,} more" if staged.incomplete > EXAMPLES else ""
    return [f"{staged.incomplete:,} records were read without what no column can hold: {named}{more}"]


def report_batch(
    pipeline: Pipeline, report: RunReport, known: Collection[str], planned: Commit, landed: Landed, staged: StagedRows
) -> None:
    """Report a commit of decoded rows; `known`: bronze's columns before it."""
    batch = planned.set_transactions[Txn.BATCH]
    report.add_landed(Layer.BRONZE, pipeline.bronze, landed, planned.schema, batch, known_columns=known)
    report.add_batch(batch, (*staged.types, *staged.undecoded), pipeline.catalog.other_types(staged.undecoded))


def _report_source(pipeline: Pipeline, plan: OffsetPlan, report: RunReport) -> None:
    """Report what is left in the source, and commit offsets for the consumer group, which is never ahead of bronze.

    If the broker refuses these offsets, the run continues.
    """
    source = pipeline.source
    group = pipeline.settings.consumer_group
    offsets = plan.reached | plan.ends
    report.add(BronzeResult(lag=plan.lag))
    if counts := source.file_counts():
        report.add_files(counts)
    if group is not None and offsets:
        try:
            source.commit_group_offsets(group, offsets)
        except GameEventsError as error:
            report.warn(f"offsets of consumer group {group} were not committed: {error}")
