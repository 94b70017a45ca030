"""Undecodable records of a slice: their commit to quarantine, before bronze's, so that no record is ever in both tables.

Two tables have two commits, and two runs may read the same records and know different schemas. So a slice with undecodable
records says so in bronze first (`quarantine_begun`), which makes the bronze commit of every slice that was planned before fail.
A slice that was planned behind it, while the first is not in bronze yet, cannot know whether that is still at work: it makes an
announcement of its own, and a commit to quarantine even without a row, and so shuts the other one out of both tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.errors import ConflictError, GameEventsError
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import read_arrow
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.event_columns import COORDINATES, QUARANTINE_COLUMNS, QUARANTINE_DESCRIPTION
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import Table
from game_events.pipeline.bronze.decode_job import StageResult
from game_events.pipeline.context import Pipeline
from game_events.pipeline.state.offsets import next_offsets
from game_events.pipeline.suppression.driver import erasure_fence
from game_events.sources.core.source import KAFKA, MicroBatch

#: (topic id, partition) -> offsets of records that quarantine holds already.
Decided = Mapping[tuple[str, int], frozenset[int]]


def decided_on(table: Table, quarantine: DeltaTable | None, part: MicroBatch) -> Decided:
    """Records of the slice that quarantine holds already: only after a crash between its commit and bronze's.

    Args:
        table: quarantine.
        quarantine: its newest version, opened after the version of bronze that the slice is planned from.
        part: the slice.
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
    # A position of another kind of lane is no record's offset: then all that quarantine holds was decided.
    first = {(p.topic_id, p.partition): part.start[p] for p in ahead if p.kind == KAFKA}
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for topic_id, partition, offset in zip(*(rows.column(c).to_pylist() for c in COORDINATES), strict=True):
        if offset >= first.get((topic_id, partition), 0):
            found[topic_id, partition].add(offset)
    return {key: frozenset(offsets) for key, offsets in found.items()}


def is_under_way(bronze: DeltaTable) -> bool:
    """Whether a slice was announced that did not come to bronze: it crashed, or is at work, or lost to a rival."""
    return bronze.transaction_version(Txn.QUARANTINE_BEGUN) != bronze.transaction_version(Txn.QUARANTINE_DONE)


def announce(pipeline: Pipeline, bronze: DeltaTable, part: MicroBatch, staged: StageResult) -> int:
    """Say in bronze that this slice is about to commit to quarantine: no slice that was planned before lands any more.

    Returns:
        the announcement's number, which the slice's commit to bronze compares.

    Raises:
        ConflictError: a rival was first, or gamers were erased since `bronze` was opened; the slice's files are deleted.
    """
    before = {app: bronze.transaction_version(app) for app in (Txn.BATCH, Txn.QUARANTINE_BEGUN, *(p.app for p in part.end))}
    number = int(before[Txn.QUARANTINE_BEGUN] or 0) + 1
    plan = Commit(
        pipeline.bronze,
        pa.schema(bronze.schema()),
        [],
        expected=before | erasure_fence(bronze),
        # With the batch as it is: whatever else gets a batch of its own (a replay, a full refresh) excludes this commit.
        advance={Txn.QUARANTINE_BEGUN: number, Txn.BATCH: int(before[Txn.BATCH] or 0)},
        table_id=str(bronze.metadata().id),
        seen=bronze.version(),
        owns_map=True,
        info={"run_id": pipeline.run_id},
    )
    try:
        commit(plan)
    except GameEventsError:
        staged.discard(pipeline.bronze, pipeline.quarantine)
        raise
    return number


def commit_undecodable(pipeline: Pipeline, quarantine: DeltaTable | None, part: MicroBatch, staged: StageResult) -> Landed:
    """Quarantine's own commit, after the announcement and before bronze's; perhaps without a row.

    Raises:
        ConflictError: a rival's slice came to quarantine first; the files of both tables are deleted.
    """
    until = next_offsets(quarantine, part.end)
    slices = quarantine.transaction_version(Txn.MICRO_BATCHES) if quarantine is not None else None
    plan = Commit(
        pipeline.quarantine,
        QUARANTINE_COLUMNS,
        staged.quarantine,
        expected={p.app: until.get(p) for p in part.end} | {Txn.MICRO_BATCHES: slices},
        advance={p.app: max(end, until.get(p, 0)) for p, end in part.end.items()} | {Txn.MICRO_BATCHES: (slices or 0) + 1},
        table_id=str(quarantine.metadata().id) if quarantine is not None else None,
        seen=quarantine.version() if quarantine is not None else None,
        info={"run_id": pipeline.run_id},
        description=QUARANTINE_DESCRIPTION,
    )
    try:
        return commit(plan)
    except ConflictError:
        discard(pipeline.bronze, staged.bronze)
        raise
