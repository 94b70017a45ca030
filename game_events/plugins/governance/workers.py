"""On Spark's workers: which records and rows belong to erased people, and files of the tables without the rows of some people.

A record that is not decoded is attributed to a person by the texts that its Kafka key or a value of its headers may be, as the
usual serializers write them; both when rows are erased and when records come later. Ids and the key of their hashes are part of
the pickled objects, so that no plan or log shows them. Nothing is committed here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from game_events.decoding.frame import PREFIXES, Rows
from game_events.lakehouse.data.columns import COORDINATES, HEADERS, SOURCE, places
from game_events.lakehouse.data.reading import without_views
from game_events.lakehouse.data.rewriting import Rewriting, folder_of
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, file_system, mark_of, partition_of
from game_events.lakehouse.tables import BRONZE, EXPORT_FAILED_CALLS, QUARANTINE, Layer, Table, is_person, is_silver
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

#: Undecoded columns that may hold an id.
BYTES = ("_kafka_key", HEADERS, "_raw_value")

#: Records that are Python objects at the same time.
_ROWS_AT_ONCE = 10_000

#: Column of failed calls: the receiver's answer.
ANSWER = "answer"

#: JSON's escapes (RFC 8259, section 7); characters beyond U+FFFF are two of them.
_ESCAPE = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+|\\.", re.DOTALL)

_SHORT_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}

#: Which record of Kafka: topic id, partition, offset.
Record = tuple[str, int, int]

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

#: Silver has the topic's name, with that of its source (`places`), but not its id, which is unique for both within a batch.
_IN_SILVER = ["_kafka_topic", "_kafka_partition", "_kafka_offset", "_batch"]


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
        column: with a person's id.
        key: of the hashes of the erased ids.
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
        self.is_erased = lru_cache(REMEMBERED)(self._has_hash)

    def _has_hash(self, value: str | bytes) -> bool:
        raw = value.encode() if isinstance(value, str) else value
        return id_hash(self._people.key, raw) in self._people.hashes

    def decoded(self, rows: pa.Table) -> Mask:
        """Which decoded rows belong to erased people; each distinct id is hashed once."""
        mask = np.zeros(rows.num_rows, dtype=bool)
        for name in rows.column_names:
            texts = as_texts(rows.column(name)) if is_person(name, self._people.column) else None
            if texts is not None:
                ids = pc.dictionary_encode(texts)
                mask |= _mask(ids, [self.is_erased(value) for value in ids.dictionary.to_pylist()])
        return mask

    def undecodable(self, batch: pa.RecordBatch, topic_ids: pa.Array, rows: Rows) -> Mask:
        """Which of some rows of raw records belong to erased people, as a mask of the batch.

        By their Kafka key and headers (`texts_of`), or by `ErasedPeople.records`.
        """
        records = batch.take(pa.array(rows))
        erased = np.array([self.erased_texts(key) != set() for key in records.column("key").to_pylist()], dtype=bool)
        headers = records.column("headers")
        if pc.any(pc.greater(pc.list_value_length(headers), 0)).as_py():
            erased |= np.array([self._is_in_headers(row or ()) for row in headers.to_pylist()], dtype=bool)
        if self._people.records:
            columns = (topic_ids.take(pa.array(rows)), records.column("partition"), records.column("offset"))
            places = zip(*(column.to_pylist() for column in columns), strict=True)
            erased |= np.array([place in self._people.records for place in places], dtype=bool)
        mask = np.zeros(len(batch), dtype=bool)
        mask[rows] = erased
        return mask

    def _is_in_headers(self, headers: Sequence[Mapping[str, bytes | None]]) -> bool:
        """Whether one of a record's headers may be the id of an erased person."""
        return any(self.erased_texts(header["value"], is_header=True) for header in headers)

    def erased_texts(self, raw: bytes | None, *, is_header: bool = False) -> set[bytes]:
        """The ids of erased people that a key or header may be."""
        texts = set[bytes]() if raw is None else texts_of(raw, is_header=is_header)
        return {text for text in texts if self.is_erased(text)}


