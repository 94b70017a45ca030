"""Offsets and topic ids in bronze's transactions: a recreated topic has the same name, other records, and another id."""

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
#: After so many partitions in a row without an offset, the search for more ends.
HOLE = 64


def identity(splits: Iterable[Split]) -> dict[str, int]:
    """`txn` -> value that identify the topics, or the table, that a commit of bronze has read."""
    found: dict[str, int] = {}
    for topic, topic_id, kind in {(split.topic, split.topic_id, split.kind) for split in splits}:
        # librdkafka writes the 16 bytes as base64 without padding, with `+` and `/`; a table's id is a UUID.
        raw = base64.b64decode(topic_id + "==", validate=True) if kind == KAFKA else uuid.UUID(topic_id).bytes
        halves = struct.unpack(">qq", raw)
        found |= {_app(topic, kind, half): value for half, value in zip(_HALVES, halves, strict=True)}
    return found


def topic_id_read(handle: DeltaTable, topic: str, kind: str = KAFKA) -> str | None:
    """Id of the topic, or table, of a name that bronze has read last; None: it has read none."""
    values = [handle.transaction_version(_app(topic, kind, half)) for half in _HALVES]
    if None not in values:
        raw = struct.pack(">qq", *values)
        return base64.b64encode(raw).decode().rstrip("=") if kind == KAFKA else str(uuid.UUID(bytes=raw))
    if kind != KAFKA:
        return None
    # A table from before the id was in its transactions: the information of its commits.
    for entry in handle.history():
        note = bronze_commit(entry)
        if note is not None and topic in note.known:
            return note.known[topic].topic_id
    return None


def offsets_of(handle: DeltaTable, topic: str, topic_id: str, known: Iterable[int] = ()) -> Offsets:
    """Split -> next offset of a topic, also of one that is gone, by the table's own transactions.

    `known`: partitions that existed. Partitions without a record may have no transaction: up to `HOLE` of them in a row are
    skipped anyway.
    """
    found: Offsets = {}
    last, newest, partition = max(known, default=-1), -1, 0
    while partition <= max(last, newest + HOLE):
        split = Split(topic, topic_id, partition)
        offset = handle.transaction_version(split.app)
        if offset is not None:
            found[split], newest = int(offset), partition
        partition += 1
    return found


def next_offsets(handle: DeltaTable | None, splits: Iterable[Split]) -> Offsets:
    """Split -> next offset, by a table's transactions; unknown splits are left out."""
    if handle is None:
        return {}
    return {split: int(at) for split in splits if (at := handle.transaction_version(split.app)) is not None}


def _app(topic: str, kind: str, half: str) -> str:
    return (Txn.TOPIC if kind == KAFKA else Txn(kind)).of(topic, half)
