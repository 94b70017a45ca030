"""The frame of a record: wire format, reasons of records that do not decode, a schema as text.

Reader of the Confluent wire format for whole Arrow batches.

Frame: a schema's identity, for protobuf message indexes (zig-zag varints: how many, then each; the one byte ``00`` means
``[0]``), payload. The identity is magic byte ``00`` and an id of 4 bytes (big endian), or magic byte ``01`` and a GUID of 16
bytes. It precedes the payload, or is, indexes included, in the record's header ``__value_schema_id``: then the value is the
bare payload. Source: Confluent documentation, "Wire format", and the serializers of confluent-kafka.

Reasons of records in quarantine, and the error of a malformed payload, which has one.

A schema of a registry or a file, as text.
"""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


class Reason(StrEnum):
    """The reasons, with their explanations; the column `detail` describes a single row."""

    explanation: str

    def __new__(cls, name: str, explanation: str = "") -> Reason:
        """`name`: in the column `reason`."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.explanation = explanation
        return made

    TOMBSTONE = "TOMBSTONE", "the record has no value at all"
    TOO_SHORT = "TOO_SHORT", "fewer bytes than a schema registry frame needs"
    BAD_MAGIC = (
        "BAD_MAGIC",
        "the first byte is neither 00 nor 01: not framed for a schema registry. GAME_EVENTS_DECODING says how a topic without "
        "frames is decoded (docs/decoding.md)",
    )
    BAD_INDEX = "BAD_INDEX", "the message indexes are damaged, or name no message of the schema"
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA", "the registry does not know the schema id"
    REGISTRY_CHANGED = (
        "REGISTRY_CHANGED",
        "the registry gives the schema id another meaning than the records have that were read with it before",
    )
    BAD_SCHEMA = "BAD_SCHEMA", "the registry's text does not compile, or has a format that is not decoded"
    TOO_DEEP = "TOO_DEEP", "nested deeper than the limit of 100 levels"
    TRUNCATED = "TRUNCATED", "the payload ends in the middle of a value"
    BAD_UTF8 = "BAD_UTF8", "a text is not UTF-8"
    OUT_OF_RANGE = "OUT_OF_RANGE", "a value is outside the range of its type"
    MALFORMED = "MALFORMED", "the payload is not a message of its schema"
    TOO_MANY_VALUES = "TOO_MANY_VALUES", "a record of more values, once decoded, than the bound of 8 million"
    UNREADABLE_FILE = "UNREADABLE_FILE", "a file of the source, or the rest of it, cannot be read"
    UNREADABLE = "UNREADABLE", "a record of a batch in the topic that is damaged, or unpacks to more than the client's bound"
    TOO_LARGE = "TOO_LARGE", "a record, or what is left of a file, is larger than the bounds of the settings"


#: Rows with these reasons hold no complete record.
NO_RECORD = frozenset({Reason.UNREADABLE_FILE, Reason.UNREADABLE, Reason.TOO_LARGE})
#: Bytes of an incomplete record that quarantine keeps.
KEPT_BYTES = 1024 * 1024


def too_large(size: str, most: int) -> str:
    """Detail of a record that is too large."""
    return f"a record of {size} bytes, {most:,} are allowed (GAME_EVENTS_MAX_RECORD_BYTES)"


class DamageError(Exception):
    """A payload that cannot be read exactly: reason in quarantine, description, and field names from the value outwards.

    `end`: the position after a value that was read and is outside of its type's range; None: the damage is another one.
    """

    def __init__(self, reason: Reason, what: str, end: int | None = None) -> None:
        super().__init__(reason, what, end)
        self.reason = reason
        self.what = what
        self.end = end
        self.path: list[str] = []

    def detail(self, message: str) -> str:
        """Detail in quarantine: message type, path and error."""
        return f"{'.'.join([message, *reversed(self.path)])}: {self.what}"


#: Errors of reading malformed bytes.
DAMAGE = (DamageError, IndexError, UnicodeDecodeError, struct.error, RecursionError)


def as_damage(error: BaseException) -> DamageError:
    """An error of `DAMAGE` as DamageError."""
    match error:
        case DamageError():
            return error
        case UnicodeDecodeError():
            return DamageError(Reason.BAD_UTF8, f"no UTF-8: {error.reason} at byte {error.start} of the text")
        case RecursionError():
            return DamageError(Reason.TOO_DEEP, "nested too deep to be read")
        case _:
            return DamageError(Reason.TRUNCATED, "the payload ends inside a value")


#: Magic byte -> bytes of magic byte and identity.
PREFIXES = {0: 5, 1: 17}
#: Name of the record header that holds the identity instead of the value.
ID_HEADER = "__value_schema_id"
#: First bytes of AWS Glue's frames: a version, then whether the payload is compressed; a UUID of 16 bytes follows.
GLUE_HEADS = (b"\3\0", b"\3\5")
GLUE_BYTES = 18
_OF_GLUE = (
    "the bytes of an AWS Glue Schema Registry frame (03, 00 or 05, a UUID): GAME_EVENTS_DECODING with `framed: glue` names the "
    "schema of such a topic (docs/decoding.md)"
)
#: Headers in which Apicurio's serializers write a schema's id.
_APICURIO_HEADERS = tuple(f"apicurio.value.{name}" for name in ("globalId", "contentId", "contentHash", "encoding"))
_OF_APICURIO = (
    "the schema's id is in a header of Apicurio's serializers, which is not read: let the producer write it into the value "
    "(apicurio.registry.headers.enabled=false, with ids of 4 bytes)"
)
#: Longer paths are malformed.
MAX_INDEXES = 32
_SINGLE_BYTE = 0x80
#: What identifies a schema: its id in the registry, or its GUID as text; `eu/7` is id 7 of the registry of the source `eu`,
#: where several sources have registries of their own (`named`).
SchemaId = int | str
#: Which message of a protobuf schema: its index among the top-level messages, then among the nested ones; else ``()``.
IndexPath = tuple[int, ...]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NO_ROWS: Rows = np.empty(0, dtype=np.int64)


def ordered(schema_id: SchemaId) -> tuple[bool, SchemaId]:
    """A sort key: ids by number, then GUIDs."""
    return isinstance(schema_id, str), schema_id


def named(registry: str, schema_id: SchemaId) -> SchemaId:
    """An id or GUID of a frame as the id of one of several registries; an empty name: the one registry, or the first."""
    return f"{registry}/{schema_id}" if registry else schema_id


def registry_of_source(source: str | None, registries: Mapping[str, str]) -> str:
    """The name of the registry in the ids of a source's records; None: they are older than `SOURCES`, or there is one source.

    `registries`: source -> name of its registry; of sources that it lacks it is their own.
    """
    return registries.get(source, source) if source else ""


def registry_of(schema_id: SchemaId) -> str:
    """The name of the registry in an id; empty: it has none."""
    return schema_id.rpartition("/")[0] if isinstance(schema_id, str) else ""


def bare(schema_id: SchemaId) -> SchemaId:
    """The id or GUID, as frames have it, without the name of the registry."""
    if isinstance(schema_id, int) or "/" not in schema_id:
        return schema_id
    inner = schema_id.rpartition("/")[2]
    return int(inner) if inner.isdigit() else inner


class SchemaRef(NamedTuple):
    """A schema's identity as tables store it, in two columns: its id, or else its GUID; both None: there is none.

    The name of a registry is not in them: the row's source tells it.
    """

    number: int | None
    guid: str | None

    @classmethod
    def of(cls, schema_id: SchemaId | None) -> SchemaRef:
        """The two values of an identity."""
        inner = None if schema_id is None else bare(schema_id)
        return cls(None, inner) if isinstance(inner, str) else cls(inner, None)

    @property
    def schema_id(self) -> SchemaId | None:
        """The identity that two values hold."""
        return self.guid if self.number is None else self.number


@dataclass(frozen=True)
class FrameGroup:
    """Rows of one batch that share schema id, message index path and length of the prefix in their values."""

    schema_id: SchemaId
    path: IndexPath
    prefix: int
    rows: Rows


@dataclass(frozen=True)
class BadFrames:
    """Rows that have no readable frame, all for the same reason; `detail`: more than its explanation."""

    reason: Reason
    rows: Rows
    schema_id: SchemaId | None = None
    detail: str | None = None


def split(
    values: pa.BinaryArray, headers: pa.ListArray | None = None, indexless: Set[SchemaId] = frozenset()
) -> tuple[list[FrameGroup], list[BadFrames]]:
    """Group a batch by frames: groups of readable frames, and rows without one; every row exactly once.

    `values`: any binary type, shape (n,), NULL for tombstones; `headers`: list of struct<key, value>, shape (n,), None if there
    are none; `indexless`: schema ids of formats without message indexes (Avro, JSON), with the path ``()``.
    """
    values = values.cast(pa.binary())
    null = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
    bad = [BadFrames(Reason.TOMBSTONE, np.flatnonzero(null))] if null.any() else []
    in_value = ~null
    of_headers: tuple[list[FrameGroup], list[BadFrames]] = [], []
    if headers is not None and len(headers.flatten()):
        of_headers = _split_headers(headers, in_value, indexless)
    groups, damaged = _Frames(values).split(np.flatnonzero(in_value), indexless)
    damaged = [
        part for item in damaged for part in (_foreign(item, values, headers) if item.reason == Reason.BAD_MAGIC else [item])
    ]
    return groups + of_headers[0], bad + damaged + of_headers[1]


def _foreign(bad: BadFrames, values: pa.BinaryArray, headers: pa.ListArray | None) -> list[BadFrames]:
    """Rows without a frame, apart by the serializer that has written them."""
    taken = values.take(pa.array(bad.rows))
    heads = pc.binary_slice(taken, 0, stop=2)
    is_glue = np.asarray(pc.and_(pc.is_in(heads, pa.array(GLUE_HEADS)), pc.greater_equal(pc.binary_length(taken), GLUE_BYTES)))
    is_apicurio = np.zeros(len(taken), dtype=bool)
    if headers is not None and len(headers.flatten()):
        parents = pc.list_parent_indices(headers).to_numpy()
        names = headers.flatten().field("key")
        has_id = np.asarray(pc.fill_null(pc.is_in(names, pa.array(_APICURIO_HEADERS)), False))
        is_apicurio = np.isin(bad.rows, parents[has_id]) & ~is_glue
    masks = ((_OF_GLUE, is_glue), (_OF_APICURIO, is_apicurio), (bad.detail, ~is_glue & ~is_apicurio))
    return [replace(bad, rows=bad.rows[mask], detail=detail) for detail, mask in masks if mask.any()]


def payloads(values: pa.BinaryArray, groups: Sequence[FrameGroup]) -> list[pa.BinaryArray]:
    """Each group's values without frames, with 32-bit offsets, in the order of its ``rows``; copied once for all groups."""
    values = values.cast(pa.binary())
    parts: list[pa.BinaryArray] = [None] * len(groups)
    for prefix in {group.prefix for group in groups}:
        mine = [number for number, group in enumerate(groups) if group.prefix == prefix]
        rows = np.concatenate([groups[number].rows for number in mine])
        taken = values if len(mine) == 1 and len(rows) == len(values) else values.take(pa.array(rows))
        # A `stop` is required by pyarrow 26, or it raises.
        taken = pc.binary_slice(taken, prefix, stop=2**31 - 1) if prefix else taken
        start = 0
        for number in mine:
            parts[number] = taken.slice(start, len(groups[number].rows))
            start += len(groups[number].rows)
    return parts


