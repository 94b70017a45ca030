"""The Spark job that finds rows of bronze's files that violate rules, by the rules' columns, for workers that read the files.

Spark alone evaluates SQL. Most rows violate no rule, so hardly anything goes from Spark to Python.
"""

from __future__ import annotations

from functools import reduce
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.config.sql_text import columns_in
from game_events.lakehouse.data.snapshot import FileSelection
from game_events.lakehouse.data.spark_files import read_files
from game_events.pipeline.quality.judging import RuleSplit
from game_events.pipeline.quality.violations import ROW, Violations, bits_schema
from game_events.spark.config import null_on_error

#: Violating rows of one pass that go through the driver's memory, 100 bytes each, and to every worker, some bytes each.
MOST_VIOLATIONS = 1_000_000
#: A row's file.
FILE = "_file"


def find_violations(
    spark: SparkSession, split: RuleSplit, files: FileSelection, columns: StructType, above: int | None
) -> Violations | None:
    """Evaluate silver's rules on the rows of bronze's files, in one job; None: more than `MOST_VIOLATIONS` rows violate them.

    Args:
        spark: the session.
        split: with the rules.
        files: bronze's files.
        columns: of the rows.
        above: only rows of later bronze batches; None: all rows.
    """
    rules = split.rules
    needed = {rules.game_column, "_batch"}.union(*(columns_in(rule.sql, columns.names) for rule in rules.rules))
    with null_on_error(spark):
        rows = read_files(spark, files.files, StructType([f for f in columns.fields if f.name in needed]))
        rows = rows if above is None else rows.where(F.col("_batch") > above)
        place = (F.col("_metadata.file_path").alias(FILE), F.col("_metadata.row_index").alias(ROW))
        violating = reduce(Column.__or__, (F.col(name) != 0 for name in rules.names))
        rows = rows.select(*place, *rules.violated()).where(violating)
        if files.rows > MOST_VIOLATIONS or not files.rows_known:
            rows = rows.limit(MOST_VIOLATIONS + 1)  # another stage
        found = rows.toArrow()
    if found.num_rows > MOST_VIOLATIONS:
        return None
    return Violations(split, _by_path(found, files, bits_schema(split.rules)))


def _by_path(found: pa.Table, files: FileSelection, schema: pa.Schema) -> dict[str, bytes]:
    """Path of a file below the table's folder -> its rows with this schema, ascending, as an Arrow stream."""
    folder, known = unquote(files.root).rpartition("/")[2], set(files.paths)
    names = found.column(FILE).combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy()
    order = np.lexsort((found.column(ROW).to_numpy(), codes))
    rows = found.select(schema.names).cast(schema).take(order)
    ends = np.searchsorted(codes[order], np.arange(len(names.dictionary)), side="right").tolist()
    by_path = dict[str, bytes]()
    for uri, begin, end in zip(names.dictionary.to_pylist(), [0, *ends], ends, strict=False):
        path = unquote(uri).rpartition(f"/{folder}/")[2]
        if path not in known:
            raise AssertionError(f"Spark read {uri}, which is none of the files that it was given of {files.root}")
        by_path[path] = _written(rows.slice(begin, end - begin))
    return by_path


def _written(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())
