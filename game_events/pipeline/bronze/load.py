"""The source -> `bronze_events` and `quarantine_events`, in micro-batches, all topics together.

Guarantee: every record of a committed micro-batch is in exactly one of the two tables, once, through any crash and beside any
concurrent run; those of erased people are in neither, and counted. Each commit sets the next offset of every partition
that it read, and fails unless these offsets are still the start of its micro-batch.

Spark gets the numbers of the tasks only: its workers read the records themselves (`sources.source.Reading`), decode them and
write files. Records that crash a worker, each by itself, are searched for: they go to quarantine without being decoded.

Undecodable records are committed to quarantine before bronze's commit. Two tables have two commits, and two runs may read the
same records and know different schemas. So a micro-batch with undecodable records is announced in bronze first
(`quarantine_begun`): bronze commits that were planned before the announcement fail. A run that plans after it, while the
announced micro-batch is not in bronze, cannot know whether the other run is still at work: it makes an announcement and a
commit to quarantine of its own, even without a row, so both commits of the other run fail.
"""

import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import DecodePlan, TypeKey
from game_events.errors import ConfigurationError, ConflictError, GameEventsError, first_few
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import ATTEMPTS, Commit, Landed, commit, without_rows
from game_events.lakehouse.commits.transactions import Txn, counter, last_app, txn, txns
from game_events.lakehouse.data.columns import (
    COORDINATES,
    FIRST_MESSAGE,
    OWN_COLUMNS,
    QUARANTINE_DESCRIPTION,
    bronze_schema,
    own_columns,
)
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.storage import refuse_unsafe_store
from game_events.lakehouse.tables import Layer, Table, names_of, table_id, version_of
from game_events.pipeline.bronze.offsets import (
    OffsetPlan,
    all_there_is,
    epochs_noted,
    epochs_unknown,
    is_gone,
    known_of_others,
    loss_messages,
    not_there_any_more,
    sources_noted,
    starting_point,
    went_meanwhile,
)
from game_events.pipeline.context import Pipeline, record_filter
from game_events.pipeline.definitions import as_planned, marks_to_set, refuse_misfits, refuse_others, report_definitions
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.offsets import after_origins, archive_noted, batch_info, identity, next_offsets
from game_events.pipeline.quarantine import complete_full_refresh, intact_tables
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult
from game_events.pipeline.schemas.catalog import BRONZE_DESCRIPTION
from game_events.sources.source import Gap, MicroBatch, Offsets, Partition, SourceSnapshot
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
from game_events.workers.results import StagedRows

log = logging.getLogger(__name__)

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
    source = pipeline.source
    plan: OffsetPlan | None = None
    while True:
        # Each time: a commit that is planned from a version restored meanwhile would hide the restore from all later runs.
        tables = _tables_still_there(pipeline, report)
        is_first = not report.batches and failures == 0
        now = target if is_first else source.snapshot()
        plan = None
        try:
            plan = OffsetPlan.of(pipeline, tables[0], now, target.latest)
            target = replace(target, latest=target.latest | plan.until)
            if plan.micro_batch is not None:
                _commit_micro_batch(pipeline, tables, plan, plan.micro_batch, report, one_pass)
        except (GameEventsError, PySparkException, Py4JJavaError) as error:
            failures += 1
            if not _goes_on(pipeline, plan, error, failures):
                raise
            continue
        if plan.micro_batch is None and not source.next_turn():
            break
        if max_commits is not None and len(report.batches) >= max_commits and not source.takes_turns:
            break
    _report_source(pipeline, plan, report)
    report.add_seconds(Layer.BRONZE, time.monotonic() - began)
    return max([counter(tables[0], Txn.BATCH), *report.batches])


def _prepare(pipeline: Pipeline, target: SourceSnapshot, report: RunReport) -> None:
    """Make bronze unless it is there, finish a full refresh, and ask for the schemas' ids of the source."""
    tables = intact_tables(pipeline, report)
    if tables is None:
        _create(pipeline, target, report)
    else:
        refuse_others(pipeline, tables[0])
    # Not the marks of a replay: new records need not wait for them.
    complete_full_refresh(pipeline, report)
    for subject in pipeline.source.subjects(target.latest):
        pipeline.catalog.ids_of(subject)


def _tables_still_there(pipeline: Pipeline, report: RunReport) -> Tables:
    tables = intact_tables(pipeline, report)
    if tables is None:
        raise ConflictError(f"{pipeline.bronze.name} was removed while the run was at work")
    refuse_others(pipeline, tables[0])
    return tables


