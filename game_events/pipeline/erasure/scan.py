"""Scans files for rows of data subjects, and stages copies without these rows; nothing is committed here.

One Spark job scans files of any number of tables, one per row; only the columns with ids are read. The ids are part of the
pickled function, so that no plan or log shows them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from game_events.lakehouse.commits.commit import Commit
from game_events.lakehouse.commits.transactions import Txn, counter, txn
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, file_system, partition_of
from game_events.lakehouse.data.worker_job import Result, WorkerJob
from game_events.lakehouse.tables import BRONZE, QUARANTINE, REST_FAILED_CHUNKS, Table, is_silver, table_id
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.subjects import ANSWER, BYTES, RECORDS, DataSubjects
from game_events.pipeline.state.commit_info import ERASED_ROWS

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
        if name != REST_FAILED_CHUNKS or not masks:
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
    expected: Mapping[str, int | None] = _NO_MORE,
    advance: Mapping[str, int] = _NO_MORE,
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
        expected={Txn.ERASURES: txn(handle, Txn.ERASURES), **expected},
        advance={Txn.ERASURES: counter(handle, Txn.ERASURES) + 1, **advance},
        table_id=table_id(handle),
        rewritten=frozenset(found.path for found in hits),
        info={"erasure": "rows of erased data subjects", ERASED_ROWS: str(rows), "run_id": run_id, **info},
    )
