"""Decoder of Avro payloads, by their writer schema, into Arrow columns; a bad row affects no other one.

Own code, because no library reads strictly: fastavro takes a negative branch or symbol index for the last one, misreads
numbers of more than 64 bits, loops on an array of 2^62 nulls, and ends the process on types nested 20,000 deep; libraries for
Arrow lack maps, unions or decimals.
"""

import pyarrow as pa

from game_events.decoding.avro.nested_columns import ColumnBuilder, RecordColumn, UnionColumn
from game_events.decoding.avro.schema import AvroSchema
from game_events.decoding.core.column_map import ColumnMap, Field
from game_events.decoding.core.projection import Projection
from game_events.decoding.core.protocols import Decoded
from game_events.decoding.core.reasons import DAMAGE, DamageError, Reason, as_damage

#: Payload bytes of one Arrow array: 2 GiB of text would not fit, and bytes in JSON text take up to six times their size.
BATCH_BYTES = 2**28
#: The column of a top-level value that is no record.
VALUE = "value"


class AvroDecoder:
    """Decodes one schema id (see `protocols.PayloadDecoder`).

    Fields of a record become columns, as do branches of a top-level union (several types of events in one topic); any other
    type becomes the column ``value``.
    """

    def __init__(self, compiled: AvroSchema) -> None:
        """Raises DataError for a schema that is too large."""
        root = compiled.root
        self.message: str = root.name
        builder = ColumnBuilder()
        self._budget = builder.budget
        if root.kind == "union":
            self._column, self.fields = builder.union(root, (), always_struct=True)
        else:
            self._column, self.fields = builder.build(root)
            if not isinstance(self._column, RecordColumn):
                self.fields = (Field(VALUE, VALUE, self._column.type, self.fields),)
        self._projection = Projection(self.message, self.fields)

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap) -> Decoded:
        """Decode a batch."""
        good: list[int] = []
        bad: dict[tuple[Reason, str], list[int]] = {}
        batches: list[pa.RecordBatch] = []
        read, budget, size, held = self._column.read, self._budget, 0, 0
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                end = read(payload, 0)
                if end != len(payload):
                    raise DamageError(Reason.MALFORMED, f"{len(payload) - end} bytes after the value")
                good.append(row)
                held += 1
            except DAMAGE as error:
                self._column.truncate(held)
                damage = as_damage(error)
                bad.setdefault((damage.reason, damage.detail(self.message)), []).append(row)
            budget.reset()
            size += len(payload)
            if size > BATCH_BYTES:
                batches.append(self._finish())
                size = held = 0
        batches.append(self._finish())
        table = self._projection.table(batches, columns)
        return Decoded.of(table, good, bad)

    def _finish(self) -> pa.RecordBatch:
        array = self._column.finish()
        if not self.fields:
            return pa.RecordBatch.from_arrays([], names=[])
        arrays = array.flatten() if isinstance(self._column, RecordColumn | UnionColumn) else [array]
        return pa.RecordBatch.from_arrays(arrays, names=[f.name for f in self.fields])