def _goes_on(pipeline: Pipeline, plan: OffsetPlan | None, error: Exception, failures: int) -> bool:
    """Whether bronze plans again after an error: as it was, or with less of several sources."""
    part = plan.micro_batch if plan is not None else None
    try:
        if part is not None and _may_succeed_again(pipeline, part, error, failures):
            return True
    except GameEventsError:  # of a source that does not answer
        if not pipeline.settings.sources:
            raise
    # A rival's commit is no fault of a source.
    return not isinstance(error, ConflictError) and pipeline.source.sets_aside(error)


def _may_succeed_again(pipeline: Pipeline, part: MicroBatch, error: Exception, failures: int) -> bool:
    """Whether a micro-batch that failed is planned again: its plan is outdated, and there are attempts left."""
    # Spark refuses to read fewer records than planned.
    by_spark = isinstance(error, PySparkException | Py4JJavaError)
    return failures < ATTEMPTS and (isinstance(error, ConflictError) or (by_spark and went_meanwhile(pipeline, part)))


def _create(pipeline: Pipeline, now: SourceSnapshot, report: RunReport) -> None:
    pipeline.bronze.require_writable()
    refuse_unsafe_store(pipeline.lakehouse.root, pipeline.lakehouse.options)
    start = starting_point(pipeline, now)
    gaps: tuple[Gap, ...] = ()
    if is_gone(pipeline):
        start = all_there_is(pipeline, now)
        gaps = not_there_any_more(pipeline, now)
        report.add(BronzeResult(gaps=gaps))
        report.warn(
            f"{pipeline.bronze.name} is gone: it is recreated from what {pipeline.source.holder(pipeline.settings)} has",
            *loss_messages(gaps),
        )
    plan = Commit(
        pipeline.bronze,
        own_columns(OWN_COLUMNS, sourced=bool(pipeline.settings.sources)),
        [],
        expect_transactions={},
        set_transactions={p.app: offset for p, offset in start.items()}
        | identity(start)
        | epochs_noted(now, start)
        | sources_noted(None, now)
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
    staged = stage_micro_batch(pipeline, bronze, pipeline.column_map(bronze), part, batch, decided, one_pass)
    _refuse_misfits(pipeline, bronze, staged)
    failpoints.reach("bronze_staged")
    archive_schemas(pipeline, report, staged)
    failpoints.reach("schemas_archived")
    begun = bronze.transaction_version(Txn.QUARANTINE_BEGUN)
    # If they differ, an announced micro-batch is not in bronze: its run crashed, is at work, or lost to a concurrent run.
    if staged.quarantine or begun != bronze.transaction_version(Txn.QUARANTINE_DONE):
        begun = commit_undecodable(pipeline, bronze, quarantine, part, staged, report)
    planned = _planned(pipeline, tables, plan, part, staged, begun)
    about = pipeline.catalog.about_bronze(bronze, staged.types)
    known = names_of(bronze)
    landed = commit(replace(planned, description_now=about, from_table=bronze))
    pipeline.tables.publish(pipeline.bronze, landed.handle)
    if one_pass is not None:
        one_pass.committed(staged.bronze)
    failpoints.reach("bronze_committed")
    report_batch(pipeline, report, known, planned, landed, staged)
    report.add_read(part.start, part.end, part.unit_of)
    report.add(BronzeResult(gaps=part.gaps, suppressed=staged.suppressed, nulled=staged.nulled, rescued=staged.rescued))
    # A new one of several sources may start elsewhere.
    whole = "" if pipeline.settings.sources else ": all that it has is read"
    report.warn(*loss_messages(part.gaps), *(f"topic {topic} joins{whole}" for topic in part.joined))
    report.warn(*incomplete_records(staged))
    report_definitions(pipeline, report, bronze, staged)
    report.add_rejected(staged.reasons)
    report.arrived(staged.arrivals)


def _refuse_misfits(pipeline: Pipeline, bronze: DeltaTable, staged: StagedRows) -> None:
    """As `refuse_misfits`, without leaving files."""
    try:
        refuse_misfits(pipeline, bronze, staged)
    except ConfigurationError:
        staged.discard(pipeline.bronze, pipeline.quarantine)
        raise


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

    expected = txns(bronze, (Txn.ERASURES, *(partition.app for partition in next_offset)))
    expected |= {Txn.BATCH: batch - 1, Txn.QUARANTINE_BEGUN: begun}

    advance = {partition.app: offset for partition, offset in next_offset.items()}
    advance |= identity(next_offset)
    advance |= archive_noted(bronze, pipeline.source)
    introduced = sources_noted(bronze, plan.now)
    advance |= epochs_noted(plan.now, part.end) | epochs_unknown(from_archive) | introduced
    advance |= {Txn.BATCH: batch, Txn.QUARANTINE_BEGUN: begun or 0, Txn.QUARANTINE_DONE: begun or 0}
    if quarantined:
        advance[Txn.RECORDS_QUARANTINED] = counter(bronze, Txn.RECORDS_QUARANTINED) + quarantined
        advance[Txn.QUARANTINE_COMMITS] = counter(quarantine, Txn.MICRO_BATCHES) + 1

    read = {partition: (part.start[partition], end) for partition, end in part.end.items()}
    sent = {last_app(p.source) for p, (start, end) in read.items() if p.source and end > start}
    came = {last_app(p.source) for p in plan.now.latest if Txn.SOURCE.of(p.source) in introduced}
    advance |= dict.fromkeys(sorted(sent | came), int(time.time()))
    known = {*plan.now.latest, *known_of_others(pipeline.settings, bronze, plan.now)}
    info = batch_info(batch, rows, quarantined, read, part.gaps, staged.suppressed, known)
    return commit_of(pipeline, bronze, staged, expected, advance, info)


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
    columns = columns or pipeline.catalog.message_columns(pipeline.column_map(bronze), staged.types)
    expected = {**expected, **as_planned(bronze)}
    advance = {**advance, **marks_to_set(pipeline, bronze)}
    return Commit(
        pipeline.bronze,
        pipeline.catalog.documented(bronze_schema(columns), columns, staged.types),
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
    report.add(BronzeResult(rows_by_type=staged.by_type))


def _report_source(pipeline: Pipeline, plan: OffsetPlan, report: RunReport) -> None:
    """Report what is left in the source, and commit offsets for the consumer group, which is never ahead of bronze."""
    source = pipeline.source
    offsets = plan.reached | plan.ends
    report.add(BronzeResult(lag=plan.lag))
    if pipeline.settings.sources:
        report.add_failed_sources(source.failures)
    if counts := source.file_counts():
        report.add_files(counts)
    if offsets:
        try:
            source.commit_group_offsets(offsets)
        except GameEventsError as error:
            report.warn(str(error))


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
    until = next_offsets(quarantine, part.end)
    ahead = [partition for partition in part.end if until.get(partition, 0) > part.start[partition]]
    if quarantine is None or not ahead:
        return {}
    rows = read_arrow(table, quarantine, [*COORDINATES, "layer"])
    rows = rows.filter(pc.equal(rows.column("layer"), Layer.BRONZE))
    first = {(p.topic_id, p.number): part.start[p] for p in ahead if p.has_record_offsets}
    # Else there are offsets that are no records': then all that quarantine holds was decided.
    only_of_ahead = len(first) == len(ahead)
    if only_of_ahead:
        topic_ids = rows.column("_kafka_topic_id")
        rows = rows.filter(pc.is_in(topic_ids, value_set=pa.array([topic_id for topic_id, _ in first], topic_ids.type)))
    decided = defaultdict[tuple[str, int], set[int]](set)
    for topic_id, number, offset in zip(*(rows.column(name).to_pylist() for name in COORDINATES), strict=True):
        begin = first.get((topic_id, number), None if only_of_ahead else 0)
        if begin is not None and offset >= begin:
            decided[topic_id, number].add(offset)
    return {partition: frozenset(offsets) for partition, offsets in decided.items()}


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
    columns = pipeline.quarantine_columns(quarantine)
    plan = Commit(
        pipeline.quarantine,
        columns,
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
        report.add_landed(Layer.QUARANTINE, pipeline.quarantine, landed, columns, counter(bronze, Txn.BATCH) + 1)
    failpoints.reach("quarantine_committed")
    return begun


def _announce(pipeline: Pipeline, bronze: DeltaTable, part: MicroBatch, staged: StagedRows) -> int:
    """Announce in bronze a commit to quarantine: micro-batches that were planned before cannot be committed any more."""
    before = txns(bronze, (Txn.BATCH, Txn.QUARANTINE_BEGUN, Txn.ERASURES, *(p.app for p in part.end)))
    number = counter(bronze, Txn.QUARANTINE_BEGUN) + 1
    # With the batch as it is: a concurrent commit with a new batch (a replay, a full refresh) excludes this one.
    advance: dict[str, int] = {Txn.QUARANTINE_BEGUN: number, Txn.BATCH: counter(bronze, Txn.BATCH)}
    try:
        info = {"run_id": pipeline.run_id}
        commit(without_rows(pipeline.bronze, bronze, info, before, advance))
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
    expected += catalog.types_of_topics((partition.source, partition.topic) for partition in part.end)
    expected += [(i, FIRST_MESSAGE) for subject in source.subjects(part.end) for i in catalog.expected_ids(subject)]
    keep_raw = pipeline.settings.keep_raw == "all"
    filtered = record_filter(pipeline, bronze)
    tables = (pipeline.bronze, pipeline.quarantine)
    job = BronzeTask(*tables, DecodePlan(), source.reading(part), batch, pipeline.run_id, keep_raw, decided, filtered)

    def run_job(some: MicroBatch, task: BronzeTask) -> tuple[BronzeTask, StagedRows]:
        ranges = named([f"{partition} {some.start[partition]} to {end - 1}" for partition, end in sorted(some.end.items())])
        with crashes_explained(f" over {ranges}"), worker_errors_named():
            numbers = task_numbers(pipeline.spark, task.reading.tasks)
            return run_decode_job(pipeline, task, numbers, columns, expected)

    def run_sparingly(some: MicroBatch, deadly: Deadly) -> StagedRows:
        """With as little memory as possible; `deadly`: records that are quarantined without being decoded."""
        details = {(partition.topic_id, partition.number, offset): detail for (partition, offset), detail in deadly.items()}
        return run_job(some, replace(job, reading=source.reading(some).sparing(), deadly=details))[1]

    try:
        planned = one_pass.plan(pipeline, bronze, job.reading.tasks) if one_pass is not None else None
        done, staged = run_job(part, replace(job, one_pass=planned))
        if one_pass is not None:
            one_pass.staged(done.fan_out(), staged.silver)
    except WorkerCrashError as error:
        if not source.one_by_one:
            raise
        staged = _isolated(pipeline, part, error, run_sparingly)
    other = source.changed(part)
    if other is not None:
        staged.discard(pipeline.bronze, pipeline.quarantine)
        raise ConflictError(f"{other}. Nothing of it was kept")
    return staged


def _isolated(
    pipeline: Pipeline, part: MicroBatch, error: WorkerCrashError, attempt: Callable[[MicroBatch, Deadly], StagedRows]
) -> StagedRows:
    """Decode a micro-batch over which a worker crashed; without the records that crash it if it crashes again."""
    pipeline.on_progress(f"bronze: {error}. The micro-batch is tried again, then its halves")
    try:
        return attempt(part, {})
    except WorkerCrashError as again:

        def try_part(some: MicroBatch) -> None:
            attempt(some, {}).discard(pipeline.bronze, pipeline.quarantine)

        return attempt(part, deadly_records(part, again, try_part))


def run_decode_job(
    pipeline: Pipeline, job: Job, rows: DataFrame, columns: ColumnMap, wanted: Iterable[TypeKey]
) -> tuple[Job, StagedRows]:
    """Run rows through the workers, again if something occurred that the plan lacks: only the driver asks the registry.

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
        job = replace(job, plan=catalog.plan(columns, planned, rest))
        staged = StagedRows.sum(job.collect(rows))
        catalog.offer(staged.schemas)
        new = staged.unknown - planned
        is_complete = not (new or staged.unknown_names or staged.grown)
        if is_complete and _same_columns(job.plan.columns, catalog.message_columns(columns, staged.types)):
            return job, staged
        job.discard(staged)
        catalog.grow(staged.grown)
        asked, missed = catalog.look_up(new, room)
        room -= missed
        room -= catalog.look_up_names(staged.unknown_names, room)
        if asked < new or (staged.unknown_names and room <= 0):
            log.warning("schema_ids_not_asked=%d limit=%d", len(new - asked), catalog.max_unknown_ids)
            rest = f"the registry was not asked: it does not know more than {catalog.max_unknown_ids:,} ids of one micro-batch"
            rest += " (GAME_EVENTS_MAX_UNKNOWN_IDS)"
        planned = {*staged.types, *staged.undecoded} if is_complete else planned | asked


def _same_columns(planned: ColumnMap, occurred: ColumnMap) -> bool:
    """Whether no column of the plan depends on a type that did not occur."""
    return dict(planned.columns) == dict(occurred.columns) and all(
        planned.names.get(key) == name for key, name in occurred.names.items()
    )
