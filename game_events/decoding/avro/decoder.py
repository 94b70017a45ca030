"""Decoder of Avro payloads, by their writer schema, into Arrow columns.

Own code, because no library reads strictly: fastavro takes a negative branch or symbol index for the last one, misreads
numbers of more than 64 bits, loops on an array of 2^62 nulls, and ends the process on types nested 20,000 deep; libraries for
Arrow lack maps, unions or decimals.
"""

import pyarrow as pa

from game_events.decoding.avro.encoding import Budget
from game_events.decoding.avro.nested_columns import ColumnBuilder, RecordColumn, UnionColumn
from game_events.decoding.avro.scalar_columns import Column
from game_events.decoding.avro.schema import AvroSchema
from game_events.decoding.avro.types import AvroType
from game_events.decoding.core.column_map import Field
from game_events.decoding.core.projection import VALUE, RowDecoder
from game_events.decoding.core.reasons import DAMAGE, DamageError, Reason
from game_events.decoding.core.value_rules import ColumnRules


class AvroDecoder(RowDecoder):
    """Decodes one schema id.

    Fields of a record become columns, as do branches of a top-level union (several types of events in one topic); any other
    type becomes the column ``value``.
    """

    def __init__(self, compiled: AvroSchema, rules: ColumnRules | None = None) -> None:
        """Raises DataError for a schema that is too large."""
        self._column, fields, budget = _columns(compiled.root, ColumnBuilder())
        super().__init__(compiled.root.name, fields, budget)
        nullable = rules.nullable(self.message, self.fields) if rules is not None else {}
        if nullable:
            # Once more: the fields' identities are known now.
            self._column, _, self.budget = _columns(compiled.root, ColumnBuilder(nullable, self.nulled))
        self._rows = 0

    def _read(self, payload: bytes) -> None:
        try:
            end = self._column.read(payload, 0)
            if end != len(payload):
                raise DamageError(Reason.MALFORMED, f"{len(payload) - end} bytes after the value")
        except DAMAGE:
            self._column.truncate(self._rows)
            raise
        self._rows += 1

    def _finish(self) -> pa.RecordBatch:
        array, self._rows = self._column.finish(), 0
        if not self.fields:
            return pa.RecordBatch.from_arrays([], names=[])
        arrays = array.flatten() if isinstance(self._column, RecordColumn | UnionColumn) else [array]
        return pa.RecordBatch.from_arrays(arrays, names=[f.name for f in self.fields])


def _columns(root: AvroType, builder: ColumnBuilder) -> tuple[Column, tuple[Field, ...], Budget]:
    """The column of a schema's values, the fields at its top, and the budget of a payload."""
    if root.kind == "union":
        column, fields = builder.union(root, (), always_struct=True)
    else:
        column, fields = builder.build(root)
        if not isinstance(column, RecordColumn):
            fields = (Field(VALUE, VALUE, column.type, fields),)
    return column, fields, builder.budget
