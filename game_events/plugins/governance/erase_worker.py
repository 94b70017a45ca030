"""On Spark's workers: rows of the people of an erasure in files of the tables, and copies of these files without the rows.

Only the columns that may hold an id are read. The ids are part of the pickled object, so that no plan or log shows them.
Nothing is committed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from game_events.lakehouse.data.columns import COORDINATES, HEADERS
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, file_system, partition_of
from game_events.lakehouse.tables import BRONZE, EXPORT_FAILED_CALLS, QUARANTINE, Layer, Table, is_person, is_silver
from game_events.plugins.governance.filter_worker import MIN_SEARCHED_BYTES, as_texts, header_values, table_files, texts_of
from game_events.workers.decode import Mask
from game_events.workers.job import WorkerJob

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
class PeopleToErase:
    """The people of an erasure; picklable.

    Attributes:
        key: the column with a person's id.
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

    def with_records(self, more: Iterable[pa.Table]) -> PeopleToErase:
        """A copy with more records, without duplicates."""
        records = pa.concat_tables([self.records, *more]).group_by(RECORDS.names).aggregate([])
        return replace(self, records=records.select(RECORDS.names))

    def columns(self, table: str, names: Sequence[str]) -> list[str]:
        """The columns of a file that are needed to find rows."""
        wanted = {*RECORDS.names, self.entity}
        if table == QUARANTINE:
            wanted |= {"layer", "replayed_table", "replayed_batch", *BYTES}
        if table == EXPORT_FAILED_CALLS:
            wanted |= {"key", ANSWER}
        return [name for name in names if name in wanted or is_person(name, self.key)]

    def mask(self, table: str, rows: pa.Table) -> Mask:
        """Mask of these people's rows."""
        if table == QUARANTINE:
            return self._recorded(rows, _IN_QUARANTINE) | self.traced(rows, self.unsearchable(rows))
        mask = np.zeros(rows.num_rows, dtype=bool)
        for name in rows.column_names:
            if is_person(name, self.key):
                mask |= self._named(rows.column(name))
        if table != BRONZE:
            mask |= self._recorded(rows, _IN_SILVER)
        return mask

    def _named(self, values: pa.ChunkedArray) -> Mask:
        texts = as_texts(values)
        if texts is None:
            return np.zeros(len(values), dtype=bool)
        ids = pa.array(sorted(self.ids), pa.string()).cast(texts.type)
        return np.asarray(pc.is_in(texts, value_set=ids).to_numpy(zero_copy_only=False), dtype=bool)

    def _recorded(self, rows: pa.Table, keys: list[str]) -> Mask:
        """Mask of the rows with the coordinates of one of `records`."""
        mask = np.zeros(rows.num_rows, dtype=bool)
        if not self.records.num_rows or not set(keys) <= set(rows.column_names):
            return mask
        columns = {key: rows.column(key).cast(RECORDS.field(key).type) for key in keys}
        coordinates = pa.table(columns | {"_row": np.arange(rows.num_rows)})
        mask[coordinates.join(self.records.select(keys), keys, join_type="left semi").column("_row").to_numpy()] = True
        return mask

    def traced(self, rows: pa.Table, among: Mask) -> Mask:
        """Mask of the rows `among` the given ones with an id in their undecoded columns (`BYTES`)."""
        present = [name for name in BYTES if name in rows.column_names]
        traced: list[bool] = []
        for part in rows.select(present).filter(pa.array(among)).to_batches(max_chunksize=_ROWS_AT_ONCE):
            keys = part.column("_kafka_key").to_pylist()
            values = part.column("_raw_value").to_pylist()
            headers = header_values(part.column(HEADERS)) if HEADERS in present else [[]] * len(part)
            for key, value, own_headers in zip(keys, values, headers, strict=True):
                in_header = any(self._is_written(text, is_header=True) for text in own_headers)
                traced.append(in_header or self._is_written(key) or self._is_traced(value))
        mask = np.zeros(rows.num_rows, dtype=bool)
        mask[among] = traced
        return mask

    def _is_written(self, text: bytes | None, *, is_header: bool = False) -> bool:
        """Whether a key or header is an id or has one, as serializers write it."""
        if text is None:
            return False
        return not self._encoded.isdisjoint(texts_of(text, is_header=is_header)) or self._is_traced(text)

    def _is_traced(self, value: bytes | None) -> bool:
        return value is not None and _in_either_form(self._traces, value)

    @cached_property
    def _traces(self) -> re.Pattern[bytes] | None:
        """Pattern of an id as a whole text within bytes: after its length (protobuf, Avro), or in quotes (JSON)."""
        traces: list[bytes] = []
        for raw in self._searched:
            traces += [_length_prefix(len(raw)) + raw, _length_prefix(2 * len(raw)) + raw, b'"' + raw + b'"']
        return _any_of(traces)

    @cached_property
    def _names(self) -> re.Pattern[bytes] | None:
        """Pattern of an id anywhere in a text."""
        return _any_of(self._searched)

    @cached_property
    def _searched(self) -> list[bytes]:
        return [raw for raw in self._encoded if len(raw) >= MIN_SEARCHED_BYTES]

    @cached_property
    def _encoded(self) -> frozenset[bytes]:
        return frozenset(text.encode(errors="surrogatepass") for text in self.ids)

    def answered(self, failed: pa.Table, erased: Mask) -> Mask:
        """Mask of the remaining rows of failed calls with an answer that has an id, or is to a call with erased rows."""
        calls = pc.unique(failed.column("key").filter(pa.array(erased)))
        of_call = pc.is_in(failed.column("key"), value_set=calls).to_numpy()
        answers = failed.column(ANSWER).combine_chunks().dictionary_encode()
        naming = [_in_either_form(self._names, answer.encode()) for answer in answers.dictionary.to_pylist()]
        which = pc.fill_null(answers.indices, len(naming)).to_numpy(zero_copy_only=False)
        names_one = np.array([*naming, False])[which]
        has_answer = pc.is_valid(failed.column(ANSWER)).to_numpy()
        return np.asarray((of_call | names_one) & ~erased & has_answer, dtype=bool)

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


