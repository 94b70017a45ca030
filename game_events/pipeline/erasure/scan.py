"""Workers' part of an erasure: files that hold rows of some gamers, written anew without them.

One Spark job takes files of any number of tables, a row of it being a file: only columns that tell whose a row is are read of
each, only files with such rows are written anew. Nothing is committed here. The ids travel inside the function, so that no plan
or log shows them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from game_events.lakehouse.data.staging import REPORT_SCHEMA, StagedFile, StagedWriter, file_system, report
from game_events.lakehouse.tables import BRONZE, QUARANTINE, REST_DEAD_LETTERS, Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.subjects import ANSWER, BYTES, RECORDS, Wanted

#: Up to so many files the driver looks at by itself: a Spark job costs more.
FILES_IN_DRIVER = 4
#: Tasks of the job.
TASKS = 64
#: Batches of (table, path) -> the report (`REPORT_SCHEMA`).
FileTask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class ScannedFile:
    """One file that was looked at.

    Attributes:
        table, path: which.
        rows: rows of theirs in it.
        files: what stands for it without them; none if all its rows were theirs, or nothing was to be written.
        records: these rows, as `RECORDS`.
        unsearchable: rows that stay and of which nobody can say whose they are.
        traced: of bronze, those of `records` that only their key or their bytes tell of.
        unreadable: it is no whole Parquet file: it is being written, or the run that wrote it was killed.
        quoted: dead letters that stay without the receiver's answer, as it may speak of them.
    """

    table: str
    path: str
    rows: int = 0
    files: list[StagedFile] = field(default_factory=list)
    records: pa.Table = field(default_factory=RECORDS.empty_table)
    unsearchable: int = 0
    unreadable: bool = False
    traced: pa.Table = field(default_factory=RECORDS.empty_table)
    quoted: int = 0

    @property
    def anything(self) -> bool:
        """Whether there is anything of theirs in it."""
        return self.rows > 0 or self.quoted > 0

    def to_json(self) -> str:
        """For the way back through Spark."""
        body = {"table": self.table, "path": self.path, "rows": self.rows, "unsearchable": self.unsearchable}
        body |= {"unreadable": self.unreadable, "quoted": self.quoted}
        packed = {"records": _packed(self.records), "traced": _packed(self.traced)}
        return json.dumps(body | {"files": [f.to_json() for f in self.files]} | packed)

    @classmethod
    def from_json(cls, text: str) -> ScannedFile:
        """The inverse of `to_json`."""
        body = json.loads(text)
        files = [StagedFile.from_json(f) for f in body["files"]]
        records, traced = _unpacked(body["records"]), _unpacked(body["traced"])
        counts = (body["unsearchable"], body["unreadable"], traced, body["quoted"])
        return cls(body["table"], body["path"], body["rows"], files, records, *counts)


@dataclass(frozen=True)
class EraseTask:
    """What a worker needs; picklable.

    Attributes:
        tables: name -> where it is.
        wanted: whose rows.
        rewrite: files with such rows are written anew without them; else they are only found.
        old: of files that no version of today names, one may be deleted by maintenance meanwhile (then there is nothing in
            it), or not be whole.
    """

    tables: Mapping[str, Table]
    wanted: Wanted
    rewrite: bool
    old: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: consumes (table, path), yields the report (`REPORT_SCHEMA`)."""
        yield report(
            ("file", self.look(table, path).to_json())
            for batch in batches
            for table, path in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        )

    def look(self, name: str, path: str) -> ScannedFile:
        """One file; a row group of it is in memory at a time.

        Raises:
            FileNotFoundError, pa.ArrowInvalid: it is gone, or no whole Parquet file, and not `old`.
        """
        try:
            return self._look(name, path)
        except FileNotFoundError:
            if not self.old:
                raise
            return ScannedFile(name, path)
        except pa.ArrowInvalid:
            if not self.old:
                raise
            return ScannedFile(name, path, unreadable=True)

    def _look(self, name: str, path: str) -> ScannedFile:
        table = self.tables[name]
        system, prefix = file_system(table)
        with system.open_input_file(prefix + path) as source:
            file = pq.ParquetFile(source)
            columns = self.wanted.columns(name, file.schema_arrow.names)
            masks, parts, traced, unsearchable = [], [], [], 0
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, columns)
                mask = self.wanted.mask(name, rows)
                if name == BRONZE and (nameless := self.wanted.nameless(rows)).any():
                    # Only here: bytes of all rows are most of the file.
                    theirs = self.wanted.traced(file.read_row_group(group, list(BYTES)), nameless)
                    traced.append(_records(name, rows.filter(pa.array(theirs)), self.wanted.entity))
                    unsearchable += int((nameless & ~theirs).sum())
                    mask |= theirs
                masks.append(mask)
                if mask.any():
                    parts.append(_records(name, rows.filter(pa.array(mask)), self.wanted.entity))
                if name == QUARANTINE:
                    unsearchable += int((self.wanted.unsearchable(rows) & ~mask).sum())
            hits = sum(int(mask.sum()) for mask in masks)
            quoted = self._quoted(name, file, masks)
            if not hits and not any(mask.any() for mask in quoted):
                return ScannedFile(name, path, unsearchable=unsearchable)
            files = _without(table, file, masks, quoted) if self.rewrite else []
        by_bytes, theirs = (pa.concat_tables([RECORDS.empty_table(), *found]) for found in (traced, parts))
        answers = sum(int(mask.sum()) for mask in quoted)
        return ScannedFile(name, path, hits, files, theirs, unsearchable, traced=by_bytes, quoted=answers)

    def _quoted(self, name: str, file: pq.ParquetFile, masks: Sequence[npt.NDArray[np.bool_]]) -> list[npt.NDArray[np.bool_]]:
        """Of dead letters, by row group: rows that stay, and lose their answer. A call's rows may be in several of them."""
        if name != REST_DEAD_LETTERS or not masks:
            return []
        found = self.wanted.quoted(file.read(["key", ANSWER]), np.concatenate(masks))
        return np.split(found, np.cumsum([len(mask) for mask in masks])[:-1])


