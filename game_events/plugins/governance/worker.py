"""What runs on Spark's workers: which records and rows belong to erased people, and copies of files without these rows.

Texts that a record's Kafka key or a value of its headers may be, as the usual serializers write them: by these a record that
is not decoded is attributed to a person, both when rows are erased and when records come later. The ids, or their keyed hashes,
are part of the pickled function, so that no plan or log shows them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from game_events.decoding.frame import PREFIXES, Rows
from game_events.lakehouse.data.columns import COORDINATES, HEADERS
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, file_system, partition_of
from game_events.lakehouse.tables import BRONZE, QUARANTINE, REST_FAILED_CALLS, Layer, Table, is_person, is_silver
from game_events.workers.job import WorkerJob
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


#: Which record of Kafka: topic id, partition, offset.
Record = tuple[str, int, int]


def entity_hash(key: bytes, entity: bytes) -> bytes:
    """HMAC-SHA256 of an id: its text in UTF-8, or its bytes."""
    return hmac.digest(key, b"entity\0" + entity, hashlib.sha256)


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


#: Undecoded columns that may hold an id.
BYTES = ("_kafka_key", HEADERS, "_raw_value")


#: Records that are Python objects at the same time.
_ROWS_AT_ONCE = 10_000


#: Column of failed calls: the receiver's answer.
ANSWER = "answer"


#: JSON's escapes (RFC 8259, section 7); characters beyond U+FFFF are two of them.
_ESCAPE = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+|\\.", re.DOTALL)


_SHORT_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


#: Coordinates of a record; NULL matches nothing.
RECORDS = pa.schema(
    [
        pa.field("_kafka_topic", pa.string()),
        pa.field("_kafka_topic_id", pa.string()),
        pa.field("_kafka_partition", pa.int32()),
        pa.field("_kafka_offset", pa.int64()),
        pa.field("_batch", pa.int64()),
        pa.field("game", pa.string()),
    ]
)


#: A replayed record has another batch in quarantine than in bronze. Silver has the topic's name, but not its id, which is
#: unique for a name within a batch.
_IN_QUARANTINE = list(COORDINATES)


_IN_SILVER = ["_kafka_topic", "_kafka_partition", "_kafka_offset", "_batch"]


@dataclass(frozen=True)
class DataSubjects:
    """The data subjects of an erasure; picklable.

    Attributes:
        key: the column with a data subject's id.
        entity: the column with the game.
        ids: their ids, as texts.
        records: their rows of bronze (`RECORDS`), by which rows of other tables are found too.
        oldest_batch: bronze's; rows of quarantine from earlier batches cannot be found by a row of bronze.
    """

    key: str
    entity: str
    ids: frozenset[str] = field(repr=False)
    records: pa.Table = field(repr=False, default_factory=RECORDS.empty_table)
    oldest_batch: int = 0

    def with_records(self, found: Iterable[pa.Table]) -> DataSubjects:
        """A copy with more records, without duplicates."""
        records = pa.concat_tables([self.records, *found]).group_by(RECORDS.names).aggregate([])
        return replace(self, records=records.select(RECORDS.names))

    @cached_property
    def traces(self) -> re.Pattern[bytes] | None:
        """Pattern of an id as a whole text within bytes: after its length (protobuf, Avro), or in quotes (JSON)."""
        found = [head + raw for raw in self._searched for head in (_length_prefix(len(raw)), _length_prefix(2 * len(raw)))]
        return _any_of(found + [b'"' + raw + b'"' for raw in self._searched])

    @cached_property
    def names(self) -> re.Pattern[bytes] | None:
        """Pattern of an id anywhere in a text."""
        return _any_of(self._searched)

    @cached_property
    def _searched(self) -> list[bytes]:
        return [raw for raw in self._encoded if len(raw) >= MIN_SEARCHED_BYTES]

    def columns(self, table: str, names: Sequence[str]) -> list[str]:
        """The columns of a file that are needed to find rows."""
        wanted = {*RECORDS.names, self.entity}
        if table == QUARANTINE:
            wanted |= {"layer", "replayed_table", "replayed_batch", *BYTES}
        if table == REST_FAILED_CALLS:
            wanted |= {"key", ANSWER}
        return [n for n in names if n in wanted or is_person(n, self.key)]

    def mask(self, table: str, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Mask of the data subjects' rows."""
        found = np.zeros(rows.num_rows, dtype=bool)
        if table == QUARANTINE:
            return found | self._recorded(rows, _IN_QUARANTINE) | self.traced(rows, self.unsearchable(rows))
        for name in (n for n in rows.column_names if is_person(n, self.key)):
            found |= self._named(rows.column(name))
        if table != BRONZE:
            found |= self._recorded(rows, _IN_SILVER)
        return found

    def _named(self, values: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        texts = as_texts(values)
        if texts is None:
            return np.zeros(len(values), dtype=bool)
        ids = pa.array(sorted(self.ids), pa.string()).cast(texts.type)
        return np.asarray(pc.is_in(texts, value_set=ids).to_numpy(zero_copy_only=False), dtype=bool)

    def _recorded(self, rows: pa.Table, keys: list[str]) -> npt.NDArray[np.bool_]:
        found = np.zeros(rows.num_rows, dtype=bool)
        if not self.records.num_rows or not set(keys) <= set(rows.column_names):
            return found
        mine = pa.table({k: rows.column(k).cast(RECORDS.field(k).type) for k in keys} | {"_row": np.arange(rows.num_rows)})
        found[mine.join(self.records.select(keys), keys, join_type="left semi").column("_row").to_numpy()] = True
        return found

    def traced(self, rows: pa.Table, among: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Mask of the rows `among` the given ones with an id in their undecoded columns (`BYTES`)."""
        found = np.zeros(rows.num_rows, dtype=bool)
        places = np.flatnonzero(among)
        present = [name for name in BYTES if name in rows.column_names]
        searched, done = rows.select(present).filter(pa.array(among)), 0
        for part in searched.to_batches(max_chunksize=_ROWS_AT_ONCE):
            keys, values = (part.column(name).to_pylist() for name in ("_kafka_key", "_raw_value"))
            headers = header_values(part.column(HEADERS)) if HEADERS in present else iter([[]] * len(part))
            for key, value, more in zip(keys, values, headers, strict=True):
                in_header = any(self._is_written(text, is_header=True) for text in more)
                found[places[done]] = in_header or self._is_written(key) or self._is_traced(value)
                done += 1
        return found

    def _is_written(self, text: bytes | None, *, is_header: bool = False) -> bool:
        """Whether a key or header is an id or has one, as serializers write it."""
        if text is None:
            return False
        return not self._encoded.isdisjoint(texts_of(text, is_header=is_header)) or self._is_traced(text)

    def _is_traced(self, value: bytes | None) -> bool:
        return value is not None and _in_either_form(self.traces, value)

    @cached_property
    def _encoded(self) -> frozenset[bytes]:
        return frozenset(text.encode(errors="surrogatepass") for text in self.ids)

    def answered(self, failed: pa.Table, erased: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Mask of the remaining rows of failed calls with an answer that has an id, or is to a call with erased rows."""
        calls = pc.unique(failed.column("key").filter(pa.array(erased)))
        found = pc.is_in(failed.column("key"), value_set=calls).to_numpy()
        answers = failed.column(ANSWER).combine_chunks().dictionary_encode()
        naming = [_in_either_form(self.names, answer.encode()) for answer in answers.dictionary.to_pylist()]
        which = pc.fill_null(answers.indices, len(naming)).to_numpy(zero_copy_only=False)
        found = found | np.array([*naming, False])[which]
        return np.asarray(found & ~erased & pc.is_valid(failed.column(ANSWER)).to_numpy(), dtype=bool)

    def nameless(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Mask of bronze's rows without a key and a game: their message type is not decoded."""
        found = np.ones(rows.num_rows, dtype=bool)
        for name in (n for n in rows.column_names if n == self.entity or is_person(n, self.key)):
            found &= pc.is_null(rows.column(name)).to_numpy()
        return found

    def unsearchable(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Mask of quarantine's rows that no schema decodes: they cannot be attributed to a data subject for certain."""
        decodes = pc.equal(rows.column("layer"), Layer.SILVER).to_numpy()
        if "replayed_batch" in rows.column_names:
            # Marked without a table: a rejected row that bronze does not have any more.
            noted = pc.is_valid(rows.column("replayed_batch")).to_numpy()
            decodes = np.where(noted, pc.is_valid(rows.column("replayed_table")).to_numpy(), decodes)
        old = pc.fill_null(pc.less(rows.column("_batch"), self.oldest_batch), False).to_numpy()
        return np.asarray(~decodes | old, dtype=bool)


def _any_of(texts: Sequence[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(map(re.escape, texts))) if texts else None


def _length_prefix(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _in_either_form(pattern: re.Pattern[bytes] | None, value: bytes) -> bool:
    """Whether a pattern is in bytes, as they are or with JSON's escapes resolved, which depend on the writer."""
    if pattern is None:
        return False
    return pattern.search(value) is not None or (b"\\" in value and pattern.search(_ESCAPE.sub(_resolved, value)) is not None)


def _resolved(escape: re.Match[bytes]) -> bytes:
    """The characters of one or more JSON escapes."""
    text = escape[0]
    if text[1:2] == b"u":
        return bytes.fromhex(text.replace(b"\\u", b"").decode()).decode("utf-16-be", "replace").encode()
    return _SHORT_ESCAPES.get(text[1:], text[1:])


_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ScannedFile:
    """Result of one file.

    Attributes:
        table, path: the file.
        rows: number of the data subjects' rows.
        files: staged copy without these rows; empty if no row remains, or without `rewrite`.
        records: these rows, as `RECORDS`.
        unsearchable: remaining rows that cannot be attributed to a data subject.
        by_bytes: those of `records` that were found by their undecoded columns alone; bronze only.
        unreadable: not a complete Parquet file: it is being written, or its run was killed.
        answers: remaining rows of failed calls that lose the receiver's answer, as it may have an id.
    """

    table: str
    path: str
    rows: int = 0
    files: list[StagedFile] = field(default_factory=list)
    records: pa.Table = field(default_factory=RECORDS.empty_table)
    unsearchable: int = 0
    unreadable: bool = False
    by_bytes: pa.Table = field(default_factory=RECORDS.empty_table)
    answers: int = 0

    @property
    def matches(self) -> bool:
        """Whether the file has anything to erase."""
        return self.rows > 0 or self.answers > 0


@dataclass(frozen=True)
class ScannedFiles:
    """Results of one task."""

    files: list[ScannedFile]


@dataclass(frozen=True)
class EraseTask(WorkerJob[ScannedFiles]):
    """Scans files, given as rows (table, path); picklable.

    `rewrite`: stage a copy of each file with matches. `old`: the current version does not have the files: one may be deleted
    meanwhile, or incomplete.
    """

    result: ClassVar[type] = ScannedFiles
    tables: Mapping[str, Table]
    subjects: DataSubjects
    rewrite: bool
    old: bool = False

    def stage(self, batches: Iterable[pa.RecordBatch]) -> ScannedFiles:
        """Scan the files."""
        return ScannedFiles([self.scan(table, path) for table, path in named(batches)])

    def scan(self, name: str, path: str) -> ScannedFile:
        """Scan one file, one row group in memory at a time; FileNotFoundError or pa.ArrowInvalid only if it is not `old`."""
        try:
            return self._scan(name, path)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            if not self.old:
                raise
            return ScannedFile(name, path, unreadable=isinstance(error, pa.ArrowInvalid))

    def _scan(self, name: str, path: str) -> ScannedFile:
        system, prefix = file_system(self.tables[name])
        with system.open_input_file(prefix + path) as source:
            file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
            groups = [self._scan_group(name, path, file, group) for group in range(file.num_row_groups)]
            masks = [mask for mask, _, _, _ in groups]
            rows, unsearchable = sum(int(mask.sum()) for mask in masks), sum(number for _, _, _, number in groups)
            answers = self._answers(name, file, masks)
            if not rows and not any(mask.any() for mask in answers):
                return ScannedFile(name, path, unsearchable=unsearchable)
            files = _without(self.tables[name], path, file, masks, answers) if self.rewrite else []
        records, by_bytes = (pa.concat_tables([group[n] for group in groups]) for n in (1, 2))
        cleared = sum(int(mask.sum()) for mask in answers)
        return ScannedFile(name, path, rows, files, records, unsearchable, by_bytes=by_bytes, answers=cleared)

    def _scan_group(self, name: str, path: str, file: pq.ParquetFile, group: int) -> tuple[_Mask, pa.Table, pa.Table, int]:
        """A row group's mask, records, records that were found by bytes, and number of unsearchable rows."""
        rows = file.read_row_group(group, self.subjects.columns(name, file.schema_arrow.names))
        if is_silver(name) and self.subjects.entity not in rows.column_names:
            game = partition_of(path).get(self.subjects.entity)
            rows = rows.append_column(self.subjects.entity, pa.repeat(pa.scalar(game, pa.string()), rows.num_rows))
        mask, by_bytes, unsearchable = self.subjects.mask(name, rows), RECORDS.empty_table(), 0
        if name == BRONZE and (nameless := self.subjects.nameless(rows)).any():
            # Only where needed: the bytes are most of the file.
            found = self.subjects.traced(file.read_row_group(group, list(BYTES)), nameless)
            by_bytes = self._records(name, rows.filter(pa.array(found)))
            unsearchable = int((nameless & ~found).sum())
            mask |= found
        if name == QUARANTINE:
            unsearchable = int((self.subjects.unsearchable(rows) & ~mask).sum())
        records = self._records(name, rows.filter(pa.array(mask))) if mask.any() else RECORDS.empty_table()
        return mask, records, by_bytes, unsearchable

    def _records(self, table: str, rows: pa.Table) -> pa.Table:
        """The rows as `RECORDS`; of quarantine, `game` only for rejected rows that are not in silver."""
        taken = {n: rows.column(n) for n in rows.column_names}
        if table != QUARANTINE:
            taken["game"] = taken.get(self.subjects.entity, pa.nulls(rows.num_rows, pa.string()))
        elif "game" in taken and "replayed_batch" in taken:
            taken["game"] = pc.if_else(pc.is_null(taken["replayed_batch"]), taken["game"], pa.scalar(None, pa.string()))
        arrays = [taken[f.name].cast(f.type) if f.name in taken else pa.nulls(rows.num_rows, f.type) for f in RECORDS]
        return pa.Table.from_arrays(arrays, schema=RECORDS)

    def _answers(self, name: str, file: pq.ParquetFile, masks: Sequence[_Mask]) -> list[_Mask]:
        """By row group, the remaining rows of failed calls that lose the answer; a call's rows may be in several groups."""
        if name != REST_FAILED_CALLS or not masks:
            return []
        found = self.subjects.answered(file.read(["key", ANSWER]), np.concatenate(masks))
        return np.split(found, np.cumsum([len(mask) for mask in masks])[:-1])


def named(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, str]]:
    """(table, path) of each row."""
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _without(
    table: Table, path: str, file: pq.ParquetFile, masks: Sequence[_Mask], answers: Sequence[_Mask]
) -> list[StagedFile]:
    """Stage a file's remaining rows, in the table's types: another engine's file may have others (INT96 times)."""
    handle = table.open_to_read()
    types = {f.name: f.type for f in pa.schema(handle.schema())} if handle is not None else {}
    own = file.schema_arrow.remove_metadata()
    schema = pa.schema([pa.field(f.name, types.get(f.name, f.type)) for f in own])
    writer = StagedWriter(table, schema, folder=path[: path.rfind("/") + 1])
    for group, mask in enumerate(masks):
        if not mask.all():
            rows = file.read_row_group(group).replace_schema_metadata(None).cast(schema)
            if answers:
                at = schema.get_field_index(ANSWER)
                cleared = pc.if_else(pa.array(answers[group]), pa.scalar(None, schema.field(at).type), rows.column(at))
                rows = rows.set_column(at, schema.field(at), cleared)
            writer.write(rows.filter(pa.array(~mask)) if mask.any() else rows)
    return writer.close()


@dataclass(frozen=True)
class FoundIds:
    """Result of one task."""

    ids: set[str]


@dataclass(frozen=True)
class RecoverTask(WorkerJob[FoundIds]):
    """Finds ids in files, given as rows (table, path); picklable. The key is part of the job, so that no plan or log shows it.

    `suppression`: the column with ids, the key, and the hashes to find.
    """

    result: ClassVar[type] = FoundIds
    tables: dict[str, Table]
    suppression: Suppression

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FoundIds:
        """Search the files."""
        return FoundIds({text for table, path in named(batches) for text in self.find(table, path)})

    def find(self, name: str, path: str) -> set[str]:
        """Ids in one file; empty if maintenance has deleted it."""
        found: set[str] = set()
        system, prefix = file_system(self.tables[name])
        with suppress(FileNotFoundError), system.open_input_file(prefix + path) as source:
            file = pq.ParquetFile(source)
            column = self.suppression.column
            by_key = name in (BRONZE, QUARANTINE)  # for records that are not decoded
            names = [n for n in file.schema_arrow.names if is_person(n, column) or (by_key and n in ("_kafka_key", HEADERS))]
            suppressor = Suppressor(self.suppression)
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, names)
                for one in names:
                    find = _texts if is_person(one, column) else _written_texts
                    found |= find(rows.column(one), suppressor)
        return found


def _texts(values: pa.ChunkedArray, suppressor: Suppressor) -> set[str]:
    texts = as_texts(values)
    if texts is None:
        return set()
    return _as_ids(pc.unique(texts.filter(pa.array(suppressor.values(texts)))).to_pylist())


def _written_texts(values: pa.ChunkedArray, suppressor: Suppressor) -> set[str]:
    """Ids in Kafka keys, or in headers."""
    if is_header := pa.types.is_list(values.type):
        values = pc.struct_field(pc.list_flatten(values), "value")
    written = pc.unique(values).to_pylist()
    return _as_ids(text for raw in written for text in suppressor.erased_texts(raw, is_header=is_header))


def _as_ids(ids: Iterable[str | bytes]) -> set[str]:
    # Bytes that are not UTF-8 cannot be an id on a command line.
    return {t if isinstance(t, str) else t.decode("utf-8", "replace") for t in ids}
