"""Rows that a worker sends to Spark, in batches of a size that costs Spark little."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from game_events.lakehouse.data.staging import buffer_bytes

#: Rows, and their bytes, that go to Spark together: each batch costs Spark more than some hundred rows.
BATCH_ROWS, BATCH_BYTES = 10_000, 16 * 1024 * 1024


def in_batches(parts: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of small tables together, in exactly this schema: Spark compares types and nullability."""
    joined, rows, size = list[pa.Table](), 0, 0
    for part in parts:
        if part.num_rows:
            joined.append(part)
            rows, size = rows + part.num_rows, size + buffer_bytes(part)
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield from _joined(joined, schema)
            joined, rows, size = [], 0, 0
    if joined:
        yield from _joined(joined, schema)


def _joined(parts: list[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in pa.concat_tables(parts).combine_chunks().to_batches():
        columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
