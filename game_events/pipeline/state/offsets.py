"""Offsets, topic ids and the archive in bronze's transactions.

A recreated topic has the same name, other records, and another id. Records of an archive are never added to records from
elsewhere: its files are in no order of offsets, so an offset does not show whether bronze has a record. So bronze stores which
archive its micro-batches were read from, until the first one from elsewhere or a full refresh.
"""

import base64
import hashlib
import re
import struct
import uuid
from collections.abc import Iterable

from deltalake import DeltaTable

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.pipeline.state.commit_info import bronze_commit
from game_events.sources.core.source import KAFKA, Offsets, Source, Split

#: A transaction holds one 64-bit number, an id has 128 bits: two of them.
_HALVES = ("high", "low")
#: After so many partitions in a row without an offset, the search for more ends.
HOLE = 64
#: A topic's id: 16 bytes as librdkafka writes them.
_TOPIC_ID = re.compile(r"[A-Za-z0-9+/]{21}[AQgw]")


def identity(splits: Iterable[Split]) -> dict[str, int]:
    """`txn` -> value that identify the topics, or the table, that a commit of bronze has read."""
    found: dict[str, int] = {}
    for topic, topic_id, kind in {(split.topic, split.topic_id, split.kind) for split in splits}:
        # librdkafka writes the 16 bytes as base64 without padding, with `+` and `/`; a table's id is a UUID.
        raw = base64.b64decode(topic_id + "==", validate=True) if kind == KAFKA else uuid.UUID(topic_id).bytes
        halves = struct.unpack(">qq", raw)
        found |= {_app(topic, kind, half): value for half, value in zip(_HALVES, halves, strict=True)}
    return found


def topic_id_read(handle: DeltaTable | None, topic: str, kind: str = KAFKA) -> str | None:
    """Id of the topic, or table, of a name that bronze has read last; None: it has read none."""
    if handle is None:
        return None
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


def ends_of_origins(origins: Offsets) -> Offsets:
    """Split -> end of an archive's records, for each topic that they were read from; plain files have no topic."""
    return {split: end for split, end in origins.items() if _TOPIC_ID.fullmatch(split.topic_id)}


def after_origins(bronze: DeltaTable, origins: Offsets) -> Offsets:
    """Split -> next offset of these topics: a run that reads them continues after what the archive and bronze have."""
    ends = ends_of_origins(origins)
    reached = next_offsets(bronze, ends)
    return {split: max(end, reached.get(split, 0)) for split, end in ends.items()}


def archive_noted(bronze: DeltaTable, source: Source) -> dict[str, int]:
    """`txn` -> value that the commit of a micro-batch of this source sets."""
    now = _number(source.archive) if source.archive is not None else 0
    return {} if now == counter(bronze, Txn.ARCHIVE) else {Txn.ARCHIVE: now}


def refuse_twice(bronze: DeltaTable | None, quarantine: DeltaTable | None, archive: str, ends: Offsets) -> None:
    """Stop before records of an archive are added to a lakehouse that may have them already.

    `ends`: split -> next offset of bronze when it has read the archive.

    Raises:
        ConfigurationError: bronze has records from elsewhere.
    """
    if bronze is None:
        other = quarantine is not None
    else:
        other = bool(bronze.transaction_version(Txn.BATCH)) and bronze.transaction_version(Txn.ARCHIVE) != _number(archive)
        other = other and next_offsets(bronze, ends) != ends
    if other:
        raise ConfigurationError(
            "GAME_EVENTS_FILES_PATH is an archive, and the lakehouse has records that are not from it, but from a topic, other "
            "files, another archive, or this one in another place: they would be there twice. Nothing was read. Set "
            "GAME_EVENTS_LAKEHOUSE to a new folder, or the source back to what it was"
        )


def _number(archive: str) -> int:
    """A transaction holds one 64-bit number."""
    return int.from_bytes(hashlib.sha256(archive.encode()).digest()[:7]) | 1


def _app(topic: str, kind: str, half: str) -> str:
    return (Txn.TOPIC if kind == KAFKA else Txn(kind)).of(topic, half)
