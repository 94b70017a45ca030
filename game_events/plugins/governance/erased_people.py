"""Who was erased: the table of keyed hashes, and the filter made of it, which keeps out later records.

Without the key, no id can be derived from a hash. Guarantee: a committed entry stays, also with concurrent writers; entries
are added before anything is erased. On a lakehouse with erased people, nothing is decoded into bronze without the key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.commits.commit import retry_on_conflict
from game_events.lakehouse.commits.transactions import erasures
from game_events.lakehouse.system_tables import SystemTable, schema_of
from game_events.lakehouse.tables import BRONZE, ERASED_PEOPLE, Lakehouse
from game_events.pipeline.context import Pipeline
from game_events.plugins.governance.settings import KEY, required_key
from game_events.plugins.governance.workers import ErasedPeople, Record, id_hash

ATTEMPTS = 20

#: Characters of a hash in logs and messages.
HASH_CHARS = 12

#: Hashes that a message names.
HASHES_SHOWN = 5

TIME = pa.timestamp("us", tz="UTC")

_RECORD = [pa.field("topic_id", pa.string()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64())]

SCHEMA = schema_of(
    hash=(pa.string(), "Keyed hash of an id: rows with that id are kept out"),
    key_check=(pa.string(), "Identifies the key of the hash"),
    listed_at=(TIME, "When it was listed (UTC)"),
    finished_at=(TIME, "When every table was free of its rows (UTC)"),
    run_id=(pa.string(), "Run that listed it"),
    records=(pa.list_(pa.struct(_RECORD)), "Records of those who were listed together that do not decode"),
)

#: Hash (hexadecimal) -> its row.
Entries = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class ErasedList:
    """One version of the table."""

    entries: Entries = field(default_factory=dict)

    @property
    def unfinished(self) -> frozenset[str]:
        """Hashes of people with an erasure that is not finished."""
        return frozenset(h for h, row in self.entries.items() if row["finished_at"] is None)

    @property
    def records(self) -> frozenset[Record]:
        """Records that do not decode: found by their bytes, as the table has no ids to search for."""
        lists = (row.get("records") or () for row in self.entries.values())
        return frozenset((r["topic_id"], r["partition"], r["offset"]) for rows in lists for r in rows)  # type: ignore[attr-defined]

    def require_key(self, key: bytes) -> None:
        """Raise ConfigurationError for another key than that of the entries: a run with it would let erased people in."""
        checks = {row["key_check"] for row in self.entries.values()}
        if checks - {key_check(key)}:
            raise ConfigurationError(
                f"{KEY} is another key than the one that {ERASED_PEOPLE} was made with: its "
                f"{len(self.entries):,} hashes say nothing under this one. Give the key back; it cannot be changed"
            )


def key_check(key: bytes) -> str:
    """Fingerprint of a key, from which the key cannot be derived."""
    return hmac.digest(key, b"key check\0", hashlib.sha256).hex()[:16]


def hashes_of(key: bytes, ids: frozenset[str]) -> frozenset[str]:
    """Hexadecimal hashes of ids."""
    return frozenset(id_hash(key, text.encode()).hex() for text in ids)


def record_filter(pipeline: Pipeline, bronze: DeltaTable) -> ErasedPeople | None:
    """The people to keep out; None if none was ever erased, which costs one request; raises as `recognised`.

    `bronze`: the version with the `erasures` that the commit compares: each addition to the list changes them.
    """
    known = recognised(pipeline.settings, pipeline.lakehouse, bronze)
    if known is None:
        return None
    listed, key = known
    hashes = frozenset(bytes.fromhex(h) for h in listed.entries)
    return ErasedPeople(pipeline.settings.key_column, key, hashes, listed.records)


def recognised(settings: Settings, lakehouse: Lakehouse, bronze: DeltaTable | None) -> tuple[ErasedList, bytes] | None:
    """The list and the key of its hashes; None if nobody was ever erased.

    Raises:
        ConfigurationError: the key is missing, or is not that of the list.
        DataError: people were erased, and the list is gone.
    """
    listed = read_erased_people(lakehouse)
    if not listed.entries:
        if bronze is not None and erasures(bronze):
            raise DataError(
                f"people were erased from this lakehouse, and {ERASED_PEOPLE}, the list that keeps their records out, is "
                "gone. Nothing was read. Restore the table from a copy, or erase each of them again (`game-events erase`): "
                "`game-events log --kind erased` lists the erasures"
            )
        return None
    key = required_key(settings)
    listed.require_key(key)
    return listed, key


def doctor(settings: Settings) -> dict[str, Callable[[], str]]:
    """What `game-events doctor` shows of the erased people."""
    return {"erased people": lambda: _kept_out(settings)}


def _kept_out(settings: Settings) -> str:
    lakehouse = Lakehouse.of(settings)
    known = recognised(settings, lakehouse, lakehouse.table(BRONZE).open_to_read())
    if known is None:
        return "none"
    listed, _ = known
    text = f"{len(listed.entries):,} are kept out, recognised by the key that is set"
    if listed.unfinished:
        text += f"; of {len(listed.unfinished):,} the erasure is not finished: repeat `game-events erase`, or use --resume"
    return text


def read_erased_people(lakehouse: Lakehouse) -> ErasedList:
    """The newest version; an empty one if there is no such table."""
    table = _table(lakehouse)
    return _listed(table.read(table.table.open_to_read()))


def add_people(lakehouse: Lakehouse, key: bytes, hashes: Collection[str], run_id: str) -> ErasedList:
    """Add hashes; returns the version before.

    Raises:
        ConfigurationError: the entries were made with another key.
        ConflictError: concurrent writers won every attempt.
        DataError: an erasure of others is not finished: the tables that it has completed would be unknown.
    """
    new = {"key_check": key_check(key), "listed_at": datetime.now(UTC)}

    def added(listed: ErasedList) -> Entries:
        listed.require_key(key)
        if listed.unfinished and listed.unfinished != set(hashes):
            shown = ", ".join(sorted(h[:HASH_CHARS] for h in listed.unfinished)[:HASHES_SHOWN])
            raise DataError(
                f"an erasure of {len(listed.unfinished):,} people (hashes: {shown}) is not finished, so no other was "
                "begun: wait if it still runs, else repeat `game-events erase` for exactly these first, or, without "
                "their ids, `game-events erase --resume`"
            )
        entries = dict(listed.entries)
        for one in hashes:
            # A finished one, too: its rows are searched once more.
            entries[one] = {**entries.get(one, {"hash": one, **new}), "finished_at": None, "run_id": run_id}
        return entries

    return _change(lakehouse, added)


def add_records(lakehouse: Lakehouse, hashes: Collection[str], records: Collection[Record]) -> None:
    """Add records of these people that do not decode, to the first hash: whose they are is not needed.

    Raises:
        ConflictError: concurrent writers won every attempt.
    """
    if not records:
        return
    bearer = min(hashes)

    def added(listed: ErasedList) -> Entries:
        row = dict(listed.entries[bearer])
        known = ErasedList({bearer: row}).records
        row["records"] = [dict(zip(("topic_id", "partition", "offset"), r, strict=True)) for r in sorted({*known, *records})]
        return {**listed.entries, bearer: row}

    _change(lakehouse, added)


def finish_people(lakehouse: Lakehouse, hashes: Collection[str]) -> None:
    """Mark these as erased from every table."""
    now = datetime.now(UTC)

    def finished(listed: ErasedList) -> Entries:
        return {h: {**row, "finished_at": now} if h in hashes else row for h, row in listed.entries.items()}

    _change(lakehouse, finished)


@retry_on_conflict(ATTEMPTS)
def _change(lakehouse: Lakehouse, change: Callable[[ErasedList], Entries]) -> ErasedList:
    table = _table(lakehouse)
    handle = table.table.open()
    before = _listed(table.read(handle))
    table.commit(handle, pa.Table.from_pylist(list(change(before).values()), schema=SCHEMA), replace=True)
    return before


def _table(lakehouse: Lakehouse) -> SystemTable:
    return SystemTable(
        lakehouse.table(ERASED_PEOPLE), SCHEMA, "Keyed hashes of erased people: their later records are kept out"
    )


def _listed(rows: pa.Table) -> ErasedList:
    return ErasedList({row["hash"]: row for row in rows.to_pylist()})
