"""Rows that a worker sends to Spark, in batches of a size that costs Spark little."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from game_events.lakehouse.data.staging import buffer_bytes

#: Bytes of rows that go to Spark together.
BATCH_BYTES = 16 * 1024 * 1024


def in_batches(parts: Iterable[pa.Table], schema: pa.Schema, most_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of small tables, about so many together, in exactly this schema: Spark compares types and nullability."""
    joined, rows, size = list[pa.Table](), 0, 0
    for part in parts:
        if part.num_rows:
            joined.append(part)
            rows, size = rows + part.num_rows, size + buffer_bytes(part)
        if rows >= most_rows or size >= BATCH_BYTES:
            yield from _joined(joined, schema)
            joined, rows, size = [], 0, 0
    if joined:
        yield from _joined(joined, schema)


def _joined(parts: list[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in pa.concat_tables(parts).combine_chunks().to_batches():
        columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
