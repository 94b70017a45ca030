"""Rows that were sent twice, found by Spark: any number of them in bounded memory, and wherever Spark sends silver's rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import ceil

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.lakehouse.data.spark_files import read_files
from game_events.pipeline.silver.duplicates import ORDER, History
from game_events.rules import Deduplicate
from game_events.spark.schemas import of_types, quoted
from game_events.workers.duplicates import ENTRY, HASH, KEY, OLD, ROWS_AT_ONCE, TIME, FindDuplicates, Keys
from game_events.workers.rules import FILE, ROW

#: New rows up to which the hashes of their keys are sent to every executor, which then reads silver without a shuffle.
MOST_SENT_HASHES = 4_000_000


def history_rows(spark: SparkSession, keys: Keys, history: History, columns: StructType) -> DataFrame | None:
    """The rows that are in silver, with the columns that are compared; None: there are none."""
    files = list(chain.from_iterable(selected.files for selected in history.files.values()))
    return read_files(spark, files, StructType([f for f in columns.fields if f.name in keys.columns])) if files else None


def sent_twice(keys: Keys, new: DataFrame, old: DataFrame | None, count: int) -> DataFrame:
    """`FILE` and `ROW` of the new rows that were sent twice.

    `new`: bronze's rows, about so many, with these two columns. `old`: rows of silver; None: there are none.
    """
    keyed = _keyed(keys, new)
    rows = keyed.select(HASH, _text(keys), ENTRY, TIME, F.lit(False).alias(OLD), FILE, ROW, *ORDER)
    if old is not None:
        hashes = keyed.select(HASH)
        hashes = F.broadcast(hashes) if count <= MOST_SENT_HASHES else hashes
        same = _keyed(keys, old).join(hashes, HASH, "left_semi")
        nothing = (F.lit(None).cast(rows.schema[name].dataType).alias(name) for name in (FILE, ROW, *ORDER))
        rows = rows.union(same.select(HASH, _text(keys), ENTRY, TIME, F.lit(True).alias(OLD), *nothing))
    rows = rows.repartition(max(1, ceil(count / ROWS_AT_ONCE)), HASH)
    return FindDuplicates(keys.windows_us).among(rows.sortWithinPartitions(HASH, KEY, F.col(OLD).desc(), *ORDER))


def _keyed(keys: Keys, rows: DataFrame) -> DataFrame:
    """The rows that have a key and a time, with the number of their entry, their time and the hash of their key."""
    number = F.coalesce(*(_number(keys, n) for n in range(len(keys.entries))))
    rows = rows.withColumn(ENTRY, number).where(F.col(ENTRY) >= 0)
    times = (F.unix_micros(F.col(quoted(keys.time_of(entry))).cast("timestamp")) for entry in keys.entries)
    hashes = (F.xxhash64(F.lit(n), *_values(keys, entry)) for n, entry in enumerate(keys.entries))
    return rows.withColumn(TIME, _of_entry(times)).withColumn(HASH, _of_entry(hashes))


def _number(keys: Keys, number: int) -> Column:
    """An entry's number for its rows, -1 for those that lack a value; NULL for rows of other games and types."""
    entry = keys.entries[number]
    is_mine = F.lit(True)
    if entry.games:
        is_mine &= F.col(quoted(keys.entity)).isin(*entry.games)
    if entry.types:
        is_mine &= of_types(entry.types)
    is_whole = F.col(quoted(keys.time_of(entry))).isNotNull()
    for value in _values(keys, entry):
        is_whole &= value.isNotNull()
    return F.when(is_mine, F.when(is_whole, F.lit(number)).otherwise(F.lit(-1)))


def _values(keys: Keys, entry: Deduplicate) -> list[Column]:
    return [F.col(quoted(name)) for name in (keys.entity, *entry.key)]


def _text(keys: Keys) -> Column:
    """The key as a text, different for different keys, games and entries."""
    return _of_entry(_as_text(n, _values(keys, entry)) for n, entry in enumerate(keys.entries)).alias(KEY)


def _of_entry(values: Iterable[Column]) -> Column:
    """The value for the entry of each row."""
    return F.coalesce(*(F.when(F.col(ENTRY) == number, value) for number, value in enumerate(values)))


def _as_text(number: int, values: Sequence[Column]) -> Column:
    """Values of columns as one text, with their lengths, so that no two lists of values give the same one."""
    parts = [F.lit(str(number))]
    for value in values:
        text = value.cast("string")
        parts += [F.lit(":"), F.length(text).cast("string"), F.lit(":"), text]
    return F.concat(*parts)
