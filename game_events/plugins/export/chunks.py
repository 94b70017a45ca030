"""The export's three tables: outbox (chunks that wait), delivery log (outcome of each chunk), failed chunks.

A chunk is the content of one call: neighbouring rows of one table (`worker.CutChunks`). Its rows are in `rest_outbox` as JSON,
so that each attempt sends the same bytes under the same key, even after a change of the source table (a full refresh, a new
version of an aggregate). A failed chunk was refused, or accepted in none of its attempts.
"""

from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.tables import REST_DELIVERIES, REST_FAILED_CHUNKS, REST_OUTBOX, Lakehouse, Table, add_actions

#: What Spark hands over: rows of one group (a game, a file) in a row, in the order of their coordinates.
ROWS = "_group string, _batch bigint, _place string, _kafka_partition int, _kafka_offset bigint, _person string, json string"


#: Outcomes in `rest_deliveries`.
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
    """Columns of `rest_outbox`: the chunk, number and JSON of a row, and the columns by which an erasure finds the row.

    `person` is the one with the data subject's key.
    """
    place = "_kafka_topic string, _kafka_partition int, _kafka_offset bigint, _batch bigint"
    return pa.schema([*CHUNK, *_columns("number int, json string"), pa.field(person, pa.string()), *_columns(place)])


def failed_chunks_schema(person: str) -> pa.Schema:
    """Columns of `rest_dead_letters`."""
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
        outbox, deliveries, failed = map(lakehouse.table, (REST_OUTBOX, REST_DELIVERIES, REST_FAILED_CHUNKS))
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
