"""Numbers of bronze's rows by game: of all rows, or of those after the rows that an earlier check has counted."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from game_events.lakehouse.data.snapshot import read_arrow, selection
from game_events.lakehouse.data.spark_files import read_files, read_table, spark_schema
from game_events.lakehouse.event_columns import COORDINATES, has_decoded_columns
from game_events.lakehouse.system_tables.progress import CountedRows
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality.decisions import Decisions

#: Files that the driver counts by itself, in less time than a Spark job takes to start.
FEW_FILES = 32


@dataclass(frozen=True)
class RowCounts:
    """Numbers of bronze's rows; game None: those of no game with a silver table.

    Attributes:
        rows: all rows.
        pending: rows that are not in silver yet.
        held: rows that are not pending, and are in quarantine as rejected ones of this game.
        settled: rows of the batches that a later check need not read. Those of them that are pending, as the settings have left
            out their game, belong to no game.
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
    held = decisions.held_rows(pipeline, decisions.rejected_rows)
    name = _name(pipeline, handle)
    if held is None:
        rows = rows.select(name, "_batch", F.lit(None).alias("_held"))
    else:
        rows = rows.select(name, "_batch", *COORDINATES)
        held = held.withColumnRenamed("game", "_name").withColumn("_held", F.lit(True))
        rows = rows.join(held, [*COORDINATES, "_name"], "left")
    pending = F.col("_batch") > F.col("_taken")
    late = F.coalesce(pending, F.lit(False))
    found = (
        rows.join(last_batches(pipeline.spark, taken), F.col("_name") == F.col("_game"), "left")
        .groupBy("_game")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count(F.when(pending, 1)).alias("pending"),
            F.count(F.when(F.col("_held").isNotNull() & ~pending, 1)).alias("held"),
            F.count(F.when((F.col("_batch") <= settled) & ~late, 1)).alias("settled"),
            F.count(F.when((F.col("_batch") <= settled) & late, 1)).alias("late"),
        )
        .collect()
    )
    counts = RowCounts()
    for row in found:
        for name_of, counter in vars(counts).items():
            counter[row["_game"]] += int(row[name_of])
        counts.settled[None] += int(row["late"])
    return counts


def last_batches(spark: SparkSession, taken: Mapping[str, int]) -> DataFrame:
    """`_game` and `_taken`, the last bronze batch in its silver table: to be joined with rows, a copy for each worker."""
    limits = pa.table({"_game": pa.array(list(taken), pa.string()), "_taken": pa.array(taken.values(), pa.int64())})
    return F.broadcast(spark.createDataFrame(limits, "_game string, _taken bigint"))


def count_later(
    pipeline: Pipeline, handle: DeltaTable, above: int, few_rows: int | None = None
) -> dict[tuple[str | None, int], int]:
    """(Name of a game, valid or not; batch) -> rows of bronze, of the batches above one: these alone are read.

    `few_rows`: with at most so many rows in a few files they are counted in this process; more, or a number that the log does
    not say, take a Spark job. None: as many rows as are read at a time.
    """
    later = selection(handle, above)
    few_rows = pipeline.lakehouse.sizes.read_rows if few_rows is None else few_rows
    if later.rows <= few_rows and later.rows_known and len(later.files) <= FEW_FILES:
        return _counted_here(pipeline, handle, later.paths, above)
    rows = read_files(pipeline.spark, later.files, spark_schema(handle.schema())).where(F.col("_batch") > above)
    found = rows.groupBy(_name(pipeline, handle), "_batch").agg(F.count(F.lit(1)).alias("rows")).collect()
    return {(row["_name"], row["_batch"]): int(row["rows"]) for row in found}


def _counted_here(
    pipeline: Pipeline, handle: DeltaTable, files: Sequence[str], above: int
) -> dict[tuple[str | None, int], int]:
    entity = pipeline.settings.entity_column
    rows = read_arrow(pipeline.bronze, handle, [entity, "_batch"], files)
    groups = rows.group_by(rows.column_names).aggregate([([], "count_all")])
    names = groups[entity].to_pylist() if entity in rows.column_names else [None] * groups.num_rows
    found = zip(names, groups["_batch"].to_pylist(), groups["count_all"].to_pylist(), strict=True)
    return {(name, batch): count for name, batch, count in found if batch is not None and batch > above}


@dataclass(frozen=True)
class CountJobs:
    """What counts bronze's rows: all of them, or those of later batches."""

    all_rows: Callable[[Pipeline, DeltaTable, Decisions, Mapping[str, int], int], RowCounts] = count_all
    later_rows: Callable[[Pipeline, DeltaTable, int], Mapping[tuple[str | None, int], int]] = count_later


def added(
    before: CountedRows,
    later: Mapping[tuple[str | None, int], int],
    known: Collection[str],
    taken: Mapping[str, int],
    settled: int,
    rejected: Mapping[str, int],
) -> RowCounts:
    """The rows that an earlier check has counted, and the later ones.

    `known`: games with a silver table; `taken`: of those with news its last batch; `settled`: as for `count_all`. `rejected`:
    game -> its rejected rows by quarantine's log, whether bronze has them or not.
    """
    counts = RowCounts(held=Counter({game: rejected.get(game, 0) for game in taken}))
    for name, found in before.games.items():
        game = name if name in known else None
        counts.rows[game] += found.rows
        counts.settled[game] += found.rows
    for (name, batch), rows in later.items():
        game = name if name in known else None
        late = game is not None and batch > taken[game]
        counts.rows[game] += rows
        counts.pending[game] += rows if late else 0
        counts.settled[None if late else game] += rows if batch <= settled else 0
    return counts


def _name(pipeline: Pipeline, handle: DeltaTable) -> Column:
    """The column that names the game; without it no record of a selected message type was read yet."""
    found = F.col(pipeline.settings.entity_column) if has_decoded_columns(handle) else F.lit(None).cast("string")
    return found.alias("_name")
