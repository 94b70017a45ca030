"""Scans files for rows of data subjects, and stages copies without these rows; nothing is committed here.

One Spark job scans files of any number of tables, one per row; only the columns with ids are read. The ids are part of the
pickled function, so that no plan or log shows them.

The data subjects of an erasure, and the masks that select their rows in each table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from game_events.lakehouse.commits.commit import Commit
from game_events.lakehouse.commits.transactions import Txn, counter, txn
from game_events.lakehouse.data.columns import COORDINATES, HEADERS
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, file_system, partition_of
from game_events.lakehouse.data.worker_job import Result, WorkerJob
from game_events.lakehouse.tables import BRONZE, EXPORT_FAILED_CALLS, QUARANTINE, Layer, Table, is_person, is_silver, table_id
from game_events.pipeline.context import Pipeline
from game_events.pipeline.offsets import ERASED_ROWS
from game_events.plugins.governance.record_filter import MIN_SEARCHED_BYTES, as_texts, header_values, texts_of

#: Undecoded columns that may hold an id.
BYTES = ("_kafka_key", HEADERS, "_raw_value")

#: Records that are Python objects at the same time.
_ROWS_AT_ONCE = 10_000

#: Column of failed chunks: the receiver's answer.
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
        found = [head + raw for raw in self._searched for head in (_varint(len(raw)), _varint(2 * len(raw)))]
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
        if table == EXPORT_FAILED_CALLS:
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
        """Mask of the remaining rows of failed chunks with an answer that has an id, or is to a call with erased rows."""
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


def _varint(number: int) -> bytes:
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


def by_game_and_batch(records: pa.Table) -> Counter[tuple[str, int]]:
    """(game, batch) -> number of distinct records."""
    each = records.group_by(RECORDS.names).aggregate([])
    return Counter(zip(each.column("game").to_pylist(), each.column("_batch").to_pylist(), strict=True))


#: Files up to which the driver scans them itself: a Spark job costs more.
FILES_IN_DRIVER = 4

#: Tasks of the job.
TASKS = 64

_Mask = npt.NDArray[np.bool_]

_NO_MORE: Mapping[str, Any] = {}


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
        answers: remaining rows of failed chunks that lose the receiver's answer, as it may have an id.
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
        """By row group, the remaining rows of failed chunks that lose the answer; a call's rows may be in several groups."""
        if name != EXPORT_FAILED_CALLS or not masks:
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


def scan_files(
    pipeline: Pipeline, subjects: DataSubjects, files: Sequence[tuple[str, str]], *, rewrite: bool = False, old: bool = False
) -> list[ScannedFile]:
    """Scan files, given as (table, path); `rewrite`, `old`: as in `EraseTask`."""
    tables = {name: pipeline.lakehouse.table(name) for name, _ in files}
    task = EraseTask(tables, subjects, rewrite, old)
    return [file for found in run_task(pipeline, task, files) for file in found.files]


def run_task(pipeline: Pipeline, task: WorkerJob[Result], files: Sequence[tuple[str, str]]) -> list[Result]:
    """Results of a job over files, given as (table, path): by Spark, or without it if the files are few."""
    rows = pa.table({"table": [t for t, _ in files], "path": [p for _, p in files]})
    if len(files) <= FILES_IN_DRIVER:
        return [task.stage(rows.to_batches())]
    return task.collect(pipeline.spark.createDataFrame(rows).repartition(min(len(files), TASKS)))


def without(
    table: Table,
    handle: DeltaTable,
    hits: Sequence[ScannedFile],
    run_id: str,
    *,
    expect_transactions: Mapping[str, int | None] = _NO_MORE,
    set_transactions: Mapping[str, int] = _NO_MORE,
    info: Mapping[str, str] = _NO_MORE,
) -> Commit:
    """The commit that replaces scanned files by their copies, and increments the table's `erasures`.

    `hits`: files with rows to erase. `expected`, `advance`, `info`: further ones than those of each erasure.
    """
    rows = sum(found.rows for found in hits)
    return Commit(
        table,
        pa.schema([]),  # no file has a column that the table lacks
        [file for found in hits for file in found.files],
        expect_transactions={Txn.ERASURES: txn(handle, Txn.ERASURES), **expect_transactions},
        set_transactions={Txn.ERASURES: counter(handle, Txn.ERASURES) + 1, **set_transactions},
        table_id=table_id(handle),
        rewritten=frozenset(found.path for found in hits),
        info={"erasure": "rows of erased data subjects", ERASED_ROWS: str(rows), "run_id": run_id, **info},
    )
