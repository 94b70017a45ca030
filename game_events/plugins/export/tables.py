"""The export's three tables: planned calls, delivery log (outcome of each call), failed calls.

A chunk is the content of one call: neighbouring rows of one table (`worker.CutChunks`). Its rows are planned as JSON, so that
each attempt sends the same bytes under the same key, even after a change of the source table (a full refresh, a new version of
an aggregate). A failed call was refused, or accepted in none of its attempts.
"""

import sys
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse.data.reading import may_hold, read_arrow
from game_events.lakehouse.tables import EXPORT_CALLS, EXPORT_FAILED_CALLS, EXPORT_OUTCOMES, Lakehouse, Table, add_actions

#: What Spark hands over: rows of one group (a game, a file) in a row, in the order of their coordinates.
ROWS = "_group string, _batch bigint, _place string, _kafka_partition int, _kafka_offset bigint, _person string, json string"

#: Outcomes in the delivery log; every other one is an older word for a failed call.
DELIVERED = "delivered"
FAILED = "failed"

_TYPES = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC")}


def _columns(text: str) -> pa.Schema:
    """Columns of `name type, ...`."""
    columns = [column.split() for column in text.split(",")]
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns])


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


def planned_schema(person: str) -> pa.Schema:
    """Columns of planned calls: the chunk, number and JSON of a row, and the columns by which an erasure finds the row.

    `person`: the column with a person's id.
    """
    place = "_kafka_topic string, _kafka_partition int, _kafka_offset bigint, _batch bigint"
    return pa.schema([*CHUNK, *_columns("number int, json string"), pa.field(person, pa.string()), *_columns(place)])


def failed_calls_schema(person: str) -> pa.Schema:
    """Columns of failed calls."""
    return pa.schema([*planned_schema(person), *_FAILED])


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
class ExportTables:
    """The export's tables; picklable. `person`: column with a person's id."""

    planned: Table
    deliveries: Table
    failed_calls: Table
    person: str

    @classmethod
    def of(cls, lakehouse: Lakehouse, person: str) -> Self:
        """The tables of a lakehouse."""
        return cls(
            lakehouse.table(EXPORT_CALLS), lakehouse.table(EXPORT_OUTCOMES), lakehouse.table(EXPORT_FAILED_CALLS), person
        )

    def chunks(self, planned: DeltaTable | None) -> pa.Table:
        """The planned chunks, each once (`CHUNK`)."""
        if planned is None:
            return CHUNK.empty_table()
        return read_arrow(self.planned, planned, CHUNK.names).group_by(CHUNK.names).aggregate([]).select(CHUNK.names)

    def settled(self, deliveries: DeltaTable | None, since: int, columns: list[str] | None = None) -> pa.Table:
        """Rows (or some columns) of the delivery log, of slices from a number on; older files are not opened."""
        if deliveries is None:
            return DELIVERIES.empty_table().select(columns or DELIVERIES.names)
        actions = add_actions(deliveries)
        actions = actions.filter(may_hold(actions, "slice", since, sys.maxsize))
        return read_arrow(self.deliveries, deliveries, columns, actions.column("path").to_pylist())

    def waiting(self, planned: DeltaTable | None, deliveries: DeltaTable | None) -> pa.Table:
        """Planned chunks without an outcome, in order (`CHUNK`)."""
        chunks = self.chunks(planned)
        if not chunks.num_rows:
            return chunks
        done = self.settled(deliveries, pc.min(chunks.column("slice")).as_py(), ["slice", "chunk"])
        left = chunks.join(done, ["slice", "chunk"], join_type="left anti")
        return left.select(CHUNK.names).sort_by([("slice", "ascending"), ("chunk", "ascending")])
