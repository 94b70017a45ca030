"""Decoder of JSON payloads of one schema into Arrow columns.

Uses Python's parser, which keeps all digits of a number and limits nesting. pyarrow's and DuckDB's readers take a batch as one
text, round numbers, and do not report which row was bad.
"""

from typing import Any

import pyarrow as pa

from game_events.decoding.core.projection import VALUE, RowDecoder
from game_events.decoding.json.schema import JsonSchema
from game_events.decoding.json.types import JsonType, json_type
from game_events.decoding.json.values import converter, parse


class JsonDecoder(RowDecoder):
    """Decodes one schema id.

    Members of an object become columns, any other value the column ``value``; members that are not in the schema are ignored.
    """

    def __init__(self, compiled: JsonSchema) -> None:
        """Raises DataError if the schema does not compile."""
        found = json_type(compiled)
        self._is_object = found.kind == "struct"
        root = found if self._is_object else JsonType("struct", ((VALUE, found),))
        super().__init__(compiled.message, root.children)
        self._type: pa.DataType = root.arrow
        self._convert = converter(root)
        self._rows: list[dict[str, Any]] = []

    def _read(self, payload: bytes) -> None:
        document = parse(payload)
        self._rows.append(self._convert(document if self._is_object else {VALUE: document}))

    def _finish(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, []
        return pa.RecordBatch.from_struct_array(pa.array(rows, self._type))
