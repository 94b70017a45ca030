"""The table `suppressed_entities`: whom to keep out, as keyed hashes; no id, and nothing that gives one away without the key.

Guarantee: an entry that was committed stays, whoever else writes; entries are added before anything is erased.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.system_tables.system_table import SystemTable
from game_events.lakehouse.tables import SUPPRESSED, Lakehouse

ATTEMPTS = 20
#: Characters of a hash that tell one erasure from another in logs and messages.
HASH_CHARS = 12
#: Hashes that a message names.
HASHES_SHOWN = 5
TIME = pa.timestamp("us", tz="UTC")
_RECORD = [pa.field("topic_id", pa.string()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64())]
SCHEMA = pa.schema(
    [
        pa.field("hash", pa.string()),
        pa.field("key_check", pa.string()),
        pa.field("listed_at", TIME),
        pa.field("finished_at", TIME),
        pa.field("run_id", pa.string()),
        pa.field("records", pa.list_(pa.struct(_RECORD))),
    ]
)
#: Which record of Kafka: topic id, partition, offset.
Record = tuple[str, int, int]


def entity_hash(key: bytes, entity: bytes) -> bytes:
    """HMAC-SHA256 of an id: its text in UTF-8, or its bytes."""
    return hmac.digest(key, b"entity\0" + entity, hashlib.sha256)


def key_check(key: bytes) -> str:
    """Tells one key from another, without telling the key."""
    return hmac.digest(key, b"key check\0", hashlib.sha256).hex()[:16]


@dataclass(frozen=True)
class Listed:
    """One version of the table.

    Attributes:
        entries: hash (hexadecimal) -> its row.
    """

    entries: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def unfinished(self) -> frozenset[str]:
        """Hashes of those whose rows may not be gone yet."""
        return frozenset(h for h, row in self.entries.items() if row["finished_at"] is None)

    @property
    def records(self) -> frozenset[Record]:
        """Records of theirs that do not decode: only their bytes told whose they are, and the list has no id to look for."""
        held = (row.get("records") or () for row in self.entries.values())
        return frozenset((r["topic_id"], r["partition"], r["offset"]) for rows in held for r in rows)  # type: ignore[attr-defined]

    def require_key(self, key: bytes) -> None:
        """Keep a run with another key from letting in whom it cannot recognise.

        Raises:
            ConfigurationError: the entries were made with another key.
        """
        checks = {row["key_check"] for row in self.entries.values()}
        if checks - {key_check(key)}:
            raise ConfigurationError(
                f"GAME_EVENTS_ERASURE_KEY is another key than the one that {SUPPRESSED} was made with: its "
                f"{len(self.entries):,} hashes say nothing under this one. Give the key back; it cannot be changed"
            )


def read_suppressed(lakehouse: Lakehouse) -> Listed:
    """The newest version; an empty one if there is no such table."""
    table = _table(lakehouse)
    return _listed(table.read(table.table.open()))


def add_suppressed(lakehouse: Lakehouse, key: bytes, hashes: Collection[str], run_id: str) -> Listed:
    """Put hashes on the list; returns the version before.

    Raises:
        ConfigurationError: the list was made with another key.
        ConflictError: rivals won every attempt.
        DataError: an erasure of others is not finished: which tables it has done could not be told from what this one does.
    """
    now = datetime.now(UTC)

    def added(listed: Listed) -> dict[str, Mapping[str, object]]:
        listed.require_key(key)
        if listed.unfinished and listed.unfinished != set(hashes):
            shown = ", ".join(sorted(h[:HASH_CHARS] for h in listed.unfinished)[:HASHES_SHOWN])
            raise DataError(
                f"an erasure of {len(listed.unfinished):,} gamers (hashes: {shown}) is not finished, and nobody new was "
                "forgotten: wait if it is still at work, else repeat `game-events forget` for exactly these first, or, without "
                "their ids, `game-events forget --resume`"
            )
        new = {"key_check": key_check(key), "listed_at": now, "finished_at": None, "run_id": run_id}
        # Also of one that was finished: its rows are looked for once more.
        return dict(listed.entries) | {
            h: {**listed.entries.get(h, {"hash": h, **new}), "finished_at": None, "run_id": run_id} for h in hashes
        }

    return _change(lakehouse, added)


def add_records(lakehouse: Lakehouse, hashes: Collection[str], records: Collection[Record]) -> None:
    """Note records of these gamers that do not decode; of which of them each is, nobody needs to know.

    Raises:
        ConflictError: rivals won every attempt.
    """
    if not records:
        return
    bearer = min(hashes)

    def added(listed: Listed) -> dict[str, Mapping[str, object]]:
        row = dict(listed.entries[bearer])
        known = Listed({bearer: row}).records
        row["records"] = [dict(zip(("topic_id", "partition", "offset"), r, strict=True)) for r in sorted({*known, *records})]
        return dict(listed.entries) | {bearer: row}

    _change(lakehouse, added)


def finish_suppressed(lakehouse: Lakehouse, hashes: Collection[str]) -> None:
    """Note that the rows of these are gone from every table."""
    now = datetime.now(UTC)
    _change(
        lakehouse, lambda listed: {h: {**row, "finished_at": now} if h in hashes else row for h, row in listed.entries.items()}
    )


@retry_on_conflict(ATTEMPTS)
def _change(lakehouse: Lakehouse, change: Callable[[Listed], Mapping[str, Mapping[str, object]]]) -> Listed:
    table = _table(lakehouse)
    handle = table.table.open()
    before = _listed(table.read(handle))
    table.commit(handle, pa.Table.from_pylist(list(change(before).values()), schema=SCHEMA), replace=True)
    return before


def _table(lakehouse: Lakehouse) -> SystemTable:
    description = "Gamers who were forgotten, as keyed hashes: what still comes of them is kept out"
    return SystemTable(lakehouse.table(SUPPRESSED), SCHEMA, description)


def _listed(rows: pa.Table) -> Listed:
    return Listed({row["hash"]: row for row in rows.to_pylist()})
