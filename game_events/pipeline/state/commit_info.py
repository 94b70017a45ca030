"""Information of bronze's commits, for people and for checks: runs start from the table's transactions, never from this."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from game_events.lakehouse.commits.delta_log import SOURCES
from game_events.sources.core.source import FILES, KAFKA, Gap, Split
from game_events.sources.files.offsets import FileGap

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
