"""Decoder of JSON payloads of one schema into Arrow columns; a bad row affects no other one.

Uses Python's parser, which keeps all digits of a number and limits nesting. pyarrow's and DuckDB's readers take a batch as one
text, round numbers, and do not report which row was bad.
"""

from typing import Any

import pyarrow as pa

from game_events.decoding.core.column_map import ColumnMap, Field
from game_events.decoding.core.projection import Projection
from game_events.decoding.core.protocols import Decoded
from game_events.decoding.core.reasons import DAMAGE, Reason, as_damage
from game_events.decoding.json.parser import parse
from game_events.decoding.json.schema import JsonSchema
from game_events.decoding.json.types import JsonType, json_type
from game_events.decoding.json.values import converter

#: Payload bytes of one Arrow array: 2 GiB of text would not fit, and an escape is up to six characters.
BATCH_BYTES = 2**28
#: The column of a top-level value that is no object with known members.
VALUE = "value"


class JsonDecoder:
    """Decodes one schema id (see `protocols.PayloadDecoder`).

    Members of an object become columns, any other value the column ``value``; members that are not in the schema are ignored.
    """

    def __init__(self, compiled: JsonSchema) -> None:
        """Raises DataError if the schema does not compile."""
        found = json_type(compiled)
        self._is_object = found.kind == "struct"
        root = found if self._is_object else JsonType("struct", ((VALUE, found),))
        self.message: str = compiled.message
        self.fields: tuple[Field, ...] = root.children
        self._projection = Projection(self.message, self.fields)
        self._type: pa.DataType = root.arrow
        self._convert = converter(root)

    def decode(self, payloads: pa.BinaryArray, columns: ColumnMap) -> Decoded:
        """Decode a batch."""
        good: list[int] = []
        bad: dict[tuple[Reason, str], list[int]] = {}
        batches: list[pa.RecordBatch] = []
        rows: list[dict[str, Any]] = []
        size = 0
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                document = parse(payload)
                rows.append(self._convert(document if self._is_object else {VALUE: document}))
                good.append(row)
            except DAMAGE as error:
                damage = as_damage(error)
                bad.setdefault((damage.reason, damage.detail(self.message)), []).append(row)
            size += len(payload)
            if size > BATCH_BYTES:
                batches.append(self._batch(rows))
                rows, size = [], 0
        batches.append(self._batch(rows))
        table = self._projection.table(batches, columns)
        return Decoded.of(table, good, bad)

    def _batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_struct_array(pa.array(rows, self._type))
