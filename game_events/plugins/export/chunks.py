"""Cuts sorted rows into chunks in workers, and writes them as files of the outbox.

A chunk is the body of one call: neighbouring rows of one table, limited by number and by bytes of JSON; a larger row is a chunk
by itself. Its key is a hash of its rows' origin: rows that are planned again after a loss of the outbox get the same key.

The export's three tables: outbox (chunks that wait), delivery log (outcome of each chunk), failed chunks.

A chunk is the content of one call. Its rows are in `export_calls` as JSON, so that each attempt sends the same bytes under the
same key, even after a change of the source table (a full refresh, a new version of an aggregate). A failed chunk was
refused, or accepted in none of its attempts.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark import TaskContext

from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.data.worker_job import StagedFiles, WorkerJob
from game_events.lakehouse.tables import EXPORT_CALLS, EXPORT_FAILED_CALLS, EXPORT_OUTCOMES, Lakehouse, Table, add_actions

#: What Spark hands over: rows of one group (a game, a file) in a row, in the order of their coordinates.
ROWS = "_group string, _batch bigint, _place string, _kafka_partition int, _kafka_offset bigint, _person string, json string"

#: Bits of a chunk's number that count within a task; the task's number is above them.
COUNT_BITS = 32

KEY_CHARS = 32

#: Rows of a row group: each task that sends opens every file and reads those with its share.
GROUP_ROWS = 2_048


@dataclass(frozen=True)
class ChunkOrigin:
    """Origin of a group's rows.

    Attributes:
        source: the table, or the file.
        game: the game, if the source is one game's.
        era: incarnation of the source: Delta's table id, and counters of replacements of its rows.
        batch_from, batch_to: the rows' bronze batches (from, to].
    """

    source: str
    game: str | None
    era: str
    batch_from: int = 0
    batch_to: int = 0


@dataclass(frozen=True)
class CutChunks(WorkerJob[StagedFiles]):
    """Writes chunks of rows (`ROWS`) of groups with some origins to the outbox, as files of the next slice; picklable."""

    result: ClassVar[type] = StagedFiles
    table: Table
    person: str
    slice: int
    rows_per_call: int
    bytes_per_call: int
    origins: Mapping[str, ChunkOrigin] = field(repr=False)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> StagedFiles:
        """Write a task's chunks."""
        context = TaskContext.get()
        writer = StagedWriter(self.table, outbox_schema(self.person), group_rows=GROUP_ROWS)
        for rows in self.cut((pa.Table.from_batches([b]) for b in batches), context.partitionId() if context else 0):
            writer.write(rows)
        return StagedFiles(writer.close())

    def cut(self, parts: Iterable[pa.Table], task: int) -> Iterator[pa.Table]:
        """Rows of the outbox; a chunk may span several parts."""
        left: pa.Table | None = None
        number, positions = task << COUNT_BITS, dict.fromkeys(self.origins, 0)
        for part in parts:
            rows = part if left is None else pa.concat_tables([left, part])
            starts = self._starts(rows)
            # The last one may go on.
            whole = int(starts[-1]) if len(starts) else 0
            if whole:
                yield self._chunks(rows.slice(0, whole), starts[:-1], number, positions)
                number += len(starts) - 1
            left = rows.slice(whole)
        if left is not None and left.num_rows:
            yield self._chunks(left, self._starts(left), number, positions)

    def _starts(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Row at which each chunk begins."""
        if not rows.num_rows:
            return np.empty(0, dtype=np.int64)
        sizes = _sizes(rows)
        groups = rows.column("_group").combine_chunks()
        changed = pc.not_equal(groups.slice(1), groups.slice(0, len(groups) - 1)).to_numpy(zero_copy_only=False)
        bounds = np.concatenate([[0], np.flatnonzero(changed) + 1, [rows.num_rows]])
        if sizes.max() * self.rows_per_call < self.bytes_per_call:
            found = [np.arange(begin, end, self.rows_per_call) for begin, end in pairwise(bounds)]
            return np.concatenate(found).astype(np.int64)
        ends = np.cumsum(sizes)
        starts: list[int] = []
        for begin, end in pairwise(bounds.tolist()):
            at = begin
            while at < end:
                starts.append(at)
                limit = (ends[at - 1] if at else 0) + self.bytes_per_call - 1
                fits = int(np.searchsorted(ends, limit, side="right"))
                at = max(at + 1, min(fits, at + self.rows_per_call, end))
        return np.asarray(starts, dtype=np.int64)

    def _chunks(self, rows: pa.Table, starts: npt.NDArray[np.int64], number: int, positions: dict[str, int]) -> pa.Table:
        """Whole chunks as rows of the outbox."""
        counts = np.diff(np.append(starts, rows.num_rows))
        lasts = starts + counts - 1
        groups = rows.column("_group").take(pa.array(starts)).to_pylist()
        origins = [self.origins[g] for g in groups]
        first, last = (_coordinates(rows.take(pa.array(at))) for at in (starts, lasts))
        for chunk, (group, count) in enumerate(zip(groups, counts.tolist(), strict=True)):
            # Rows without coordinates are named by their position among those that the batches have changed.
            if first[chunk] is None:
                first[chunk], last[chunk] = f"#{positions[group]}", f"#{positions[group] + count - 1}"
            positions[group] += count
        sizes = np.add.reduceat(_sizes(rows), starts) + 1
        of_chunk = {
            "slice": np.full(len(starts), self.slice),
            "chunk": np.arange(number, number + len(starts)),
            "key": [_key(o, a, b) for o, a, b in zip(origins, first, last, strict=True)],
            "source": [o.source for o in origins],
            "game": [o.game for o in origins],
            "batch_from": [o.batch_from for o in origins],
            "batch_to": [o.batch_to for o in origins],
            "first": first,
            "last": last,
            "rows": counts,
            "bytes": sizes,
        }
        schema = outbox_schema(self.person)
        where = pa.array(np.repeat(np.arange(len(starts)), counts))
        columns = {name: pa.array(values, schema.field(name).type).take(where) for name, values in of_chunk.items()}
        columns["number"] = pa.array(np.arange(rows.num_rows) - np.repeat(starts, counts))
        columns |= {self.person: rows.column("_person"), "json": rows.column("json"), "_kafka_topic": rows.column("_place")}
        columns |= {name: rows.column(name) for name in ("_kafka_partition", "_kafka_offset", "_batch")}
        return pa.Table.from_pydict(columns, schema=schema)


def _sizes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Bytes of each row in an array: its JSON, and the comma or bracket behind it."""
    return np.asarray(pc.binary_length(rows.column("json")).to_numpy(), dtype=np.int64) + 1


def _coordinates(rows: pa.Table) -> list[str | None]:
    """Coordinates of rows, as text; None: the row has none."""
    found: list[str | None] = []
    names = ("_place", "_kafka_partition", "_kafka_offset")
    for place, partition, offset in zip(*(rows.column(n).to_pylist() for n in names), strict=True):
        found.append(None if offset is None else f"@{offset}" if partition is None else f"{place}[{partition}]@{offset}")
    return found


def _key(origin: ChunkOrigin, first: str | None, last: str | None) -> str:
    parts = (origin.source, origin.era, origin.batch_from, origin.batch_to, first, last)
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:KEY_CHARS]


