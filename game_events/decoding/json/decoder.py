"""JSON payloads of one schema -> Arrow columns; a bad row costs only itself.

Python's own parser, one document after another: it alone keeps every digit of a number and bounds the nesting. pyarrow's and
DuckDB's readers take a batch of documents for one text, round what does not fit, and do not say which row was bad.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from game_events.decoding.core.column_map import ColumnMap, Field
from game_events.decoding.core.errors import DAMAGE, as_damage
from game_events.decoding.core.projection import Projection
from game_events.decoding.core.protocols import Decoded
from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.wire_format import Rows
from game_events.decoding.json.schema import JsonSchema
from game_events.decoding.json.types import JsonType, json_type
from game_events.decoding.json.values import converter, parse

#: Payload bytes for one Arrow array: text of 2 GiB would not fit, and an escape makes six characters of one.
BATCH_BYTES = 2**28
#: The column of a top level that is not an object with known members.
VALUE = "value"


class JsonDecoder:
    """Decodes one schema id (see `payloads.PayloadDecoder`).

    The members of the object are the columns; of any other top level there is the column ``value``. Members that the schema
    does not name are in no column, and no error.
    """

    def __init__(self, compiled: JsonSchema) -> None:
        """Builds the converters.

        Raises:
            DataError: the schema does not compile.
        """
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
        return Decoded(table, _rows(good), [(*why, _rows(at)) for why, at in bad.items()])

    def _batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_struct_array(pa.array(rows, self._type))


def _rows(rows: list[int]) -> Rows:
    return np.asarray(rows, dtype=np.int64)