def parse_indexes(data: bytes) -> tuple[IndexPath, int] | None:
    """Message indexes that begin some bytes (count, then each, as zig-zag varints), and their length; None: damaged."""
    numbers: list[int] = []
    value = shift = 0
    for end, octet in enumerate(data, 1):
        value |= (octet & 0x7F) << shift
        shift += 7
        if not octet & _SINGLE_BYTE:
            numbers.append((value >> 1) ^ -(value & 1))
            value = shift = 0
            if numbers[0] > MAX_INDEXES or numbers[-1] < 0:
                return None
            if len(numbers) > numbers[0]:
                return tuple(numbers[1:]) or (0,), end
    return None


def _split_headers(headers: pa.ListArray, in_value: Mask, indexless: Set[SchemaId]) -> tuple[list[FrameGroup], list[BadFrames]]:
    """Group the rows of a mask that have a schema header by the frame in it, and take them out of the mask."""
    parents = pc.list_parent_indices(headers).to_numpy()
    items = headers.flatten()
    mine = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(items.field("key"), ID_HEADER), False)))
    # Of several the last one, as in Java's client.
    chosen = mine[np.diff(parents[mine], append=-1) != 0]
    chosen = chosen[in_value[parents[chosen]]]
    if not len(chosen):
        return [], []
    rows = parents[chosen].astype(np.int64)
    in_value[rows] = False
    identities = pc.fill_null(items.field("value").take(pa.array(chosen)), b"").cast(pa.binary())
    frames = _Frames(identities)
    framed, damaged = frames.split(np.arange(len(rows)), indexless)
    groups = []
    bad = [replace(b, rows=rows[b.rows]) for b in damaged]
    for group in framed:
        # Nothing may follow identity and indexes in the header.
        exact = frames.lengths[group.rows] == group.prefix
        if not exact.all():
            bad.append(BadFrames(Reason.BAD_INDEX, rows[group.rows[~exact]], group.schema_id))
        if exact.any():
            groups.append(replace(group, prefix=0, rows=rows[group.rows[exact]]))
    return groups, bad