def _mask(encoded: pa.DictionaryArray, matches: Sequence[bool]) -> Mask:
    """Mask of the rows of which the value matches; NULL does not."""
    if not any(matches):
        return np.zeros(len(encoded), dtype=bool)
    which = pc.fill_null(encoded.indices, len(matches)).to_numpy(zero_copy_only=False)
    return np.asarray(np.array([*matches, False])[which], dtype=bool)


@dataclass(frozen=True)
class PeopleToErase:
    """The people of an erasure; picklable.

    Attributes:
        key, entity: the columns with a person's id and with the game.
        ids: as texts.
        records: their rows of bronze (`RECORDS`), by which rows of other tables are found too.
        oldest_batch: bronze's; rows of quarantine from earlier batches cannot be found by a row of bronze.
    """

    key: str
    entity: str
    ids: frozenset[str] = field(repr=False)
    records: pa.Table = field(repr=False, default_factory=RECORDS.empty_table)
    oldest_batch: int = 0

    def with_records(self, more: Iterable[pa.Table]) -> PeopleToErase:
        """A copy with more records, without duplicates."""
        records = pa.concat_tables([self.records, *more]).group_by(RECORDS.names).aggregate([])
        return replace(self, records=records.select(RECORDS.names))

    def columns(self, table: str, names: Sequence[str]) -> list[str]:
        """The columns of a file that are needed to find rows."""
        wanted = {*RECORDS.names, SOURCE, self.entity}
        if table == QUARANTINE:
            wanted |= {"layer", "replayed_table", "replayed_batch", *BYTES}
        if table == EXPORT_FAILED_CALLS:
            wanted |= {"key", ANSWER}
        return [name for name in names if name in wanted or is_person(name, self.key)]

    def mask(self, table: str, rows: pa.Table) -> Mask:
        """Mask of these people's rows."""
        if table == QUARANTINE:
            # Without the batch: a replayed record has another one than in bronze.
            return self._recorded(rows, list(COORDINATES)) | self.traced(rows, self.unsearchable(rows))
        mask = np.zeros(rows.num_rows, dtype=bool)
        for name in rows.column_names:
            texts = as_texts(rows.column(name)) if is_person(name, self.key) else None
            if texts is not None:
                ids = pa.array(sorted(self.ids), pa.string()).cast(texts.type)
                mask |= pc.is_in(texts, value_set=ids).to_numpy(zero_copy_only=False)
        if table != BRONZE:
            mask |= self._recorded(rows, _IN_SILVER)
        return mask

    def _recorded(self, rows: pa.Table, keys: list[str]) -> Mask:
        """Mask of the rows with the coordinates of one of `records`."""
        mask = np.zeros(rows.num_rows, dtype=bool)
        if not self.records.num_rows or not set(keys) <= set(rows.column_names):
            return mask
        columns = {key: rows.column(key).cast(RECORDS.field(key).type) for key in keys}
        if "_kafka_topic" in columns:
            columns["_kafka_topic"] = places(rows)
        coordinates = pa.table(columns | {"_row": np.arange(rows.num_rows)})
        mask[coordinates.join(self.records.select(keys), keys, join_type="left semi").column("_row").to_numpy()] = True
        return mask

    def traced(self, rows: pa.Table, among: Mask) -> Mask:
        """Mask of the rows `among` the given ones with an id in their undecoded columns (`BYTES`)."""
        present = [name for name in BYTES if name in rows.column_names]
        traced: list[bool] = []
        for part in rows.select(present).filter(pa.array(among)).to_batches(max_chunksize=_ROWS_AT_ONCE):
            traced += [self._is_in(record) for record in part.to_pylist()]
        mask = np.zeros(rows.num_rows, dtype=bool)
        mask[among] = traced
        return mask

    def _is_in(self, record: Mapping[str, Any]) -> bool:
        """Whether a key, a header or the bytes of a record are an id or have one, as serializers write it."""
        if _in_either_form(self._traces, record["_raw_value"]) or self._is_written(record["_kafka_key"]):
            return True
        return any(self._is_written(header["value"], is_header=True) for header in record.get(HEADERS) or ())

    def _is_written(self, text: bytes | None, *, is_header: bool = False) -> bool:
        if text is None:
            return False
        return not self._encoded.isdisjoint(texts_of(text, is_header=is_header)) or _in_either_form(self._traces, text)

    @cached_property
    def _traces(self) -> re.Pattern[bytes]:
        """Pattern of an id as a whole text within bytes: after its length (protobuf, Avro), or in quotes (JSON)."""
        traces: list[bytes] = []
        for raw in _long(self._encoded):
            traces += [_length_prefix(len(raw)) + raw, _length_prefix(2 * len(raw)) + raw, b'"' + raw + b'"']
        return _any_of(traces)

    @cached_property
    def _names(self) -> re.Pattern[bytes]:
        """Pattern of an id anywhere in a text."""
        return _any_of(_long(self._encoded))

    @cached_property
    def _encoded(self) -> frozenset[bytes]:
        return frozenset(text.encode(errors="surrogatepass") for text in self.ids)

    def answered(self, failed: pa.Table, erased: Mask) -> Mask:
        """Mask of the remaining rows of failed calls with an answer that has an id, or is to a call with erased rows."""
        calls = pc.unique(failed.column("key").filter(pa.array(erased)))
        of_call = pc.is_in(failed.column("key"), value_set=calls).to_numpy()
        answers = failed.column(ANSWER).combine_chunks().dictionary_encode()
        naming = [_in_either_form(self._names, answer.encode()) for answer in answers.dictionary.to_pylist()]
        has_answer = pc.is_valid(failed.column(ANSWER)).to_numpy()
        return np.asarray((of_call | _mask(answers, naming)) & ~erased & has_answer, dtype=bool)

    def nameless(self, rows: pa.Table) -> Mask:
        """Mask of bronze's rows without a key and a game: their message type is not decoded."""
        mask = np.ones(rows.num_rows, dtype=bool)
        for name in rows.column_names:
            if name == self.entity or is_person(name, self.key):
                mask &= pc.is_null(rows.column(name)).to_numpy()
        return mask

    def unsearchable(self, rows: pa.Table) -> Mask:
        """Mask of quarantine's rows that no schema decodes: they cannot be attributed to a person for certain."""
        decodes = pc.equal(rows.column("layer"), Layer.SILVER).to_numpy()
        if "replayed_batch" in rows.column_names:
            # Marked without a table: a rejected row that bronze does not have any more.
            replayed = pc.is_valid(rows.column("replayed_batch")).to_numpy()
            decodes = np.where(replayed, pc.is_valid(rows.column("replayed_table")).to_numpy(), decodes)
        old = pc.fill_null(pc.less(rows.column("_batch"), self.oldest_batch), False).to_numpy()
        return np.asarray(~decodes | old, dtype=bool)


