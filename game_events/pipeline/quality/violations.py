"""Rows of bronze's files that violate rules: a Spark job finds them by the rules' columns, for workers that read the files.

Spark alone evaluates SQL. Most rows violate no rule, so hardly anything goes from Spark to Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.config.sql_text import columns_in
from game_events.lakehouse.data.snapshot import FileSelection
from game_events.lakehouse.data.spark_files import read_files
from game_events.lakehouse.event_columns import BRONZE_ONLY, OWN_COLUMNS
from game_events.pipeline.quality.judging import DISPOSITION, REJECT, RuleColumns, RuleSplit
from game_events.spark.config import null_on_error

#: Violating rows of one pass that go through the driver's memory, 100 bytes each, and to every worker, some bytes each.
MOST_VIOLATIONS = 1_000_000
#: A row's file, and its place in it.
FILE, ROW = "_file", "_row"


@dataclass(frozen=True)
class Violations:
    """The rows that violate rules; picklable.

    Attributes:
        split: what is done with them.
        files: path of a file below the table's folder -> its violating rows, ascending, as an Arrow stream: `ROW`, and the
            bits of the rules. A file without any is left out.
    """

    split: RuleSplit
    files: Mapping[str, bytes]

    def of_file(self, path: str) -> pa.Table:
        """A file's violating rows."""
        data = self.files.get(path)
        return _read(data) if data is not None else _schema(self.split.rules).empty_table()

    def schema(self, columns: pa.Schema, of_file: pa.Table) -> pa.Schema:
        """Columns to read of a file: those of the table, and bronze's own if rows are rejected."""
        rejects = self.split.quarantine is not None and bool((self._dispositions(of_file) == REJECT).any())
        return pa.schema([*columns, *(OWN_COLUMNS.field(name) for name in BRONZE_ONLY)]) if rejects else columns

    def added(self, rows: pa.Table, first: int, of_file: pa.Table) -> pa.Table:
        """The rows, the first of which has the place `first`, with `RuleSplit.columns`: bronze's own of rejected rows only."""
        begin, end = np.searchsorted(of_file.column(ROW).to_numpy(), [first, first + rows.num_rows])
        mine = of_file.slice(begin, end - begin)
        places, dispositions = mine.column(ROW).to_numpy() - first, self._dispositions(mine)
        more = {name: _at(places, mine.column(name).to_numpy(), rows.num_rows) for name in self.split.rules.names}
        if self.split.has_disposition:
            more[DISPOSITION] = _at(places, dispositions, rows.num_rows)
        if self.split.quarantine is not None:
            more |= _only(rows, places[dispositions == REJECT])
        table = {name: rows.column(name) for name in rows.column_names if name not in BRONZE_ONLY}
        return pa.table(table | {name: more[name] for name in self.split.columns})

    def _dispositions(self, violating: pa.Table) -> npt.NDArray[np.int32]:
        rules = self.split.rules
        return rules.dispositions([violating.column(name).to_numpy() for name in rules.names])


def _at(places: npt.NDArray[np.int64], values: npt.NDArray[Any], count: int) -> pa.Array:
    """So many values: these at their places, and zero elsewhere: no rule is violated, and the row is kept."""
    found = np.zeros(count, values.dtype)
    found[places] = values
    return pa.array(found)


def _only(rows: pa.Table, places: npt.NDArray[np.int64]) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Bronze's own columns, with values at these places and NULL elsewhere."""
    if not len(places):
        return {name: pa.nulls(rows.num_rows, OWN_COLUMNS.field(name).type) for name in BRONZE_ONLY}
    taken = rows.select(BRONZE_ONLY).take(pa.array(places)).combine_chunks()
    source = np.full(rows.num_rows, -1)
    source[places] = np.arange(len(places))
    return {name: taken.column(name).take(pa.array(source, mask=source < 0)) for name in BRONZE_ONLY}


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
    return Violations(split, _by_path(found, files, _schema(split.rules)))


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


def _schema(rules: RuleColumns) -> pa.Schema:
    return pa.schema([(name, pa.int64()) for name in (ROW, *rules.names)])


def _written(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())


def _read(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all().combine_chunks()
