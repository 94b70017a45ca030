"""Undecodable records of a micro-batch: their commit to quarantine, before bronze's, so that no record is ever in both tables.

Two tables have two commits, and two runs may read the same records and know different schemas. So a micro-batch with
undecodable records is announced in bronze first (`quarantine_begun`): bronze commits that were planned before the announcement
fail. A run that plans after it, while the announced micro-batch is not in bronze, cannot know whether the other run is still at
work: it makes an announcement and a commit to quarantine of its own, even without a row, so both commits of the other run fail.
"""

from collections import defaultdict
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.errors import ConflictError, GameEventsError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit, without_rows
from game_events.lakehouse.commits.transactions import Txn, counter, txn, txns
from game_events.lakehouse.data.snapshot import read_arrow
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.event_columns import COORDINATES, QUARANTINE_COLUMNS, QUARANTINE_DESCRIPTION
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import Table, table_id, version_of
from game_events.pipeline.bronze.worker import StageResult
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.state.offsets import next_offsets
from game_events.pipeline.suppression.driver import erasure_fence
from game_events.sources.core.source import KAFKA, MicroBatch

#: (topic id, partition) -> offsets of records that quarantine holds already.
Decided = Mapping[tuple[str, int], frozenset[int]]


def decided_on(table: Table, quarantine: DeltaTable | None, part: MicroBatch) -> Decided:
    """Records of the micro-batch that quarantine holds already: only after a crash between its commit and bronze's.

    `quarantine` was opened after the version of bronze that the micro-batch is planned from.
    """
    until = next_offsets(quarantine, part.end)
    ahead = [p for p in part.end if until.get(p, 0) > part.start[p]]
    if quarantine is None or not ahead:
        return {}
    rows = read_arrow(table, quarantine, [*COORDINATES, "layer"])
    rows = rows.filter(pc.equal(rows.column("layer"), Layer.BRONZE))
    if all(p.kind == KAFKA for p in ahead):
        names = pa.table({"_kafka_topic_id": [p.topic_id for p in ahead], "_kafka_partition": [p.partition for p in ahead]})
        names = names.cast(pa.schema([rows.schema.field(c) for c in names.column_names]))
        rows = rows.join(names, names.column_names, join_type="left semi")
    # Offsets of other kinds of splits are no records' offsets: then all that quarantine holds was decided.
    first = {(p.topic_id, p.partition): part.start[p] for p in ahead if p.kind == KAFKA}
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for topic_id, partition, offset in zip(*(rows.column(c).to_pylist() for c in COORDINATES), strict=True):
        if offset >= first.get((topic_id, partition), 0):
            found[topic_id, partition].add(offset)
    return {key: frozenset(offsets) for key, offsets in found.items()}


def commit_undecodable(
    pipeline: Pipeline,
    bronze: DeltaTable,
    quarantine: DeltaTable | None,
    part: MicroBatch,
    staged: StageResult,
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
    until, app = next_offsets(quarantine, part.end), Txn.MICRO_BATCHES
    plan = Commit(
        pipeline.quarantine,
        QUARANTINE_COLUMNS,
        staged.quarantine,
        expected={p.app: until.get(p) for p in part.end} | {app: txn(quarantine, app)},
        advance={p.app: max(end, until.get(p, 0)) for p, end in part.end.items()} | {app: counter(quarantine, app) + 1},
        table_id=table_id(quarantine),
        seen=version_of(quarantine),
        info={"run_id": pipeline.run_id},
        description=QUARANTINE_DESCRIPTION,
    )
    try:
        landed = commit(plan)
    except ConflictError:
        discard(pipeline.bronze, staged.bronze)
        raise
    pipeline.handles.share(pipeline.quarantine, landed.handle)
    if staged.quarantine:
        report.add_landed(Layer.QUARANTINE, pipeline.quarantine, landed, QUARANTINE_COLUMNS, counter(bronze, Txn.BATCH) + 1)
    failpoints.reach("quarantine_committed")
    return begun


def _announce(pipeline: Pipeline, bronze: DeltaTable, part: MicroBatch, staged: StageResult) -> int:
    """Announce in bronze a commit to quarantine: micro-batches that were planned before cannot be committed any more.

    Raises as `commit_undecodable`.
    """
    before = txns(bronze, (Txn.BATCH, Txn.QUARANTINE_BEGUN, *(p.app for p in part.end)))
    number = counter(bronze, Txn.QUARANTINE_BEGUN) + 1
    # With the batch as it is: a concurrent commit with a new batch (a replay, a full refresh) excludes this one.
    advance: dict[str, int] = {Txn.QUARANTINE_BEGUN: number, Txn.BATCH: counter(bronze, Txn.BATCH)}
    try:
        info, expected = {"run_id": pipeline.run_id}, before | erasure_fence(bronze)
        commit(without_rows(pipeline.bronze, bronze, info, expected, advance))
    except GameEventsError:
        staged.discard(pipeline.bronze, pipeline.quarantine)
        raise
    return number