def _any_of(texts: Sequence[bytes]) -> re.Pattern[bytes]:
    """Without a text, the pattern matches nothing."""
    return re.compile(b"|".join(map(re.escape, texts)) or b"(?!)")


def _length_prefix(number: int) -> bytes:
    prefix = bytearray()
    while number > 0x7F:
        prefix.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*prefix, number))


def _in_either_form(pattern: re.Pattern[bytes], value: bytes | None) -> bool:
    """Whether a pattern is in bytes, as they are or with JSON's escapes resolved, which depend on the writer."""
    if value is None:
        return False
    return pattern.search(value) is not None or (b"\\" in value and pattern.search(_ESCAPE.sub(_resolved, value)) is not None)


def _resolved(escape: re.Match[bytes]) -> bytes:
    """The characters of one or more JSON escapes."""
    text = escape[0]
    if text[1:2] == b"u":
        return bytes.fromhex(text.replace(b"\\u", b"").decode()).decode("utf-16-be", "replace").encode()
    return _SHORT_ESCAPES.get(text[1:], text[1:])


@dataclass(frozen=True)
class ScannedFile:
    """Result of one file.

    Attributes:
        table, path: the file.
        rows: number of the people's rows.
        files: staged copy without these rows; empty if no row remains, or without `rewrite`.
        records: these rows, as `RECORDS`.
        unsearchable: remaining rows that cannot be attributed to a person.
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
    """Result of one task."""

    files: list[ScannedFile]


@dataclass(frozen=True)
class EraseTask(WorkerJob[ScannedFiles]):
    """Scans files, given as rows (table, path); picklable.

    `rewrite`: stage a copy of each file with matches. `old`: the current version does not have the files: one may be deleted
    meanwhile, or incomplete.
    """

    result: ClassVar[type] = ScannedFiles
    tables: Mapping[str, Table]
    people: PeopleToErase
    rewrite: bool
    old: bool = False
    #: Table -> its newest version; the log is read once for all files of a task.
    _versions: dict[str, Rewriting | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> ScannedFiles:
        """Scan the files."""
        return ScannedFiles([self.scan(table, path) for table, path in table_files(batches)])

    def scan(self, name: str, path: str) -> ScannedFile:
        """Scan one file, one row group in memory at a time; FileNotFoundError or pa.ArrowInvalid only if it is not `old`."""
        system, prefix = file_system(self.tables[name])
        try:
            with system.open_input_file(prefix + path) as source:
                return self._scan(name, path, pq.ParquetFile(source, coerce_int96_timestamp_unit="us"))
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            if not self.old:
                raise
            return ScannedFile(name, path, unreadable=isinstance(error, pa.ArrowInvalid))

    def _scan(self, name: str, path: str, file: pq.ParquetFile) -> ScannedFile:
        groups = [self._scan_group(name, path, file, group) for group in range(file.num_row_groups)]
        masks = [mask for mask, _ in groups]
        parts = [part for _, part in groups]
        answers: list[Mask] = []
        if name == EXPORT_FAILED_CALLS and masks:  # a call's rows may be in several groups
            answered = self.people.answered(without_views(file.read(["key", ANSWER])), np.concatenate(masks))
            answers = np.split(answered, np.cumsum([len(mask) for mask in masks])[:-1])
        scanned = replace(_joined(name, path, parts), answers=sum(int(mask.sum()) for mask in answers))
        if not (self.rewrite and scanned.matches):
            return scanned
        return replace(scanned, files=_copied(self.tables[name], self._version(name), path, file, masks, answers))

    def _version(self, name: str) -> Rewriting | None:
        if name not in self._versions:
            handle = self.tables[name].open_to_read()
            self._versions[name] = None if handle is None else Rewriting(self.tables[name], handle)
        return self._versions[name]

    def _scan_group(self, name: str, path: str, file: pq.ParquetFile, group: int) -> tuple[Mask, ScannedFile]:
        """Mask of the people's rows in a row group, and what a file has that is only this group."""
        people = self.people
        rows = without_views(file.read_row_group(group, people.columns(name, file.schema_arrow.names)))
        if is_silver(name) and people.entity not in rows.column_names:
            game = partition_of(path).get(people.entity)
            rows = rows.append_column(people.entity, pa.repeat(pa.scalar(game, pa.string()), rows.num_rows))
        mask = people.mask(name, rows)
        by_bytes = RECORDS.empty_table()
        unsearchable = 0
        if name == BRONZE and (nameless := people.nameless(rows)).any():
            # Only where needed: the bytes are most of the file.
            traced = people.traced(without_views(file.read_row_group(group, list(BYTES))), nameless)
            by_bytes = self._records(name, rows.filter(pa.array(traced)))
            unsearchable = int((nameless & ~traced).sum())
            mask |= traced
        if name == QUARANTINE:
            unsearchable = int((people.unsearchable(rows) & ~mask).sum())
        records = self._records(name, rows.filter(pa.array(mask))) if mask.any() else RECORDS.empty_table()
        return mask, ScannedFile(name, path, int(mask.sum()), [], records, unsearchable, by_bytes=by_bytes)

    def _records(self, table: str, rows: pa.Table) -> pa.Table:
        """The rows as `RECORDS`; of quarantine, `game` only for rejected rows that are not in silver."""
        columns = {name: rows.column(name) for name in rows.column_names}
        if "_kafka_topic" in columns:
            columns["_kafka_topic"] = places(rows)
        if table != QUARANTINE:
            columns["game"] = columns.get(self.people.entity, pa.nulls(rows.num_rows, pa.string()))
        elif "game" in columns and "replayed_batch" in columns:
            columns["game"] = pc.if_else(pc.is_null(columns["replayed_batch"]), columns["game"], pa.scalar(None, pa.string()))
        arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(rows.num_rows, f.type) for f in RECORDS]
        return pa.Table.from_arrays(arrays, schema=RECORDS)


