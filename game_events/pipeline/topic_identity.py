"""Which topic bronze has read: a topic that was deleted and made again has the same name, other records, and another id."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable

from deltalake import DeltaTable

from game_events.pipeline.commit_notes import bronze_commit

#: A transaction holds one 64-bit number, a topic's id has 128 bits: two of them.
_HALVES = ("high", "low")
#: So many partitions in a row without progress, and those behind them have none either.
HOLE = 64


def partition_app(topic: str, topic_id: str, partition: int) -> str:
    """Name of the `txn` that holds the next offset of a partition."""
    return f"kafka:{topic}:{topic_id}:{partition}"


def identity(topic: str, topic_id: str) -> dict[str, int]:
    """`txn` -> value that tell the id of the topic that a commit of bronze has read."""
    # librdkafka writes the 16 bytes as base64 without padding, with `+` and `/`.
    halves = struct.unpack(">qq", base64.b64decode(topic_id + "==", validate=True))
    return {_app(topic, half): value for half, value in zip(_HALVES, halves, strict=True)}


def topic_id_read(handle: DeltaTable, topic: str) -> str | None:
    """Id of the topic of that name that bronze has read last; None: none."""
    values = [handle.transaction_version(_app(topic, half)) for half in _HALVES]
    if None not in values:
        return base64.b64encode(struct.pack(">qq", *values)).decode().rstrip("=")
    # A table from before the id was kept in its transactions: its commits' notes.
    for entry in handle.history():
        note = bronze_commit(entry)
        if note is not None and note.offsets is not None and note.offsets.topic == topic:
            return note.offsets.topic_id
    return None


def offsets_of(handle: DeltaTable, topic: str, topic_id: str, known: Iterable[int] = ()) -> dict[int, int]:
    """Partition -> next offset of a topic, also of one that is gone, by the table's own transactions.

    Args:
        handle: bronze.
        topic: its name.
        topic_id: its id.
        known: partitions that it is known to have had. Those of which nothing was read may have no transaction, and others
            behind them have one: a hole of up to `HOLE` partitions is looked past anyway.
    """
    found: dict[int, int] = {}
    last = max(known, default=-1)
    partition = missing = 0
    while partition <= last or missing < HOLE:
        offset = handle.transaction_version(partition_app(topic, topic_id, partition))
        if offset is None:
            missing += 1
        else:
            missing = 0
            found[partition] = int(offset)
        partition += 1
    return found


def _app(topic: str, half: str) -> str:
    return f"topic:{topic}:{half}"
