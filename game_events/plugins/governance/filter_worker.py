"""On Spark's workers: which records and rows belong to erased people, by keyed hashes of their ids.

A record that is not decoded is attributed to a person by the texts that its Kafka key or a value of its headers may be, as the
usual serializers write them; both when rows are erased and when records come later. The key of the hashes is part of the
pickled object, so that no plan or log shows it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from game_events.decoding.frame import PREFIXES, Rows
from game_events.lakehouse.data.columns import HEADERS
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Table, is_person
from game_events.workers.decode import Mask, OpenRecordFilter, RecordFilter
from game_events.workers.job import WorkerJob

#: Shorter ids are not searched among several texts: they would match other people's records by chance.
MIN_SEARCHED_BYTES = 4

#: Longer keys and headers are compared as a whole only.
MOST_BYTES = 4_096

#: So many texts of one key or header are compared.
MOST_TEXTS = 64

#: Size of the cache of hashed ids: most ids occur many times.
REMEMBERED = 200_000

#: Which record of Kafka: topic id, partition, offset.
Record = tuple[str, int, int]


def texts_of(raw: bytes, *, is_header: bool = False) -> set[bytes]:
    """The bytes themselves, and what they are as a JSON text, an Avro text, or values of a record; with and without a frame.

    Of an object of JSON, a record of Avro that has only texts, and a message of protobuf the values of the top level. A frame
    is a magic byte with a schema's id or GUID; protobuf's message indexes may follow.

    `is_header`: the value of a header; a record has several, most of which are no ids (`retries: 1`).
    """
    texts = {raw}
    if len(raw) <= MOST_BYTES:
        bodies = [raw]
        if raw and (prefix := PREFIXES.get(raw[0])) is not None and len(raw) > prefix:
            bodies.append(raw[prefix:])
        for body in bodies:
            texts |= {body, *_json_texts(body), *_avro_texts(body), *_protobuf_texts(body)}
    return set(_long(texts)) if is_header else texts


def header_values(headers: pa.Array | pa.ChunkedArray) -> Iterator[list[bytes]]:
    """The values of each row's headers."""
    for row in headers.to_pylist():
        yield [item["value"] for item in row or () if item["value"] is not None]


def _json_texts(body: bytes) -> list[bytes]:
    """A text, or the texts and numbers of an object."""
    if body.lstrip()[:1] not in (b'"', b"{"):
        return []
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return []
    values = list(value.values()) if isinstance(value, dict) else [value]
    ids = (one for one in values if isinstance(one, str | int) and not isinstance(one, bool))
    texts = [str(one).encode(errors="surrogatepass") for one in islice(ids, MOST_TEXTS)]
    return texts if len(values) == 1 else _long(texts)


def _avro_texts(body: bytes) -> list[bytes]:
    """The texts that the bytes are made of, if they are made of texts."""
    texts: list[bytes] = []
    position = 0
    while position < len(body) and len(texts) < MOST_TEXTS:
        zigzag, position = _varint(body, position)
        end = position + zigzag // 2
        if zigzag % 2 or end > len(body):
            return []
        texts.append(body[position:end])
        position = end
    return texts if len(texts) == 1 else _long(texts)