def _packed(records: pa.Table) -> str:
    if not records.num_rows:
        return ""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RECORDS) as writer:
        writer.write_table(records)
    return base64.b64encode(sink.getvalue()).decode()


def _unpacked(text: str) -> pa.Table:
    return pa.ipc.open_stream(base64.b64decode(text)).read_all() if text else RECORDS.empty_table()


def _records(table: str, rows: pa.Table, entity: str) -> pa.Table:
    """The rows as `RECORDS`. Of quarantine, `game` only of rows that are kept out of silver: others are no business of it."""
    taken = {n: rows.column(n) for n in rows.column_names}
    if table != QUARANTINE:
        taken["game"] = taken.get(entity, pa.nulls(rows.num_rows, pa.string()))
    elif "game" in taken and "replayed_batch" in taken:
        taken["game"] = pc.if_else(pc.is_null(taken["replayed_batch"]), taken["game"], pa.scalar(None, pa.string()))
    arrays = [taken[f.name].cast(f.type) if f.name in taken else pa.nulls(rows.num_rows, f.type) for f in RECORDS]
    return pa.Table.from_arrays(arrays, schema=RECORDS)


def _without(
    table: Table,
    file: pq.ParquetFile,
    masks: Sequence[npt.NDArray[np.bool_]],
    quoted: Sequence[npt.NDArray[np.bool_]] = (),
) -> list[StagedFile]:
    """What stays of a file, in the table's types: those of a file that another engine has written may differ (INT96 times)."""
    handle = table.open()
    types = {f.name: f.type for f in pa.schema(handle.schema())} if handle is not None else {}
    own = file.schema_arrow.remove_metadata()
    schema = pa.schema([pa.field(f.name, types.get(f.name, f.type)) for f in own])
    writer = StagedWriter(table, schema)
    for group, mask in enumerate(masks):
        if not mask.all():
            rows = file.read_row_group(group).replace_schema_metadata(None).cast(schema)
            if quoted:
                at = schema.get_field_index(ANSWER)
                answers = pc.if_else(pa.array(quoted[group]), pa.scalar(None, schema.field(at).type), rows.column(at))
                rows = rows.set_column(at, schema.field(at), answers)
            writer.write(rows.filter(pa.array(~mask)) if mask.any() else rows)
    return writer.close()


def look_at(pipeline: Pipeline, task: EraseTask, files: Sequence[tuple[str, str]]) -> list[ScannedFile]:
    """Look at files of any tables, in one Spark job; a handful of them without any.

    Args:
        pipeline: the parts; Spark starts only if the files are many.
        task: what to look for.
        files: (table, path) of each.
    """
    if len(files) <= FILES_IN_DRIVER:
        return [task.look(name, path) for name, path in files]
    return [ScannedFile.from_json(body) for body in by_workers(pipeline, task, files)]


def by_workers(pipeline: Pipeline, task: FileTask, files: Sequence[tuple[str, str]]) -> list[str]:
    """What a task reports of (table, path), in one Spark job."""
    rows = pipeline.spark.createDataFrame(pa.table({"table": [t for t, _ in files], "path": [p for _, p in files]}))
    found = rows.repartition(min(len(files), TASKS)).mapInArrow(task, REPORT_SCHEMA).collect()
    return [line["body"] for line in found]