#: Outcomes in `export_outcomes`.
DELIVERED, FAILED = "delivered", "dead"

_TYPES = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC")}


def _columns(text: str) -> pa.Schema:
    """Columns of `name type, ...`."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in (column.split() for column in text.split(","))])


#: A slice is the chunks of one commit; `chunk` is unique in it; `key` is the idempotency key.
CHUNK = _columns(
    "slice bigint, chunk bigint, key string, source string, game string, batch_from bigint, batch_to bigint, first string, "
    "last string, rows bigint, bytes bigint"
)

_ATTEMPTS = _columns("attempts int, at timestamp, run_id string")

DELIVERIES = pa.schema([*CHUNK, *_columns("outcome string, status int"), *_ATTEMPTS])

_FAILED = pa.schema([*_columns("status int, reason string, answer string"), *_ATTEMPTS])

#: Columns of a chunk's outcome.
OUTCOME = pa.schema([*_columns("outcome string"), *_FAILED])


def outbox_schema(person: str) -> pa.Schema:
    """Columns of `export_calls`: the chunk, number and JSON of a row, and the columns by which an erasure finds the row.

    `person` is the one with the data subject's key.
    """
    place = "_kafka_topic string, _kafka_partition int, _kafka_offset bigint, _batch bigint"
    return pa.schema([*CHUNK, *_columns("number int, json string"), pa.field(person, pa.string()), *_columns(place)])


def failed_chunks_schema(person: str) -> pa.Schema:
    """Columns of `export_failed_calls`."""
    return pa.schema([*outbox_schema(person), *_FAILED])


@dataclass(frozen=True)
class ExportTables:
    """The export's tables; picklable. `person`: column with the data subject's key."""

    outbox: Table
    deliveries: Table
    failed_chunks: Table
    person: str

    @classmethod
    def of(cls, lakehouse: Lakehouse, person: str) -> Self:
        """The tables of a lakehouse."""
        outbox, deliveries, failed = map(lakehouse.table, (EXPORT_CALLS, EXPORT_OUTCOMES, EXPORT_FAILED_CALLS))
        return cls(outbox, deliveries, failed, person)

    def chunks(self, outbox: DeltaTable | None) -> pa.Table:
        """The outbox's chunks, each once (`CHUNK`)."""
        if outbox is None:
            return CHUNK.empty_table()
        return read_arrow(self.outbox, outbox, CHUNK.names).group_by(CHUNK.names).aggregate([]).select(CHUNK.names)

    def settled(self, deliveries: DeltaTable | None, since: int, columns: list[str] | None = None) -> pa.Table:
        """Rows (or some columns) of the delivery log, of slices from a number on; older files are not opened."""
        if deliveries is None:
            return DELIVERIES.empty_table().select(columns or DELIVERIES.names)
        return read_arrow(self.deliveries, deliveries, columns, _files_since(deliveries, since))

    def waiting(self, outbox: DeltaTable | None, deliveries: DeltaTable | None) -> pa.Table:
        """Chunks without an outcome, in order (`CHUNK`)."""
        chunks = self.chunks(outbox)
        if not chunks.num_rows:
            return chunks
        done = self.settled(deliveries, pc.min(chunks.column("slice")).as_py(), ["slice", "chunk"])
        left = chunks.join(done, ["slice", "chunk"], join_type="left anti")
        return left.select(CHUNK.names).sort_by([("slice", "ascending"), ("chunk", "ascending")])


def _files_since(handle: DeltaTable, number: int) -> list[str]:
    """Paths of files that may have rows of a slice or later ones."""
    actions = add_actions(handle)
    if "max.slice" in actions.column_names:
        highest = actions.column("max.slice")
        actions = actions.filter(pc.or_kleene(pc.is_null(highest), pc.greater_equal(highest, number)))
    return [str(path) for path in actions.column("path").to_pylist()]
