"""Quarantine's part of a full refresh of bronze: its undecodable records are those that the new bronze has left out.

Two tables, so two commits, and bronze's is the decision. Before it the new files of quarantine are only listed, in a small file
beside the table that is named by the refresh's ticket; no reader sees them. Bronze's commit carries the ticket (`txn`
`reset`). Whoever finds a ticket in bronze that quarantine does not hold finishes the work from the list, before anything else.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import DeltaTable, Schema
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit, paths
from game_events.lakehouse.commits.evolution import evolve
from game_events.lakehouse.commits.generations import generation
from game_events.lakehouse.commits.restore_check import refuse_restored
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import read_files, spark_schema
from game_events.lakehouse.data.staging import StagedFile, discard, file_system
from game_events.lakehouse.data.table_writer import FileStage
from game_events.lakehouse.event_columns import HEADERS, QUARANTINE_COLUMNS, QUARANTINE_DESCRIPTION, travelling
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.sources.core.source import FILES, KAFKA, TABLE, Split

ATTEMPTS = 20
_LIST = re.compile(r"_reset-(\d+)\.json")


@dataclass(frozen=True)
class ResetList:
    """What quarantine gets when bronze is replaced.

    Attributes:
        batch: of bronze, with which the refresh landed.
        ends: lane -> position behind the last record of it that is decided.
        files: the new rows, not committed.
        origins: lanes of the records of files, an archive's too; None: a version wrote the list that did not note them.
    """

    batch: int
    ends: Mapping[Split, int]
    files: list[StagedFile]
    origins: frozenset[Split] | None = frozenset()


def is_finished(bronze: DeltaTable, quarantine: DeltaTable) -> bool:
    """Whether this version of quarantine knows of the last full refresh of this version of bronze."""
    ticket = bronze.transaction_version(Txn.FULL_REFRESH)
    return ticket is None or ticket == quarantine.transaction_version(_app(bronze))


@retry_on_conflict(ATTEMPTS)
def finish_reset(pipeline: Pipeline, report: RunReport) -> None:
    """Give quarantine the rows of a full refresh of bronze that has not come to it yet; looks at two logs otherwise.

    Args:
        pipeline: the parts.
        report: gets an entry for quarantine if it was changed.

    Raises:
        ConflictError: rivals won every attempt; the next run goes on.
        DataError: quarantine was restored: this commit would cover that up.
    """
    bronze, quarantine = pipeline.bronze.open(), pipeline.quarantine.open()
    ticket = bronze.transaction_version(Txn.FULL_REFRESH) if bronze is not None else None
    if bronze is None or ticket is None or (quarantine is not None and is_finished(bronze, quarantine)):
        return
    listed = _read(pipeline.quarantine, ticket)
    if quarantine is None and (listed is None or not listed.files):
        return  # there was nothing undecodable, or somebody deleted the table: no row to bring
    quarantine = refuse_restored(pipeline.quarantine, quarantine) if quarantine is not None else None
    try:
        landed = _finish(pipeline, bronze, quarantine, ticket, listed)
    except (PySparkException, Py4JJavaError) as error:
        if _read(pipeline.quarantine, ticket) is None and listed is not None:
            raise ConflictError(f"{pipeline.quarantine.name}: a concurrent run deleted the files of this job") from error
        raise
    failpoints.reach("reset_finished")
    report.add_landed(Layer.QUARANTINE, pipeline.quarantine, landed, QUARANTINE_COLUMNS, generation(bronze))
    if listed is not None:
        forget(pipeline.quarantine, ticket, listed.files)


def sweep(pipeline: Pipeline) -> None:
    """Remove the lists, and the files they name, of full refreshes that can never land: bronze holds a later one's ticket.

    A refresh that was killed before its commit leaves its list behind. Those of later tickets may belong to one under way.
    """
    bronze, quarantine = pipeline.bronze.open(), pipeline.quarantine.open()
    if bronze is None or quarantine is None or not is_finished(bronze, quarantine):
        return
    last = bronze.transaction_version(Txn.FULL_REFRESH) or 0
    for ticket in _tickets(pipeline.quarantine):
        if ticket <= last and (listed := _read(pipeline.quarantine, ticket)) is not None:
            held = set(paths(quarantine))
            forget(pipeline.quarantine, ticket, [f for f in listed.files if f.path not in held])


def _tickets(table: Table) -> list[int]:
    system, prefix = file_system(table)
    found = system.get_file_info(pafs.FileSelector(prefix.rstrip("/"), recursive=False, allow_not_found=True))
    return [int(match[1]) for match in (_LIST.fullmatch(info.base_name) for info in found) if match]


def keep(table: Table, ticket: int, listed: ResetList) -> None:
    """Write the list, where a later run finds it."""
    system, prefix = file_system(table)
    body = {
        "batch": listed.batch,
        "ends": [[*lane, end] for lane, end in sorted(listed.ends.items())],
        "files": [f.to_json() for f in listed.files],
        "origins": sorted(listed.origins or ()),
    }
    written = json.dumps(body).encode()
    # With room for all of it: delta-rs's streams to object stores refuse what Arrow hands on without copying it.
    with system.open_output_stream(prefix + _name(ticket), buffer_size=len(written) + 1) as sink:
        sink.write(written)


def forget(table: Table, ticket: int, files: list[StagedFile]) -> None:
    """Remove the list and the files that it names: they are in the table under other names, or nobody wants them."""
    system, prefix = file_system(table)
    discard(table, files)
    try:
        system.delete_file(prefix + _name(ticket))
    except FileNotFoundError:
        return


def listed_files(pipeline: Pipeline, older_than_s: float, *, dry_run: bool = False) -> list[str]:
    """Names of the files that wait in a list for their full refresh; lists that a crash has left behind are removed.

    A list is left behind if bronze does not hold its ticket and it is older than `older_than_s`: that refresh never came about.
    """
    bronze = pipeline.bronze.open()
    wanted = bronze.transaction_version(Txn.FULL_REFRESH) if bronze is not None else None
    names: list[str] = []
    for ticket in _tickets(pipeline.quarantine):
        listed = _read(pipeline.quarantine, ticket)
        if listed is None:
            continue
        # A ticket is the time it was made, in microseconds since 1970.
        if ticket != wanted and ticket / 1e6 < time.time() - older_than_s:
            if not dry_run:
                forget(pipeline.quarantine, ticket, listed.files)
        else:
            names += [f.path for f in listed.files]
    return names


def since(offsets: Mapping[Split, int]) -> Column:
    """Condition on rows of bronze and quarantine: of these topics, at or behind these offsets of their partitions."""
    if not offsets:
        return F.lit(False)
    # One look-up, however many topics and partitions there are.
    pairs = ((F.lit(f"{lane.topic_id}:{lane.partition}"), F.lit(at).cast("long")) for lane, at in sorted(offsets.items()))
    firsts = F.create_map(*(column for pair in pairs for column in pair))
    place = F.concat_ws(":", F.col("_kafka_topic_id"), F.col("_kafka_partition").cast("string"))
    return F.coalesce(F.col("_kafka_offset") >= F.try_element_at(firsts, place), F.lit(False))


def not_read(lanes: Collection[Split]) -> Column:
    """Condition on rows of bronze and quarantine: of a topic, or a partition of one, that is not read just now.

    A full refresh leaves them as they are. Rows of a topic of the same name and another id are not among them: that topic is
    gone, and in its place is the one that is read. Files have no topic's place: all rows are among them but those of the lane
    of files and of the topics' lanes that records of an archive come from. A table has all that there is.
    """
    kinds = {lane.kind for lane in lanes}
    if not lanes or TABLE in kinds:
        return F.lit(False)
    topics, ids = sorted({lane.topic for lane in lanes}), sorted({lane.topic_id for lane in lanes})
    place = F.concat_ws(":", F.col("_kafka_topic_id"), F.col("_kafka_partition").cast("string"))
    read = F.array(*(F.lit(f"{lane.topic_id}:{lane.partition}") for lane in sorted(lanes)))
    if FILES in kinds:
        return ~F.array_contains(read, place)
    other_partition = F.col("_kafka_topic_id").isin(*ids) & ~F.array_contains(read, place)
    return F.coalesce(~F.col("_kafka_topic").isin(*topics) | other_partition, F.lit(False))


def _finish(
    pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable | None, ticket: int, listed: ResetList | None
) -> Landed:
    """One commit: rows of records that the refresh has decided on anew go, its own rows come, all others stay."""
    app, seen = _app(bronze), quarantine.version() if quarantine is not None else None
    held = quarantine.transaction_version(app) if quarantine is not None else None
    slices = quarantine.transaction_version(Txn.MICRO_BATCHES) if quarantine is not None else None
    # A slice that is about to commit rows was planned from the bronze that is gone: it is shut out.
    expected, advance = {app: held, Txn.MICRO_BATCHES: slices}, {app: ticket, Txn.MICRO_BATCHES: (slices or 0) + 1}
    rewritten: frozenset[str] = frozenset()
    files: list[StagedFile] = []
    if listed is not None:
        if quarantine is not None:
            quarantine = evolve(pipeline.quarantine, quarantine, QUARANTINE_COLUMNS)
            rewritten = frozenset(_may_hold(quarantine, Layer.BRONZE))
        files = _stage(pipeline, listed, rewritten) if listed.files or rewritten else []
        for lane, end in listed.ends.items():
            name = lane.app
            now = quarantine.transaction_version(name) if quarantine is not None else None
            expected[name] = now
            # Rows behind the end stay: a rival's slice may have decided on them already.
            advance[name] = max(end, now or 0)
    return commit(
        Commit(
            pipeline.quarantine,
            QUARANTINE_COLUMNS,
            files,
            expected=expected,
            advance=advance,
            table_id=str(quarantine.metadata().id) if quarantine is not None else None,
            seen=seen,
            rewritten=rewritten,
            info={"full_refresh_of": pipeline.bronze.name, "run_id": pipeline.run_id},
            description=QUARANTINE_DESCRIPTION,
        )
    )


def _stage(pipeline: Pipeline, listed: ResetList, rewritten: frozenset[str]) -> list[StagedFile]:
    """The refresh's own rows, and those of the rewritten files that stay, in files of their own.

    The listed files are written once more: a commit that loses to a rival deletes its files, and these must outlive that.
    """
    columns = spark_schema(Schema.from_arrow(QUARANTINE_COLUMNS))
    root = pipeline.quarantine.uri.rstrip("/")
    rows = read_files(pipeline.spark, [f"{root}/{f.path}" for f in listed.files], columns)
    if rewritten:
        old = read_files(pipeline.spark, [f"{root}/{path}" for path in sorted(rewritten)], columns)
        rows = old.where(~F.col("layer").eqNullSafe(Layer.BRONZE) | _later(listed)).unionByName(rows)
    moved = rows.select(travelling(QUARANTINE_COLUMNS.names)).coalesce(2)
    return FileStage(pipeline.quarantine, QUARANTINE_COLUMNS, HEADERS).write(moved)


def _may_hold(handle: DeltaTable, layer: str) -> list[str]:
    """Paths of the files that may hold rows of a layer, by their statistics."""
    actions = pa.table(handle.get_add_actions(flatten=True))
    if "min.layer" in actions.column_names:
        outside = pc.or_kleene(pc.greater(actions["min.layer"], layer), pc.less(actions["max.layer"], layer))
        actions = actions.filter(pc.invert(pc.fill_null(outside, False)))
    return [str(path) for path in actions.column("path").to_pylist()]


def _app(bronze: DeltaTable) -> str:
    return Txn.FULL_REFRESH.of(bronze.metadata().id)


def _name(ticket: int) -> str:
    # With an underscore in front no reader of the table, and no vacuum, takes it for data.
    return f"_reset-{ticket}.json"


def _read(table: Table, ticket: int) -> ResetList | None:
    system, prefix = file_system(table)
    try:
        with system.open_input_file(prefix + _name(ticket)) as source:
            body = json.loads(source.read())
    except FileNotFoundError:
        return None
    if "apps" in body:  # of a version that knew one topic only
        topics = {p: app.split(":")[1:3] for p, app in body["apps"].items()}
        body |= {"batch": 0, "ends": [[*topics[p], int(p), end] for p, end in body["ends"].items()]}
    ends = {Split(*lane): int(end) for *lane, end in body["ends"]}
    origins = frozenset(Split(*lane) for lane in body["origins"]) if "origins" in body else None
    return ResetList(int(body["batch"]), ends, [StagedFile.from_json(text) for text in body["files"]], origins)


def _later(listed: ResetList) -> Column:
    """Condition on rows of quarantine: decided on behind what the full refresh came to, or of what it has not read."""
    if any(lane.kind != KAFKA for lane in listed.ends):
        # A position of another kind of lane is no record's offset; bronze's batch tells as well.
        others = F.lit(False) if listed.origins is None else not_read({*listed.ends, *listed.origins})
        return (F.col("_batch") > listed.batch) | others
    return since(listed.ends) | not_read(listed.ends)
