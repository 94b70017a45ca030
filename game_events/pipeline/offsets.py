"""Offsets, topic ids and the archive in bronze's transactions; and the information of bronze's commits, for people and checks.

A recreated topic has the same name, other records, and another id. Records of an archive are never added to records from
elsewhere: its files are in no order of offsets, so an offset does not show whether bronze has a record. So bronze stores which
archive its micro-batches were read from, until the first one from elsewhere or a full refresh.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from deltalake import DeltaTable

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.log import SOURCES
from game_events.lakehouse.commits.transactions import Txn, counter, txn
from game_events.sources.factory import kind_of
from game_events.sources.source import KAFKA, Gap, Offsets, Partition, Source, id_apps, id_of_halves

#: After so many partitions in a row without an offset, the search for more ends.
HOLE = 64

#: A topic's id: 16 bytes as librdkafka writes them.
_TOPIC_ID = re.compile(r"[A-Za-z0-9+/]{21}[AQgw]")


def identity(partitions: Iterable[Partition]) -> dict[str, int]:
    """`txn` -> value that identify the topics, or what else a commit of bronze has read."""
    topics = {p._replace(number=0) for p in partitions}
    return {app: half for topic in topics for app, half in topic.id_txns.items()}


def topic_id_read(handle: DeltaTable | None, place: str, kind: str = KAFKA) -> str | None:
    """Id of the topic of this place, or of what else has this name, that bronze has read last; None: it has read none."""
    high, low = (txn(handle, app) for app in id_apps(place, kind))
    return None if high is None or low is None else id_of_halves(high, low, kind)


def offsets_of(handle: DeltaTable, topic: str, topic_id: str, known: Iterable[int] = ()) -> Offsets:
    """Partition -> next offset of a topic, also of one that is gone, by the table's own transactions.

    `known`: partitions that existed. Partitions without a record may have no transaction: up to `HOLE` of them in a row are
    skipped anyway.
    """
    offsets: Offsets = {}
    last = max(known, default=-1)
    newest = -1
    number = 0
    while number <= max(last, newest + HOLE):
        partition = Partition(topic, topic_id, number)
        offset = txn(handle, partition.app)
        if offset is not None:
            offsets[partition] = offset
            newest = number
        number += 1
    return offsets


def next_offsets(handle: DeltaTable | None, partitions: Iterable[Partition]) -> Offsets:
    """Partition -> next offset, by a table's transactions; unknown partitions are left out."""
    return {partition: offset for partition in partitions if (offset := txn(handle, partition.app)) is not None}


def ends_of_origins(origins: Offsets) -> Offsets:
    """Partition -> end of an archive's records, for each topic that they were read from; plain files have no topic."""
    return {partition: end for partition, end in origins.items() if _TOPIC_ID.fullmatch(partition.topic_id)}


def after_origins(bronze: DeltaTable, origins: Offsets) -> Offsets:
    """Partition -> next offset of these topics: a run that reads them continues after what the archive and bronze have."""
    ends = ends_of_origins(origins)
    reached = next_offsets(bronze, ends)
    return {partition: max(end, reached.get(partition, 0)) for partition, end in ends.items()}


def archive_noted(bronze: DeltaTable, source: Source) -> dict[str, int]:
    """`txn` -> value that the commit of a micro-batch of this source sets."""
    now = _number(source.archive) if source.archive is not None else 0
    return {} if now == counter(bronze, Txn.ARCHIVE) else {Txn.ARCHIVE: now}


def refuse_twice(bronze: DeltaTable | None, quarantine: DeltaTable | None, archive: str, ends: Offsets) -> None:
    """Stop before records of an archive are added to a lakehouse that may have them already, or has records from elsewhere.

    `ends`: partition -> next offset of bronze when it has read the archive.
    """
    if bronze is None:
        other = quarantine is not None
    else:
        other = bool(counter(bronze, Txn.BATCH)) and txn(bronze, Txn.ARCHIVE) != _number(archive)
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


_RANGE = re.compile(r"([^,\[\s]+)\[(\d+)\]@(\d+)\.\.(\d+)(?:, |$)")

