"""Which topic bronze has read: a topic that was deleted and made again has the same name, other records, and another id.

The same of a table of another pipeline.
"""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Iterable

from deltalake import DeltaTable

from game_events.lakehouse.commits.transactions import Txn
from game_events.pipeline.state.commit_info import bronze_commit
from game_events.sources.core.source import KAFKA, Offsets, Split

#: A transaction holds one 64-bit number, an id has 128 bits: two of them.
_HALVES = ("high", "low")
#: So many partitions in a row without progress, and those behind them have none either.
HOLE = 64


def identity(lanes: Iterable[Split]) -> dict[str, int]:
    """`txn` -> value that tell the ids of the topics, or the table, that a commit of bronze has read."""
    found: dict[str, int] = {}
    for topic, topic_id, kind in {(lane.topic, lane.topic_id, lane.kind) for lane in lanes}:
        # librdkafka writes the 16 bytes as base64 without padding, with `+` and `/`; a table's id is a UUID.
        raw = base64.b64decode(topic_id + "==", validate=True) if kind == KAFKA else uuid.UUID(topic_id).bytes
        halves = struct.unpack(">qq", raw)
        found |= {_app(topic, kind, half): value for half, value in zip(_HALVES, halves, strict=True)}
    return found


def topic_id_read(handle: DeltaTable, topic: str, kind: str = KAFKA) -> str | None:
    """Id of the topic, or table, of that name that bronze has read last; None: none."""
    values = [handle.transaction_version(_app(topic, kind, half)) for half in _HALVES]
    if None not in values:
        raw = struct.pack(">qq", *values)
        return base64.b64encode(raw).decode().rstrip("=") if kind == KAFKA else str(uuid.UUID(bytes=raw))
    if kind != KAFKA:
        return None
    # A table from before the id was kept in its transactions: its commits' notes.
    for entry in handle.history():
        note = bronze_commit(entry)
        if note is not None and topic in note.known:
            return note.known[topic].topic_id
    return None


def offsets_of(handle: DeltaTable, topic: str, topic_id: str, known: Iterable[int] = ()) -> Offsets:
    """Split -> next offset of a topic, also of one that is gone, by the table's own transactions.

    Args:
        handle: bronze.
        topic: its name.
        topic_id: its id.
        known: partitions that it is known to have had. Those of which nothing was read may have no transaction, and others
            behind them have one: a hole of up to `HOLE` partitions is looked past anyway.
    """
    found: Offsets = {}
    last = max(known, default=-1)
    partition = missing = 0
    while partition <= last or missing < HOLE:
        lane = Split(topic, topic_id, partition)
        offset = handle.transaction_version(lane.app)
        if offset is None:
            missing += 1
        else:
            missing = 0
            found[lane] = int(offset)
        partition += 1
    return found


def next_offsets(handle: DeltaTable | None, lanes: Iterable[Split]) -> Offsets:
    """Split -> next position, as a table's own progress has it; lanes it never saw are left out."""
    if handle is None:
        return {}
    return {lane: int(at) for lane in lanes if (at := handle.transaction_version(lane.app)) is not None}


def _app(topic: str, kind: str, half: str) -> str:
    return (Txn.TOPIC if kind == KAFKA else Txn(kind)).of(topic, half)
