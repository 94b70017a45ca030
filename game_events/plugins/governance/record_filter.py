"""Suppression of erased data subjects, in workers: which rows of a batch belong to them.

Texts that a record's Kafka key or a value of its headers may be, as the usual serializers write them.

By these a record that is not decoded is attributed to a data subject, both when rows are erased and when records come later.

The table `erased_people`: keyed hashes of erased data subjects; without the key, no id can be derived.

Guarantee: a committed entry stays, also with concurrent writers; entries are added before anything is erased.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.frame import PREFIXES, Rows
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.commits.commit import retry_on_conflict
from game_events.lakehouse.system_tables import SystemTable, schema_of
from game_events.lakehouse.tables import ERASED_PEOPLE, Lakehouse, is_person
from game_events.workers.record_filter import Mask, OpenRecordFilter, RecordFilter

#: Shorter ids are not searched among several texts: they would match other subjects' records by chance.
MIN_SEARCHED_BYTES = 4

#: Longer keys and headers are compared as a whole only, and so many texts of one.
MOST_BYTES, MOST_TEXTS = 4_096, 64


def texts_of(raw: bytes, *, is_header: bool = False) -> set[bytes]:
    """The bytes themselves, and what they are as a JSON text, an Avro text, or values of a record; with and without a frame.

    Of an object of JSON, a record of Avro that has only texts, and a message of protobuf the values of the top level. A frame
    is a magic byte with a schema's id or GUID; protobuf's message indexes may follow.

    `is_header`: the value of a header; a record has several, most of which are no ids (`retries: 1`).
    """
    found = {raw}
    if len(raw) <= MOST_BYTES:
        bodies = [raw]
        if raw and (prefix := PREFIXES.get(raw[0])) is not None and len(raw) > prefix:
            bodies.append(raw[prefix:])
        for body in bodies:
            found |= {body, *_json_texts(body), *_avro_texts(body), *_protobuf_texts(body)}
    return set(_long(found)) if is_header else found


def header_values(headers: pa.Array | pa.ChunkedArray) -> Iterator[list[bytes]]:
    """The values of each row's headers."""
    for row in headers.to_pylist():
        yield [item["value"] for item in row or () if item["value"] is not None]


def has_headers(headers: pa.Array | pa.ChunkedArray) -> bool:
    """Whether any row has one."""
    return bool(pc.any(pc.greater(pc.list_value_length(headers), 0)).as_py())


def _json_texts(body: bytes) -> list[bytes]:
    """A text, or the texts and numbers of an object."""
    if body.lstrip()[:1] not in (b'"', b"{"):
        return []
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return []
    values = list(value.values()) if isinstance(value, dict) else [value]
    texts = (text for text in values if isinstance(text, str | int) and not isinstance(text, bool))
    found = [str(text).encode(errors="surrogatepass") for text in islice(texts, MOST_TEXTS)]
    return found if len(values) == 1 else _long(found)