def _any_of(texts: Sequence[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(map(re.escape, texts))) if texts else None


def _length_prefix(number: int) -> bytes:
    prefix = bytearray()
    while number > 0x7F:
        prefix.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*prefix, number))


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
    """Results of one task."""

    files: list[ScannedFile]


@dataclass(frozen=True)
class _ScannedGroup:
    """A row group: mask of the people's rows, these rows as `RECORDS`, and what else a `ScannedFile` has of them."""

    mask: Mask
    records: pa.Table
    by_bytes: pa.Table
    unsearchable: int


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
        masks = [group.mask for group in groups]
        answers = self._answers(name, file, masks)
        rows = _count(masks)
        unsearchable = sum(group.unsearchable for group in groups)
        if not rows and not _count(answers):
            return ScannedFile(name, path, unsearchable=unsearchable)
        files = _without(self.tables[name], path, file, masks, answers) if self.rewrite else []
        records = pa.concat_tables([group.records for group in groups])
        by_bytes = pa.concat_tables([group.by_bytes for group in groups])
        return ScannedFile(name, path, rows, files, records, unsearchable, by_bytes=by_bytes, answers=_count(answers))

    def _scan_group(self, name: str, path: str, file: pq.ParquetFile, group: int) -> _ScannedGroup:
        people = self.people
        rows = file.read_row_group(group, people.columns(name, file.schema_arrow.names))
        if is_silver(name) and people.entity not in rows.column_names:
            game = partition_of(path).get(people.entity)
            rows = rows.append_column(people.entity, pa.repeat(pa.scalar(game, pa.string()), rows.num_rows))
        mask = people.mask(name, rows)
        by_bytes = RECORDS.empty_table()
        unsearchable = 0
        if name == BRONZE and (nameless := people.nameless(rows)).any():
            # Only where needed: the bytes are most of the file.
            traced = people.traced(file.read_row_group(group, list(BYTES)), nameless)
            by_bytes = self._records(name, rows.filter(pa.array(traced)))
            unsearchable = int((nameless & ~traced).sum())
            mask |= traced
        if name == QUARANTINE:
            unsearchable = int((people.unsearchable(rows) & ~mask).sum())
        records = self._records(name, rows.filter(pa.array(mask))) if mask.any() else RECORDS.empty_table()
        return _ScannedGroup(mask, records, by_bytes, unsearchable)

    def _records(self, table: str, rows: pa.Table) -> pa.Table:
        """The rows as `RECORDS`; of quarantine, `game` only for rejected rows that are not in silver."""
        columns = {name: rows.column(name) for name in rows.column_names}
        if table != QUARANTINE:
            columns["game"] = columns.get(self.people.entity, pa.nulls(rows.num_rows, pa.string()))
        elif "game" in columns and "replayed_batch" in columns:
            columns["game"] = pc.if_else(pc.is_null(columns["replayed_batch"]), columns["game"], pa.scalar(None, pa.string()))
        arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(rows.num_rows, f.type) for f in RECORDS]
        return pa.Table.from_arrays(arrays, schema=RECORDS)

    def _answers(self, name: str, file: pq.ParquetFile, masks: Sequence[Mask]) -> list[Mask]:
        """By row group, the remaining rows of failed calls that lose the answer; a call's rows may be in several groups."""
        if name != EXPORT_FAILED_CALLS or not masks:
            return []
        answered = self.people.answered(file.read(["key", ANSWER]), np.concatenate(masks))
        return np.split(answered, np.cumsum([len(mask) for mask in masks])[:-1])


def _count(masks: Iterable[Mask]) -> int:
    return sum(int(mask.sum()) for mask in masks)


def _without(table: Table, path: str, file: pq.ParquetFile, masks: Sequence[Mask], answers: Sequence[Mask]) -> list[StagedFile]:
    """Stage a file's remaining rows, in the table's types: another engine's file may have others (INT96 times)."""
    handle = table.open_to_read()
    types = {f.name: f.type for f in pa.schema(handle.schema())} if handle is not None else {}
    own = file.schema_arrow.remove_metadata()
    schema = pa.schema([pa.field(f.name, types.get(f.name, f.type)) for f in own])
    writer = StagedWriter(table, schema, folder=path[: path.rfind("/") + 1])
    for group, mask in enumerate(masks):
        if mask.all():
            continue
        rows = file.read_row_group(group).replace_schema_metadata(None).cast(schema)
        if answers:
            index = schema.get_field_index(ANSWER)
            field_of_answer = schema.field(index)
            kept = pc.if_else(pa.array(answers[group]), pa.scalar(None, field_of_answer.type), rows.column(index))
            rows = rows.set_column(index, field_of_answer, kept)
        writer.write(rows.filter(pa.array(~mask)) if mask.any() else rows)
    return writer.close()