def _protobuf_texts(body: bytes) -> list[bytes]:
    """Texts of a message; after its indexes, if there are some. A short one, if the message has nothing else."""
    count, after_indexes = _varint(body, 0)
    for _ in range(min(count // 2, 32)):
        _, after_indexes = _varint(body, after_indexes)
    texts: list[bytes] = []
    for begin in (0, after_indexes):
        fields = _text_fields(body, begin)
        is_all = len(fields) == 1 and begin + 2 + len(fields[0]) == len(body)  # one byte each: tag, length
        texts += fields if is_all else _long(fields)
    return texts


def _text_fields(body: bytes, position: int) -> list[bytes]:
    """The fields of a protobuf message that may be texts, as far as the bytes are a message."""
    texts: list[bytes] = []
    while position < len(body) and len(texts) < MOST_TEXTS:
        tag, position = _varint(body, position)
        kind = tag & 7
        if kind == 0:
            _, position = _varint(body, position)
        elif kind == 2:
            length, position = _varint(body, position)
            texts.append(body[position : position + length])
            position += length
        else:
            position += {1: 8, 5: 4}.get(kind, len(body))
    return texts


def _long(texts: Iterable[bytes]) -> list[bytes]:
    return [text for text in texts if len(text) >= MIN_SEARCHED_BYTES]


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """A number and the position after it."""
    number = 0
    shift = 0
    while position < len(body) and shift < 64:
        byte = body[position]
        number |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            break
    return number, position


def as_texts(values: pa.Array | pa.ChunkedArray) -> pa.Array | None:
    """Ids as texts (numbers in decimal) or bytes, in one array; None: a type that is no id."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = values.type
    if kind in (pa.string(), pa.binary()):
        return values
    if kind in (pa.large_string(), pa.string_view()) or pa.types.is_integer(kind):
        return values.cast(pa.string())
    if pa.types.is_decimal(kind) and kind.scale == 0:
        return values.cast(pa.string())
    if kind in (pa.large_binary(), pa.binary_view()) or pa.types.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    return None


def id_hash(key: bytes, value: bytes) -> bytes:
    """HMAC-SHA256 of an id: its text in UTF-8, or its bytes."""
    return hmac.digest(key, b"entity\0" + value, hashlib.sha256)


@dataclass(frozen=True)
class ErasedPeople(RecordFilter):
    """People whose records are kept out; picklable.

    Attributes:
        column: the column with a person's id.
        key: the key of the hashes.
        hashes: of the erased ids.
        records: erased undecodable records with other Kafka keys and headers: topic id, partition, offset of each.
    """

    column: str
    key: bytes = field(repr=False)
    hashes: frozenset[bytes] = field(repr=False)
    records: frozenset[Record] = frozenset()

    def open(self) -> ErasedPeopleFilter:
        """The filter of one worker's task."""
        return ErasedPeopleFilter(self)


class ErasedPeopleFilter(OpenRecordFilter):
    """The filter of one worker's task."""

    def __init__(self, people: ErasedPeople) -> None:
        self._people = people
        self._known: dict[str | bytes, bool] = {}

    def decoded(self, rows: pa.Table) -> Mask:
        """Which decoded rows belong to erased people."""
        mask = np.zeros(rows.num_rows, dtype=bool)
        for name in rows.column_names:
            if is_person(name, self._people.column):
                mask |= self.values(rows.column(name))
        return mask

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
        """Which of some rows of raw records belong to erased people, as a mask of the batch.

        By their Kafka key and headers (`texts_of`), or by `ErasedPeople.records`.
        """
        records = batch.take(pa.array(rows))
        erased = self.written(records.column("key"), records.column("headers"))
        if self._people.records:
            erased |= self._recorded(records, topic_ids.take(pa.array(rows)))
        mask = np.zeros(len(batch), dtype=bool)
        mask[rows] = erased
        return mask

    def _recorded(self, records: pa.RecordBatch, topic_ids: pa.Array) -> Mask:
        """Which records are among `ErasedPeople.records`."""
        partitions = records.column("partition").to_numpy()
        offsets = records.column("offset").to_numpy()
        erased: dict[tuple[str, int], list[int]] = {}
        for topic_id, partition, offset in self._people.records:
            erased.setdefault((topic_id, partition), []).append(offset)
        mask = np.zeros(len(records), dtype=bool)
        for (topic_id, partition), erased_offsets in erased.items():
            of_partition = pc.equal(topic_ids, topic_id).to_numpy(zero_copy_only=False) & (partitions == partition)
            mask |= of_partition & np.isin(offsets, np.array(erased_offsets, dtype=np.int64))
        return mask

    def written(self, keys: pa.Array, headers: pa.Array) -> Mask:
        """Which records have the id of an erased person in their key or headers."""
        mask = np.array([self.erased_texts(key) != set() for key in keys.to_pylist()], dtype=bool)
        if pc.any(pc.greater(pc.list_value_length(headers), 0)).as_py():
            mask |= [any(self.erased_texts(value, is_header=True) for value in row) for row in header_values(headers)]
        return mask

    def erased_texts(self, raw: bytes | None, *, is_header: bool = False) -> set[bytes]:
        """The ids of erased people that a key or header may be."""
        texts = set[bytes]() if raw is None else texts_of(raw, is_header=is_header)
        return {text for text in texts if self._is_erased(text)}

    def _is_erased(self, value: str | bytes) -> bool:
        erased = self._known.get(value)
        if erased is None:
            if len(self._known) > REMEMBERED:
                self._known.clear()
            raw = value.encode() if isinstance(value, str) else value
            erased = id_hash(self._people.key, raw) in self._people.hashes
            self._known[value] = erased
        return erased


@dataclass(frozen=True)
class FoundIds:
    """Result of one task."""

    ids: set[str]


@dataclass(frozen=True)
class RecoverTask(WorkerJob[FoundIds]):
    """Finds the ids of erased people in files, given as rows (table, path); picklable."""

    result: ClassVar[type] = FoundIds
    tables: dict[str, Table]
    people: ErasedPeople

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FoundIds:
        """Search the files."""
        return FoundIds({text for table, path in table_files(batches) for text in self.find(table, path)})

    def find(self, name: str, path: str) -> set[str]:
        """Ids in one file; empty if maintenance has deleted it."""
        ids: set[str] = set()
        system, prefix = file_system(self.tables[name])
        # By key and headers, too, for records that are not decoded.
        written = ("_kafka_key", HEADERS) if name in (BRONZE, QUARANTINE) else ()
        people = self.people.open()
        with suppress(FileNotFoundError), system.open_input_file(prefix + path) as source:
            file = pq.ParquetFile(source)
            names = file.schema_arrow.names
            decoded = [column for column in names if is_person(column, self.people.column)]
            undecoded = [column for column in names if column in written]
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, [*decoded, *undecoded])
                for column in decoded:
                    ids |= _decoded_ids(rows.column(column), people)
                for column in undecoded:
                    ids |= _written_ids(rows.column(column), people)
        return ids


def _decoded_ids(values: pa.ChunkedArray, people: ErasedPeopleFilter) -> set[str]:
    texts = as_texts(values)
    if texts is None:
        return set()
    return _as_ids(pc.unique(texts.filter(pa.array(people.values(texts)))).to_pylist())


def _written_ids(values: pa.ChunkedArray, people: ErasedPeopleFilter) -> set[str]:
    """Ids in Kafka keys, or in headers."""
    is_header = pa.types.is_list(values.type)
    if is_header:
        values = pc.struct_field(pc.list_flatten(values), "value")
    written = pc.unique(values).to_pylist()
    return _as_ids(text for raw in written for text in people.erased_texts(raw, is_header=is_header))


def _as_ids(ids: Iterable[str | bytes]) -> set[str]:
    # Bytes that are not UTF-8 cannot be an id on a command line.
    return {text if isinstance(text, str) else text.decode("utf-8", "replace") for text in ids}


def table_files(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, str]]:
    """(table, path) of each row."""
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