def _avro_texts(body: bytes) -> list[bytes]:
    """The texts that the bytes are made of, if they are made of texts."""
    found, at = list[bytes](), 0
    while at < len(body) and len(found) < MOST_TEXTS:
        length, at = _varint(body, at)
        if length % 2 or at + length // 2 > len(body):
            return []
        found.append(body[at : at + length // 2])
        at += length // 2
    return found if len(found) == 1 else _long(found)


def _protobuf_texts(body: bytes) -> list[bytes]:
    """Texts of a message; after its indexes, if there are some. A short one, if the message has nothing else."""
    count, at = _varint(body, 0)
    for _ in range(min(count // 2, 32)):
        _, at = _varint(body, at)
    found = list[bytes]()
    for begin in (0, at):
        texts = _fields(body, begin)
        is_all = len(texts) == 1 and begin + 2 + len(texts[0]) == len(body)  # one byte each: tag, length
        found += texts if is_all else _long(texts)
    return found


def _fields(body: bytes, at: int) -> list[bytes]:
    found = list[bytes]()
    while at < len(body) and len(found) < MOST_TEXTS:
        tag, at = _varint(body, at)
        kind = tag & 7
        length, at = _varint(body, at) if kind in (0, 2) else ({1: 8, 5: 4}.get(kind, len(body)), at)
        if kind == 2:
            found.append(body[at : at + length])
        at += 0 if kind == 0 else length
    return found


def _long(texts: Iterable[bytes]) -> list[bytes]:
    return [text for text in texts if len(text) >= MIN_SEARCHED_BYTES]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number and the place after it."""
    number = shift = 0
    while at < len(body) and shift < 64:
        byte = body[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return number, at


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

#: Which record of Kafka: topic id, partition, offset.
Record = tuple[str, int, int]


def entity_hash(key: bytes, entity: bytes) -> bytes:
    """HMAC-SHA256 of an id: its text in UTF-8, or its bytes."""
    return hmac.digest(key, b"entity\0" + entity, hashlib.sha256)


def key_check(key: bytes) -> str:
    """Fingerprint of a key, from which the key cannot be derived."""
    return hmac.digest(key, b"key check\0", hashlib.sha256).hex()[:16]


@dataclass(frozen=True)
class Listed:
    """One version of the table.

    `entries`: hash (hexadecimal) -> its row.
    """

    entries: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def unfinished(self) -> frozenset[str]:
        """Hashes of subjects with an erasure that is not finished."""
        return frozenset(h for h, row in self.entries.items() if row["finished_at"] is None)

    @property
    def records(self) -> frozenset[Record]:
        """Records that do not decode: found by their bytes, as the table has no ids to search for."""
        held = (row.get("records") or () for row in self.entries.values())
        return frozenset((r["topic_id"], r["partition"], r["offset"]) for rows in held for r in rows)  # type: ignore[attr-defined]

    def require_key(self, key: bytes) -> None:
        """Raise ConfigurationError for another key than that of the entries: a run with it would let suppressed subjects in."""
        checks = {row["key_check"] for row in self.entries.values()}
        if checks - {key_check(key)}:
            raise ConfigurationError(
                f"GAME_EVENTS_ERASURE_KEY is another key than the one that {ERASED_PEOPLE} was made with: its "
                f"{len(self.entries):,} hashes say nothing under this one. Give the key back; it cannot be changed"
            )


def read_suppressed(lakehouse: Lakehouse) -> Listed:
    """The newest version; an empty one if there is no such table."""
    table = _table(lakehouse)
    return _listed(table.read(table.table.open_to_read()))


def add_suppressed(lakehouse: Lakehouse, key: bytes, hashes: Collection[str], run_id: str) -> Listed:
    """Add hashes; returns the version before.

    Raises:
        ConfigurationError: the entries were made with another key.
        ConflictError: concurrent writers won every attempt.
        DataError: an erasure of other subjects is not finished: the tables that it has completed would be unknown.
    """
    now = datetime.now(UTC)

    def added(listed: Listed) -> dict[str, Mapping[str, object]]:
        listed.require_key(key)
        if listed.unfinished and listed.unfinished != set(hashes):
            shown = ", ".join(sorted(h[:HASH_CHARS] for h in listed.unfinished)[:HASHES_SHOWN])
            raise DataError(
                f"an erasure of {len(listed.unfinished):,} gamers (hashes: {shown}) is not finished, so no other was "
                "begun: wait if it still runs, else repeat `game-events erase` for exactly these first, or, without "
                "their ids, `game-events erase --resume`"
            )
        new = {"key_check": key_check(key), "listed_at": now, "finished_at": None, "run_id": run_id}
        # A finished one, too: its rows are searched once more.
        return dict(listed.entries) | {
            h: {**listed.entries.get(h, {"hash": h, **new}), "finished_at": None, "run_id": run_id} for h in hashes
        }

    return _change(lakehouse, added)


def add_records(lakehouse: Lakehouse, hashes: Collection[str], records: Collection[Record]) -> None:
    """Add records of these subjects that do not decode, to the first hash: their subject is not needed.

    Raises:
        ConflictError: concurrent writers won every attempt.
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
    """Mark these as erased from every table."""
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
    description = "Keyed hashes of erased data subjects: later records of them are suppressed"
    return SystemTable(lakehouse.table(ERASED_PEOPLE), SCHEMA, description)


def _listed(rows: pa.Table) -> Listed:
    return Listed({row["hash"]: row for row in rows.to_pylist()})


#: Size of the cache of hashed ids: most ids occur many times.
REMEMBERED = 200_000


@dataclass(frozen=True)
class Suppression(RecordFilter):
    """Data subjects to suppress; picklable. Sent to workers inside a function, so that no plan or log shows it.

    Attributes:
        column: the column with the id of a row's data subject.
        key: the key of the hashes.
        hashes: of the erased ids.
        records: erased undecodable records with other Kafka keys and headers: topic id, partition, offset of each.
    """

    column: str
    key: bytes = field(repr=False)
    hashes: frozenset[bytes] = field(repr=False)
    records: frozenset[Record] = frozenset()

    def open(self) -> Suppressor:
        """The filter of one worker."""
        return Suppressor(self)


class Suppressor(OpenRecordFilter):
    """One worker's pass."""

    def __init__(self, suppression: Suppression) -> None:
        self._suppression = suppression
        self._known: dict[str | bytes, bool] = {}

    def decoded(self, rows: pa.Table) -> Mask:
        """Which decoded rows belong to erased data subjects."""
        found = np.zeros(rows.num_rows, dtype=bool)
        for name in rows.column_names:
            if is_person(name, self._suppression.column):
                found |= self.values(rows.column(name))
        return found

    def values(self, values: pa.Array | pa.ChunkedArray) -> Mask:
        """Which of these ids are erased; each distinct value is hashed once."""
        texts = as_texts(values)
        if texts is None:
            return np.zeros(len(values), dtype=bool)
        encoded = pc.dictionary_encode(texts)
        erased = [self._is_erased(value) for value in encoded.dictionary.to_pylist()]
        if not any(erased):
            return np.zeros(len(values), dtype=bool)
        which = pc.fill_null(encoded.indices, len(erased)).to_numpy(zero_copy_only=False)
        return np.asarray(np.array([*erased, False])[which], dtype=bool)

    def undecodable(self, batch: pa.RecordBatch, topic_ids: pa.Array, rows: Rows) -> Mask:
        """Which of some rows of raw records belong to erased data subjects, as a mask of the batch.

        By their Kafka key and headers (`texts_of`), or by `Suppression.records`.
        """
        found = np.zeros(len(batch), dtype=bool)
        taken, topic_ids = batch.take(pa.array(rows)), topic_ids.take(pa.array(rows))
        erased = self.written(taken.column("key"), taken.column("headers"))
        noted = self._suppression.records
        if noted:
            partitions, offsets = taken.column("partition").to_numpy(), taken.column("offset").to_numpy()
            for topic_id, partition in {(topic_id, partition) for topic_id, partition, _ in noted}:
                there = pc.equal(topic_ids, topic_id).to_numpy(zero_copy_only=False) & (partitions == partition)
                theirs = [offset for topic, of, offset in noted if (topic, of) == (topic_id, partition)]
                erased |= there & np.isin(offsets, np.array(theirs, dtype=np.int64))
        found[rows] = erased
        return found

    def written(self, keys: pa.Array, headers: pa.Array) -> Mask:
        """Which records have the id of an erased data subject in their key or headers."""
        found = np.array([self.erased_texts(key) != set() for key in keys.to_pylist()], dtype=bool)
        if has_headers(headers):
            found |= [any(self.erased_texts(value, is_header=True) for value in row) for row in header_values(headers)]
        return found

    def erased_texts(self, raw: bytes | None, *, is_header: bool = False) -> set[bytes]:
        """The ids of erased data subjects that a key or header may be."""
        texts = set[bytes]() if raw is None else texts_of(raw, is_header=is_header)
        return {text for text in texts if self._is_erased(text)}

    def _is_erased(self, value: str | bytes) -> bool:
        found = self._known.get(value)
        if found is None:
            if len(self._known) > REMEMBERED:
                self._known.clear()
            raw = value.encode() if isinstance(value, str) else value
            found = entity_hash(self._suppression.key, raw) in self._suppression.hashes
            self._known[value] = found
        return found


def as_texts(values: pa.Array | pa.ChunkedArray) -> pa.Array | None:
    """Ids as texts (numbers in decimal) or bytes, in one array; None: a type that is no id."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return values
    number = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)
    if number or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    return None
