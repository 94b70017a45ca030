"""Validation of rules by Spark's analysis: before a job, for `doctor`, for a dry run. Reads no rows.

The Spark job that finds rows of bronze's files that violate rules, by the rules' columns, for workers that read the files.

Spark alone evaluates SQL. Most rows violate no rule, so hardly anything goes from Spark to Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, reduce
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructType

from game_events.config.names import columns_in, foreign_call, holds_query, reads_clock
from game_events.errors import ConfigurationError, first_line, some_columns
from game_events.lakehouse.data.reading import FileSelection
from game_events.lakehouse.data.spark_files import read_files
from game_events.pipeline.quality.judging import ROW, RuleSplit, Violations, bits_schema
from game_events.rules import Rule
from game_events.spark.config import null_on_error


def require_valid(spark: SparkSession, rules: Iterable[Rule], columns: StructType) -> None:
    """Analyze each rule against the columns of its layer's rows.

    Raises:
        ConfigurationError: a rule does not parse, names no column of the rows, is no condition, or needs more than one row; the
            message has the rule, the problem and the columns.
    """
    rules = list(rules)
    if not rules:
        return
    if any(_refused(rule.sql) for rule in rules) or not _sound_together(spark, tuple(rule.sql for rule in rules), columns):
        refuse(problems(spark, rules, columns), columns.names)


def problems(spark: SparkSession, rules: Iterable[Rule], columns: StructType | None) -> dict[str, str]:
    """Rule (as `layer.name`) -> what is wrong with it. Without columns a rule has to parse, no more."""
    found = {f"{rule.layer}.{rule.name}": _refused(rule.sql) or _unsound(spark, rule.sql, columns) for rule in rules}
    return {name: problem for name, problem in found.items() if problem is not None}


def refuse(found: dict[str, str], columns: Sequence[str]) -> None:
    """Raise a ConfigurationError that names every problem, if there is one, and the columns there are."""
    if found:
        lines = [f"rule {name}: {problem}" for name, problem in found.items()]
        have = f". The rows have the columns {some_columns(columns)}" if columns else ""
        raise ConfigurationError(f"change the rule (`rules` in game_events.yaml, GAME_EVENTS_RULES): {'; '.join(lines)}{have}")


def _refused(sql: str) -> str | None:
    """The reason if a rule has a query, other code or a clock, which Spark would evaluate; else None."""
    if holds_query(sql):
        return f"{sql!r} holds a query: a rule may read one row and nothing else"
    if (called := foreign_call(sql)) is not None:
        return f"{sql!r} runs other code by {called}: a rule may read one row and nothing else"
    if reads_clock(sql):
        return (
            f"{sql!r} reads the clock: a rule must always give the same result for a row. Compare with "
            "_kafka_timestamp, the record's time"
        )
    return None


@lru_cache(maxsize=16)  # continuous mode asks each second
def _sound_together(spark: SparkSession, conditions: tuple[str, ...], columns: StructType) -> bool:
    """Whether Spark's analysis accepts all conditions at once, in a fraction of the time that each of them takes by itself."""
    with null_on_error(spark), _quiet():
        try:
            empty, every = spark.createDataFrame([], columns), [F.expr(sql) for sql in conditions]
            fields = empty.select(*every).schema.fields
            empty.join(spark.range(0).toDF("_other"), reduce(Column.__and__, every), "left_anti").schema  # noqa: B018
        except AnalysisException:
            return False
    return len(fields) == len(conditions) and all(isinstance(field.dataType, BooleanType) for field in fields)


def _unsound(spark: SparkSession, sql: str, columns: StructType | None) -> str | None:
    """The reason if Spark's analysis refuses a condition; else None."""
    with null_on_error(spark), _quiet():
        try:
            empty = spark.createDataFrame([], columns or "_no_column int")
            fields = empty.select(F.expr(sql)).schema.fields
        except AnalysisException as error:
            # Without columns nothing resolves; what does not even parse has this class of its own.
            if columns is None and not str(error).lstrip().startswith("[PARSE_"):
                return None
            return f"{sql!r} cannot be evaluated: {_reason(error)}"
        if columns is None:
            return None
        if len(fields) != 1 or not isinstance(fields[0].dataType, BooleanType):
            return f"{sql!r} is no condition: it gives {', '.join(f.dataType.simpleString() for f in fields)}"
        try:
            # A join's condition may hold neither aggregates, windows and generators nor anything that is not deterministic.
            other = spark.createDataFrame([], "_other int")
            empty.join(other, F.expr(sql), "left_anti").schema  # noqa: B018 - asked for, so that it is analyzed
        except AnalysisException as error:
            return (
                f"{sql!r} is not about one row and its values alone (no aggregates, windows, generators, random or "
                f"changing values): {_reason(error)}"
            )
    return None


def _reason(error: AnalysisException) -> str:
    return first_line(error).partition(" SQLSTATE")[0].rstrip(".")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence PySpark, which writes each refused expression to stderr with the JVM's whole stack."""
    # From PySpark: an ordinary logger of that name would turn each of its errors into a TypeError.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


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
