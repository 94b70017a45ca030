"""Offsets, topic ids and the archive in bronze's transactions.

A recreated topic has the same name, other records, and another id. Records of an archive are never added to records from
elsewhere: its files are in no order of offsets, so an offset does not show whether bronze has a record. So bronze stores which
archive its micro-batches were read from, until the first one from elsewhere or a full refresh.

Information of bronze's commits, for people and for checks: runs start from the table's transactions, never from this.

Conditions on rows of bronze and quarantine, by the splits and offsets of their records.
"""

import base64
import hashlib
import json
import re
import struct
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from deltalake import DeltaTable
from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.log import SOURCES
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.plugins.files.records import FileGap
from game_events.sources.source import FILES, KAFKA, TABLE, Gap, Offsets, Source, Split

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


_RANGE = re.compile(r"([^,\[\s]+)\[(\d+)\]@(\d+)\.\.(\d+)(?:, |$)")

_GAP = re.compile(r"([^,\[\s]+)\[(\d+)\]#([^@]+)@(\d+)\.\.(\d*)(?:, |$)")

#: Split -> offsets [from, to).
Ranges = Mapping[Split, tuple[int, int]]

#: Keys in the information of an erasure's commit: number of erased rows; batch -> erased rows, as JSON.
ERASED_ROWS, ERASED_BY_BATCH = "erased_rows", "erased_by_batch"


@dataclass(frozen=True)
class BronzeCommit:
    """One commit of bronze, by its information.

    Attributes:
        batch: number of the batch; 0 made the table.
        rows: rows it added to bronze.
        quarantined: records of its offsets that it put into quarantine.
        offsets: what was read; None: nothing (a replay from quarantine).
        known: topic -> one of its splits, of all topics (or the table) of the source, read or not.
        gaps: offsets it passed over, as they were gone before they were read.
        suppressed: records of its offsets that are in no table, as their data subjects were erased.
        kept: those of `rows` that a full refresh has not read: of topics that were not named.
    """

    batch: int
    rows: int
    quarantined: int
    offsets: Ranges | None = None
    gaps: tuple[Gap, ...] = ()
    known: Mapping[str, Split] = field(default_factory=dict)
    suppressed: int = 0
    kept: int = 0


def batch_info(
    batch: int,
    rows: int,
    quarantined: int = 0,
    offsets: Ranges | None = None,
    gaps: Sequence[Gap] = (),
    suppressed: int = 0,
    splits: Iterable[Split] = (),
) -> dict[str, str]:
    """The information of a commit, as texts; `splits`: all of the source, read or not."""
    info = {"batch": str(batch), "rows": str(rows), "quarantined": str(quarantined)}
    if suppressed:
        info["suppressed"] = str(suppressed)
    if offsets is not None:
        # A topic's name is unchanged; a table's address may hold characters that separate the entries.
        named = ((quote(p.topic, safe="/:"), p.partition, *read) for p, read in sorted(offsets.items()))
        info["offsets"] = ", ".join(f"{name}[{partition}]@{start}..{end}" for name, partition, start, end in named)
        info[SOURCES] = json.dumps({p.topic: [p.kind, p.topic_id] for p in sorted({*splits, *offsets})})
    if gaps:
        info["gaps"] = ", ".join(
            f"{g.topic}[{g.partition}]#{g.topic_id}@{g.start}..{'' if g.end is None else g.end}" for g in gaps
        )
    return info


def kept_info(rows: int) -> dict[str, str]:
    """The part of a full refresh: rows that it kept."""
    return {"kept_rows": str(rows)} if rows else {}


def bronze_commit(entry: Mapping[str, Any]) -> BronzeCommit | None:
    """The information in an entry of `DeltaTable.history`; None: no commit of a batch (redecode, maintenance)."""
    if "batch" not in entry or "rows" not in entry:
        return None
    offsets: dict[Split, tuple[int, int]] | None = None
    known: Mapping[str, Sequence[str]] = {}
    if "offsets" in entry:
        # Of one topic, as notes were before a bronze could have several.
        old = {entry["topic"]: (KAFKA, entry["topic_id"])} if "topic" in entry else {}
        known = json.loads(str(entry[SOURCES])) if SOURCES in entry else old
        offsets = {}
        for name, partition, start, end in _RANGE.findall(str(entry["offsets"])):
            kind, topic_id = known[unquote(name)]
            offsets[Split(unquote(name), topic_id, int(partition), kind)] = (int(start), int(end))
    kinds = {topic: FileGap for topic, (kind, _) in known.items() if kind == FILES}
    return BronzeCommit(
        int(entry["batch"]),
        int(entry["rows"]),
        int(entry["quarantined"]),
        offsets,
        tuple(
            kinds.get(topic, Gap)(topic, topic_id, int(partition), int(start), int(end) if end else None)
            for topic, partition, topic_id, start, end in _GAP.findall(str(entry.get("gaps", "")))
        ),
        {topic: Split(topic, topic_id, 0, kind) for topic, (kind, topic_id) in known.items()},
        int(entry.get("suppressed") or 0),
        int(entry.get("kept_rows") or 0),
    )


def erased_rows(entries: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """Batch -> rows that were erased from bronze, by the entries of its history."""
    found: Counter[int] = Counter()
    for entry in entries:
        found.update({int(batch): rows for batch, rows in json.loads(str(entry.get(ERASED_BY_BATCH, "{}"))).items()})
    return found


def since(offsets: Mapping[Split, int]) -> Column:
    """Condition on rows of bronze and quarantine: of these topics, at or after these offsets of their partitions."""
    if not offsets:
        return F.lit(False)
    # One map, however many topics and partitions there are.
    pairs = ((F.lit(f"{split.topic_id}:{split.partition}"), F.lit(at).cast("long")) for split, at in sorted(offsets.items()))
    firsts = F.create_map(*(column for pair in pairs for column in pair))
    place = F.concat_ws(":", F.col("_kafka_topic_id"), F.col("_kafka_partition").cast("string"))
    return F.coalesce(F.col("_kafka_offset") >= F.try_element_at(firsts, place), F.lit(False))


def not_read(splits: Collection[Split]) -> Column:
    """Condition on rows of bronze and quarantine that a full refresh keeps: of topics or partitions that are not read now.

    Rows of a topic of the same name and another id are not kept: the topic was recreated. With files as the source all rows are
    kept but those of the split of files and of the topics' splits in an archive. With a table as the source none is kept.
    """
    kinds = {split.kind for split in splits}
    if not splits or TABLE in kinds:
        return F.lit(False)
    topics, ids = sorted({split.topic for split in splits}), sorted({split.topic_id for split in splits})
    place = F.concat_ws(":", F.col("_kafka_topic_id"), F.col("_kafka_partition").cast("string"))
    read = F.array(*(F.lit(f"{split.topic_id}:{split.partition}") for split in sorted(splits)))
    if FILES in kinds:
        return ~F.array_contains(read, place)
    other_partition = F.col("_kafka_topic_id").isin(*ids) & ~F.array_contains(read, place)
    return F.coalesce(~F.col("_kafka_topic").isin(*topics) | other_partition, F.lit(False))
