"""Arrow batches of silver's job: without a limit of bytes only where every row is known to be small."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from game_events.pipeline.context import BatchRange
from game_events.pipeline.silver.stage import Staging
from game_events.spark.config import ARROW_BYTES, ARROW_RECORDS, SMALL_RECORD_BYTES

FLAT = pa.schema([(f"c{n}", pa.string()) for n in range(20)])
LIMITED = (ARROW_RECORDS, False)


def staging(schema=FLAT, above=4, batch=7, transformations=()):
    pipeline = SimpleNamespace(small_batches=BatchRange(5, 7), extensions=SimpleNamespace(transformations=transformations))
    return Staging(SimpleNamespace(pipeline=pipeline, schema=schema, batch=batch), above, None, 0, None, None)


def test_rows_of_small_records_need_no_limit_of_bytes_and_there_are_fewer_of_wide_ones():
    rows, unlimited = staging().arrow_batches()
    assert unlimited
    assert rows * 2 * SMALL_RECORD_BYTES <= ARROW_BYTES
    wide = pa.schema([(f"c{n}", pa.string()) for n in range(2_000)])
    fewer, unlimited = staging(wide).arrow_batches()
    assert unlimited
    assert fewer < rows / 5


@pytest.mark.parametrize(
    "other",
    [
        {"above": 3},
        {"batch": 8},
        {"transformations": ("one",)},
        {"schema": FLAT.append(pa.field("items", pa.list_(pa.int64())))},
    ],
)
def test_where_rows_may_be_large_the_limit_stays(other):
    assert staging(**other).arrow_batches() == LIMITED
