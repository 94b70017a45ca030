"""Numbers of bronze's rows by game: of all rows, or of those after the rows that an earlier check has counted."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.lakehouse.data.snapshot import selection
from game_events.lakehouse.data.spark_files import read_files, read_table, spark_schema
from game_events.lakehouse.event_columns import COORDINATES, has_decoded_columns
from game_events.lakehouse.system_tables.progress import CountedRows
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality.decisions import Decisions


@dataclass(frozen=True)
class RowCounts:
    """Numbers of bronze's rows; game None: those of no game with a silver table.

    Attributes:
        rows: all rows.
        pending: rows that are not in silver yet.
        held: rows that are not pending, and are in quarantine as rejected ones of this game.
        settled: rows of the batches up to which no row is pending.
    """

    rows: Counter[str | None] = field(default_factory=Counter)
    pending: Counter[str | None] = field(default_factory=Counter)
    held: Counter[str | None] = field(default_factory=Counter)
    settled: Counter[str | None] = field(default_factory=Counter)


def count_all(
    pipeline: Pipeline, handle: DeltaTable, decisions: Decisions, taken: Mapping[str, int], settled: int
) -> RowCounts:
    """Count all rows of bronze; if quarantine has rejected rows, the job joins them with bronze.

    `taken`: game -> last batch in its silver table; `settled`: last batch without pending rows.
    """
    rows = read_table(pipeline.spark, handle)
    # An idle game's silver has an older batch than others and is complete all the same: only rows above it are pending.
    limits = pipeline.spark.createDataFrame(
        pa.table({"_game": list(taken), "_taken": pa.array(taken.values(), pa.int64())}), "_game string, _taken bigint"
    )
    held = decisions.held_rows(pipeline, decisions.rejected_rows)
    name = _name(pipeline, handle)
    if held is None:
        rows = rows.select(name, "_batch", F.lit(None).alias("_held"))
    else:
        rows = rows.select(name, "_batch", *COORDINATES)
        held = held.withColumnRenamed("game", "_name").withColumn("_held", F.lit(True))
        rows = rows.join(held, [*COORDINATES, "_name"], "left")
    pending = F.col("_batch") > F.col("_taken")
    found = (
        rows.join(F.broadcast(limits), F.col("_name") == F.col("_game"), "left")
        .groupBy("_game")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count(F.when(pending, 1)).alias("pending"),
            F.count(F.when(F.col("_held").isNotNull() & ~pending, 1)).alias("held"),
            F.count(F.when(F.col("_batch") <= settled, 1)).alias("settled"),
        )
        .collect()
    )
    counts = RowCounts()
    for row in found:
        for name_of, counter in vars(counts).items():
            counter[row["_game"]] = int(row[name_of])
    return counts


def count_later(
    pipeline: Pipeline,
    handle: DeltaTable,
    decisions: Decisions,
    taken: Mapping[str, int],
    settled: int,
    before: CountedRows,
) -> RowCounts:
    """The rows that an earlier check has counted, and those of later batches, which are read.

    `taken`, `settled`: as for `count_all`. Rejected rows are counted by quarantine's log, whether bronze has them or not.
    """
    later = selection(handle, "_batch", before.batch)
    rows = read_files(pipeline.spark, later.files, spark_schema(handle.schema())).where(F.col("_batch") > before.batch)
    found = rows.groupBy(_name(pipeline, handle), "_batch").agg(F.count(F.lit(1)).alias("rows")).collect()
    counts = RowCounts(held=Counter(decisions.rejected_rows))
    for name, number in before.rows.items():
        game = name if name in taken else None
        counts.rows[game] += number
        counts.settled[game] += number
    for row in found:
        game = row["_name"] if row["_name"] in taken else None
        counts.rows[game] += row["rows"]
        counts.pending[game] += row["rows"] if game is not None and row["_batch"] > taken[game] else 0
        counts.settled[game] += row["rows"] if row["_batch"] <= settled else 0
    return counts


def _name(pipeline: Pipeline, handle: DeltaTable) -> Column:
    """The column that names the game; without it no record of a selected message type was read yet."""
    found = F.col(pipeline.settings.entity_column) if has_decoded_columns(handle) else F.lit(None).cast("string")
    return found.alias("_name")