class _Frames:
    """Parser of identities and indexes in the buffers of an array with 32-bit offsets."""

    def __init__(self, values: pa.BinaryArray) -> None:
        count = len(values)
        offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)[values.offset : values.offset + count + 1].astype(np.int64)
        data = values.buffers()[2]
        # One byte at least, so that indexing an all-empty batch stays legal.
        self._raw = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.zeros(1, dtype=np.uint8)
        self._starts = offsets[:-1]
        self.lengths = np.diff(offsets)
        self._groups: list[FrameGroup] = []
        self._bad: list[BadFrames] = []

    def split(self, rows: Rows, indexless: Set[SchemaId]) -> tuple[list[FrameGroup], list[BadFrames]]:
        rows = self._take_out(rows, self.lengths[rows] == 0, Reason.TOO_SHORT)
        magic = self._raw[self._starts[rows]]
        self._take_out(rows, ~np.isin(magic, list(PREFIXES)), Reason.BAD_MAGIC)
        for number, prefix in PREFIXES.items():
            mine = rows[magic == number]
            mine = self._take_out(mine, self.lengths[mine] < prefix, Reason.TOO_SHORT)
            if not len(mine):
                continue
            heads = np.ascontiguousarray(self._raw[self._starts[mine][:, None] + np.arange(1, prefix)])
            heads_once, inverse = np.unique(heads.view("V16" if number else ">u4").reshape(-1), return_inverse=True)
            ids: list[SchemaId] = [str(uuid.UUID(bytes=item.tobytes())) if number else int(item) for item in heads_once]
            parts = [mine]
            if len(ids) > 1:
                # One sort for all ids; numpy sorts 16-bit numbers in linear time.
                inverse = inverse.reshape(-1)
                order = np.argsort(inverse.astype(np.min_scalar_type(len(ids))), kind="stable")
                parts = np.split(mine[order], np.cumsum(np.bincount(inverse))[:-1])
            for schema_id, members in zip(ids, parts, strict=True):
                if schema_id in indexless:
                    self._groups.append(FrameGroup(schema_id, (), prefix, members))
                else:
                    self._split_indexes(schema_id, members, prefix)
        return self._groups, self._bad

    def _take_out(self, rows: Rows, is_bad: Mask, reason: Reason, schema_id: SchemaId | None = None) -> Rows:
        if is_bad.any():
            self._bad.append(BadFrames(reason, rows[is_bad], schema_id))
        return rows[~is_bad]

    def _split_indexes(self, schema_id: SchemaId, rows: Rows, prefix: int) -> None:
        rows = self._take_out(rows, self.lengths[rows] == prefix, Reason.TOO_SHORT, schema_id)
        first = self._raw[self._starts[rows] + prefix].astype(np.int64)
        plain = first == 0
        if plain.any():
            self._groups.append(FrameGroup(schema_id, (0,), prefix + 1, rows[plain]))
        if plain.all():
            return
        rest = rows[~plain]
        first = first[~plain]
        room = self.lengths[rest] - prefix
        for announced in np.unique(first).tolist():
            # Usual paths are a few one-byte varints: grouped as a matrix.
            width = 1 + announced // 2
            mine = first == announced
            short = mine & (room >= width) & (announced % 2 == 0) & (announced < 2 * MAX_INDEXES)
            candidates = rest[short]
            heads = self._raw[(self._starts[candidates] + prefix)[:, None] + np.arange(width)]
            one_byte = (heads < _SINGLE_BYTE).all(axis=1)
            usual = candidates[one_byte]
            for key, members in _distinct(heads[one_byte]):
                self._add(schema_id, prefix, key, usual[members])
            # Indexes past 63, and malformed ones: row by row.
            odd = np.concatenate([np.flatnonzero(mine & ~short), np.flatnonzero(short)[~one_byte]])
            for pos in odd.tolist():
                begin = int(self._starts[rest[pos]]) + prefix
                head = self._raw[begin : begin + min(int(room[pos]), 2 + 2 * MAX_INDEXES)].tobytes()
                self._add(schema_id, prefix, head, rest[pos : pos + 1])

    def _add(self, schema_id: SchemaId, prefix: int, head: bytes, rows: Rows) -> None:
        parsed = parse_indexes(head)
        if parsed is None:
            self._bad.append(BadFrames(Reason.BAD_INDEX, rows, schema_id))
        else:
            self._groups.append(FrameGroup(schema_id, parsed[0], prefix + parsed[1], rows))


