"""Spark evaluates the CHECK constraints of a table for rows of files that are not committed yet."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

from deltalake import Schema
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from game_events.config.names import foreign_call, holds_query
from game_events.errors import DataError
from game_events.lakehouse.data.constraints import PLACE, in_words
from game_events.lakehouse.data.spark_files import read_files, spark_schema
from game_events.lakehouse.table_properties import Constraints


@lru_cache(maxsize=64)  # a commit that is compared again has the same files
def evaluated(
    root: str, schema: str, constraints: Constraints, paths: tuple[str, ...]
) -> tuple[tuple[str, int, int, str], ...]:
    """Of each file and broken constraint: path, number of the constraint, rows, an example. One Spark job."""
    if not paths:
        return ()
    for name, sql in constraints.checks:
        if holds_query(sql) or foreign_call(sql) is not None:
            raise DataError(
                f"{root}: the constraint {name} ({sql}) holds a query, or runs other code: it is not evaluated here"
            )
    columns = spark_schema(Schema.from_json(schema))
    for column in columns.fields:
        column.nullable = True  # else Spark would believe it
    try:
        rows = read_files(_spark(), [f"{root}/{quote(path)}" for path in paths], columns)
        place = F.struct(*(F.col(name) if name in columns.names else F.lit(None).alias(name) for name in PLACE))
        counts = list[Column]()
        for number, (_, sql) in enumerate(constraints.checks):
            breaks = ~_holds(sql)
            counts += [F.count_if(breaks).alias(f"_rows_{number}"), F.first(F.when(breaks, place), True).alias(f"_at_{number}")]
        found = rows.groupBy(F.col("_metadata.file_path").alias("_path")).agg(*counts).collect()
    except PySparkException as error:
        names = ", ".join(f"{name} ({sql})" for name, sql in constraints.checks)
        raise DataError(f"{root}: its constraints cannot be evaluated: {names}: {str(error).splitlines()[0]}") from error
    by_address = {_address(f"{root}/{path}"): path for path in paths}
    return tuple(
        (by_address[_address(unquote(row["_path"]))], number, row[f"_rows_{number}"], in_words(row[f"_at_{number}"].asDict()))
        for row in found
        for number in range(len(constraints.checks))
        if row[f"_rows_{number}"]
    )


def _address(uri: str) -> str:
    """An address without what Spark and delta-rs write in different ways."""
    return "/" + unquote(uri.removeprefix("file:")).lstrip("/")


def _holds(sql: str) -> Column:
    """Whether a condition is TRUE; FALSE for NULL and for every error, which only functions of Spark such as this one catch."""
    computed = F.try_add(F.expr("DATE'1970-01-01'"), F.expr(sql).cast("int"))
    return F.coalesce(computed == F.expr("DATE'1970-01-02'"), F.lit(False))


def _spark() -> SparkSession:
    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        raise DataError(
            "the table has CHECK constraints, which Spark evaluates, and this process has not started it. Nothing was written"
        ) from error
