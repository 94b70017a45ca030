"""The export's three tables: outbox (chunks that wait), delivery log (outcome of each chunk), dead letters (given up).

A chunk is what one call sends. Its rows are in `rest_outbox` as the JSON that is sent, so that whatever happens to their
source table (compaction, a full refresh, new versions of an aggregate), each attempt sends the same bytes under the same key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse.data.snapshot import read_arrow
from game_events.lakehouse.tables import REST_DEAD_LETTERS, REST_DELIVERIES, REST_OUTBOX, Lakehouse, Table

TIME = pa.timestamp("us", tz="UTC")
DELIVERED, DEAD = "delivered", "dead"

#: What a chunk is known by. A slice is what one commit has fixed; `chunk` is unique in it; `key` is the idempotency key.
CHUNK = [
    pa.field("slice", pa.int64()),
    pa.field("chunk", pa.int64()),
    pa.field("key", pa.string()),
    pa.field("source", pa.string()),
    pa.field("game", pa.string()),
    pa.field("batch_from", pa.int64()),
    pa.field("batch_to", pa.int64()),
    pa.field("first", pa.string()),
    pa.field("last", pa.string()),
    pa.field("rows", pa.int64()),
    pa.field("bytes", pa.int64()),
]
DELIVERIES = pa.schema(
    [
        *CHUNK,
        pa.field("outcome", pa.string()),
        pa.field("status", pa.int32()),
        pa.field("attempts", pa.int32()),
        pa.field("at", TIME),
        pa.field("run_id", pa.string()),
    ]
)


def _rows(person: str) -> list[pa.Field]:
    """One row of a chunk: its number, what is sent, and what an erasure finds it by."""
    return [
        pa.field("number", pa.int32()),
        pa.field("json", pa.string()),
        pa.field(person, pa.string()),
        pa.field("_kafka_topic", pa.string()),
        pa.field("_kafka_partition", pa.int32()),
        pa.field("_kafka_offset", pa.int64()),
        pa.field("_batch", pa.int64()),
    ]


def outbox_schema(person: str) -> pa.Schema:
    """Columns of `rest_outbox`; `person` is the one with the data subject's key."""
    return pa.schema([*CHUNK, *_rows(person)])


def dead_letters_schema(person: str) -> pa.Schema:
    """Columns of `rest_dead_letters`."""
    more = [
        pa.field("status", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("at", TIME),
        pa.field("run_id", pa.string()),
    ]
    return pa.schema([*CHUNK, *_rows(person), *more])


@dataclass(frozen=True)
class ExportTables:
    """Where they are; picklable.

    Attributes:
        outbox, deliveries, dead_letters: the tables.
        person: column with the data subject's key.
    """

    outbox: Table
    deliveries: Table
    dead_letters: Table
    person: str

    @classmethod
    def of(cls, lakehouse: Lakehouse, person: str) -> ExportTables:
        """Those of a lakehouse."""
        outbox, deliveries, dead = map(lakehouse.table, (REST_OUTBOX, REST_DELIVERIES, REST_DEAD_LETTERS))
        return cls(outbox, deliveries, dead, person)

    def chunks(self, outbox: DeltaTable | None) -> pa.Table:
        """The outbox's chunks, each once (`CHUNK`)."""
        if outbox is None:
            return pa.schema(CHUNK).empty_table()
        names = [f.name for f in CHUNK]
        return read_arrow(self.outbox, outbox, names).group_by(names).aggregate([]).select(names)

    def settled(self, deliveries: DeltaTable | None, since: int, columns: list[str] | None = None) -> pa.Table:
        """Ledger rows, or some columns of them, of slices from a number on; older ones' files are not opened."""
        if deliveries is None:
            found = DELIVERIES.empty_table()
            return found if columns is None else found.select(columns)
        return read_arrow(self.deliveries, deliveries, columns, _files_since(deliveries, since))

    def waiting(self, outbox: DeltaTable | None, deliveries: DeltaTable | None) -> pa.Table:
        """Chunks that nothing has become of yet, in their order (`CHUNK`)."""
        chunks = self.chunks(outbox)
        if not chunks.num_rows:
            return chunks
        done = self.settled(deliveries, pc.min(chunks.column("slice")).as_py(), ["slice", "chunk"])
        left = chunks.join(done, ["slice", "chunk"], join_type="left anti")
        return left.select([f.name for f in CHUNK]).sort_by([("slice", "ascending"), ("chunk", "ascending")])


def _files_since(handle: DeltaTable, number: int) -> list[str]:
    """Paths of files that may hold rows of that slice or later ones."""
    actions = pa.table(handle.get_add_actions(flatten=True))
    if "max.slice" in actions.column_names:
        highest = actions.column("max.slice")
        actions = actions.filter(pc.or_kleene(pc.is_null(highest), pc.greater_equal(highest, number)))
    return [str(path) for path in actions.column("path").to_pylist()]


def share(chunks: npt.NDArray[np.int64], task: int, tasks: int) -> npt.NDArray[np.int64]:
    """A task's part of a slice's chunks: neighbours, and as many as any other task has (or one more)."""
    return np.array_split(chunks, tasks)[task]


def transactions(handle: DeltaTable | None, names: Sequence[str]) -> Mapping[str, int | None]:
    """Values of some `txn`."""
    return {name: handle.transaction_version(name) if handle is not None else None for name in names}