def _distinct(keys: npt.NDArray[np.uint8]) -> Iterator[tuple[bytes, Rows]]:
    """Each distinct row of a matrix, with its positions; with one sort, as records choose how many there are."""
    if len(keys):
        distinct, inverse = np.unique(np.ascontiguousarray(keys).view(f"V{keys.shape[1]}").reshape(-1), return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
        yield from zip(map(bytes, distinct), parts, strict=True)


#: Namespace of GUIDs of schemas without a registry.
_SPACE = uuid.UUID("6a0ce6a6-5b0f-4c0e-9d6c-8d6b0f0f51a7")
#: Bytes of one text, and of a text with all that it imports: a compiled schema takes many times as much memory.
MAX_TEXT = 2**22
MAX_TEXTS = 2**24


@dataclass(frozen=True)
class RegistrySchema:
    """One registered schema.

    Attributes:
        schema_id: the id or GUID in the records' frames.
        format: ``PROTOBUF``, ``AVRO`` or ``JSON``.
        text: schema text, or a base64 ``FileDescriptorProto`` (what the Confluent serializer registers by itself).
        references: (import name, text) of all imports, dependencies before dependents.
    """

    schema_id: int | str
    format: str
    text: str
    references: tuple[tuple[str, str], ...] = ()

    def completes(self, other: RegistrySchema) -> bool:
        """Whether it has references that the other lacks, and all of the other's."""
        return set(self.references) > set(other.references)

    def too_long(self) -> str | None:
        """Why its texts are too long to be compiled; None: they are not."""
        sizes = [len(text.encode("utf-8", "replace")) for text in (self.text, *(text for _, text in self.references))]
        if max(sizes) > MAX_TEXT:
            return f"one text is longer than {MAX_TEXT // 2**20} MiB"
        return f"with those that it imports it is longer than {MAX_TEXTS // 2**20} MiB" if sum(sizes) > MAX_TEXTS else None

    @property
    def digest(self) -> str:
        """SHA-256 over text and references."""
        whole = json.dumps([self.format, self.text, self.references], separators=(",", ":"))
        return hashlib.sha256(whole.encode()).hexdigest()


def schema_guid(kind: str, text: str, references: tuple[tuple[str, str], ...] = ()) -> str:
    """GUID of a schema without a registry, derived from its text."""
    return str(uuid.uuid5(_SPACE, RegistrySchema("", kind, text, references).digest))