_GAP = re.compile(r"([^,\[\s]+)\[(\d+)\]#([^@]+)@(\d+)\.\.(\d*)(?:, |$)")

#: Partition -> offsets [from, to).
Ranges = Mapping[Partition, tuple[int, int]]

#: Keys in the information of an erasure's commit: number of erased rows; batch -> erased rows, as JSON.
ERASED_ROWS = "erased_rows"
ERASED_BY_BATCH = "erased_by_batch"


@dataclass(frozen=True)
class BronzeCommit:
    """One commit of bronze, by its information.

    Attributes:
        batch: number of the batch; 0 made the table.
        quarantined: records of its offsets that it put into quarantine.
        offsets: what was read; None: nothing (a replay from quarantine).
        known: place of a topic -> one of its partitions, of all topics (or the table) of the source, read or not.
        gaps: offsets it passed over, as they were gone before they were read.
        suppressed: records of its offsets that are in no table, as their people were erased.
        kept: those of `rows` that a full refresh has not read: of topics that were not named.
    """

    batch: int
    rows: int
    quarantined: int
    offsets: Ranges | None = None
    gaps: tuple[Gap, ...] = ()
    known: Mapping[str, Partition] = field(default_factory=dict)
    suppressed: int = 0
    kept: int = 0


def batch_info(
    batch: int,
    rows: int,
    quarantined: int = 0,
    offsets: Ranges | None = None,
    gaps: Sequence[Gap] = (),
    suppressed: int = 0,
    partitions: Iterable[Partition] = (),
) -> dict[str, str]:
    """The information of a commit, as texts; `partitions`: all of the source, read or not."""
    info = {"batch": str(batch), "rows": str(rows), "quarantined": str(quarantined)}
    if suppressed:
        info["suppressed"] = str(suppressed)
    if offsets is not None:
        # A topic's name is unchanged; a table's address may hold characters that separate the entries.
        named = ((quote(p.place, safe="/:"), p.number, *read) for p, read in sorted(offsets.items()))
        info["offsets"] = ", ".join(f"{name}[{partition}]@{start}..{end}" for name, partition, start, end in named)
        info[SOURCES] = json.dumps({p.place: _as_known(p) for p in sorted({*partitions, *offsets})})
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
    offsets: dict[Partition, tuple[int, int]] | None = None
    known: Mapping[str, Sequence[str]] = {}
    if "offsets" in entry:
        known = json.loads(str(entry[SOURCES]))
        offsets = {}
        for name, partition, start, end in _RANGE.findall(str(entry["offsets"])):
            offsets[_known(unquote(name), known, int(partition))] = (int(start), int(end))
    return BronzeCommit(
        int(entry["batch"]),
        int(entry["rows"]),
        int(entry["quarantined"]),
        offsets,
        tuple(_gaps(str(entry.get("gaps", "")), known)),
        {place: _known(place, known) for place in known},
        int(entry.get("suppressed") or 0),
        int(entry.get("kept_rows") or 0),
    )


def _as_known(partition: Partition) -> list[str]:
    """What a commit tells of a topic under its `place`."""
    return [partition.kind, partition.topic_id, *([partition.source] if partition.source else [])]


def _known(place: str, known: Mapping[str, Sequence[str]], number: int = 0) -> Partition:
    """A partition of a topic that a commit tells of."""
    kind, topic_id, *source = known[place]
    return Partition(place.removeprefix(f"{source[0]}/") if source else place, topic_id, number, kind, *source)


def _gaps(text: str, known: Mapping[str, Sequence[str]]) -> list[Gap]:
    """The gaps that a commit has recorded; `known`: topic -> its kind and id."""
    gaps: list[Gap] = []
    for topic, number, topic_id, start, end in _GAP.findall(text):
        gap = kind_of(known[topic][0]).gap if topic in known else Gap
        gaps.append(gap(topic, topic_id, int(number), int(start), int(end) if end else None))
    return gaps


def erased_rows(entries: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """Batch -> rows that were erased from bronze, by the entries of its history."""
    erased: Counter[int] = Counter()
    for entry in entries:
        erased.update({int(batch): rows for batch, rows in json.loads(str(entry.get(ERASED_BY_BATCH, "{}"))).items()})
    return erased