def _copied(
    table: Table,
    version: Rewriting | None,
    path: str,
    file: pq.ParquetFile,
    masks: Sequence[Mask],
    answers: Sequence[Mask],
) -> list[StagedFile]:
    """Stage a file's remaining rows, in the table's types: another engine's file may have others (INT96 times)."""
    types = {f.name: f.type for f in pa.schema(version.handle.schema())} if version is not None else {}
    own = without_views(file.schema_arrow.remove_metadata().empty_table()).schema
    schema = pa.schema([pa.field(f.name, types.get(f.name, f.type)) for f in own])
    ids = version.ids if version is not None else None
    lacking = [f for f in ids.fields if f.name not in schema.names] if ids is not None else []
    writer = StagedWriter(table, pa.schema([*schema, *lacking]), folder=folder_of(path), mark=mark_of(path))
    first = 0
    for group, mask in enumerate(masks):
        first += len(mask)
        if mask.all():
            continue
        rows = file.read_row_group(group).replace_schema_metadata(None).cast(schema)
        rows = rows if ids is None else ids.kept(path, first - len(mask), rows)
        if answers:
            index = schema.get_field_index(ANSWER)
            field_of_answer = schema.field(index)
            kept = pc.if_else(pa.array(answers[group]), pa.scalar(None, field_of_answer.type), rows.column(index))
            rows = rows.set_column(index, field_of_answer, kept)
        writer.write(rows.filter(pa.array(~mask)) if mask.any() else rows)
    return writer.close()


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
        """Ids in one file; none if maintenance has deleted it."""
        ids: set[str | bytes] = set()
        system, prefix = file_system(self.tables[name])
        # By key and headers, too, for records that are not decoded.
        written = ("_kafka_key", HEADERS) if name in (BRONZE, QUARANTINE) else ()
        people = self.people.open()
        with suppress(FileNotFoundError), system.open_input_file(prefix + path) as source:
            file = pq.ParquetFile(source)
            wanted = [c for c in file.schema_arrow.names if c in written or is_person(c, self.people.column)]
            for group in range(file.num_row_groups):
                rows = without_views(file.read_row_group(group, wanted))
                for column in wanted:
                    ids |= _erased_ids(column, rows.column(column), people)
        # Bytes that are not UTF-8 cannot be an id on a command line.
        return {text if isinstance(text, str) else text.decode("utf-8", "replace") for text in ids}


def _joined(name: str, path: str, parts: Sequence[ScannedFile]) -> ScannedFile:
    """The result of a file, of those of its row groups."""
    return ScannedFile(
        name,
        path,
        rows=sum(part.rows for part in parts),
        records=pa.concat_tables([RECORDS.empty_table(), *(part.records for part in parts)]),
        unsearchable=sum(part.unsearchable for part in parts),
        by_bytes=pa.concat_tables([RECORDS.empty_table(), *(part.by_bytes for part in parts)]),
    )


def _erased_ids(column: str, values: pa.ChunkedArray, people: ErasedPeopleFilter) -> set[str | bytes]:
    """Ids of erased people in a column: decoded ones, or those that Kafka keys or headers may be."""
    if column not in BYTES:
        texts = as_texts(values)
        ids = [] if texts is None else pc.unique(texts.drop_null()).to_pylist()
        return {text for text in ids if people.is_erased(text)}
    is_header = column == HEADERS
    if is_header:
        values = pc.struct_field(pc.list_flatten(values), "value")
    written = pc.unique(values).to_pylist()
    return {text for raw in written for text in people.erased_texts(raw, is_header=is_header)}


def table_files(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, str]]:
    """(table, path) of each row."""
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
