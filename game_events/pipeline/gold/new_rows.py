"""Silver's new rows, for gold: Spark reads large files; small ones are read by its workers, with Arrow.

Spark spends some 3 ms of processor time on opening a file, Arrow less than 1 ms; but rows that a worker has read must be sent
to the JVM. Games with news have one small file each, mostly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa
from deltalake import Schema
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from game_events.config.sql_text import columns_in, words
from game_events.extending import GoldAggregate
from game_events.lakehouse.data.file_parts import FilePart
from game_events.lakehouse.data.snapshot import FileSelection
from game_events.lakehouse.data.spark_files import read_files
from game_events.lakehouse.tables import silver_name
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.file_rows import FileRows
from game_events.pipeline.gold.plan import GamePlan
from game_events.sources.core.reading import dealt
from game_events.spark.schemas import nullable, quoted

#: The column that names the game while rows of several games are in one plan.
GAME = "_game"
#: Spark's column about a row's file, which no schema has.
HIDDEN = "_metadata"
_NAME, _FROM = "_limit_game", "_limit_batch"
#: Rows of silver for each task. One task needs no shuffle, which costs some 100 ms.
TASK_ROWS = 250_000
#: Processor time, in seconds: what a worker saves of Spark's on opening a file, what it spends more on a row, and what reading
#: in both ways costs a plan.
OPEN_S, ROW_S, BOTH_S = 0.002, 5e-7, 0.3
#: Rows of a file up to which a worker reads it at less cost than Spark.
SMALL_FILE_ROWS = int(OPEN_S / ROW_S)


def new_rows(
    pipeline: Pipeline, plans: Mapping[str, GamePlan], columns: StructType, *, few: bool, needed: Collection[str] | None = None
) -> DataFrame:
    """The rows with these columns, and `_game`.

    `few`: in one task. `needed`: the columns that the plan uses, if they are known: the others are left out. Workers read all
    columns that they are given, so without these names Spark reads all files.
    """
    spark, entity = pipeline.spark, pipeline.settings.entity_column
    if needed is None:
        rows = read_files(spark, [uri for plan in plans.values() for uri in plan.new.files], columns)
    else:
        columns = StructType([f for f in columns.fields if f.name in {*needed, entity, "_batch"}])
        rows = _by_size_of_file(pipeline, {game: plan.new for game, plan in plans.items()}, columns, few=few)
    if not all(plan.new.exact for plan in plans.values()):
        limits = pa.table({_NAME: list(plans), _FROM: [plan.above for plan in plans.values()]})
        bounds = F.broadcast(spark.createDataFrame(limits))
        rows = rows.join(bounds, F.col(quoted(entity)) == F.col(_NAME)).where(F.col("_batch") > F.col(_FROM)).drop(_NAME, _FROM)
    rows = rows.withColumn(GAME, F.col(quoted(entity)))
    return rows.coalesce(1) if few else rows


def _by_size_of_file(pipeline: Pipeline, files: Mapping[str, FileSelection], columns: StructType, *, few: bool) -> DataFrame:
    """Rows of the games' files with these columns."""
    small, large, count = list[FilePart](), list[str](), 0
    for game, of_game in files.items():
        light, heavy = of_game.split(SMALL_FILE_ROWS, pipeline.lakehouse.sizes.read_whole_bytes)
        small += (FilePart(silver_name(game), path) for path in light.paths)
        large += heavy.files
        count += light.rows
    if not small or (large and len(small) * OPEN_S - count * ROW_S < BOTH_S):
        return read_files(pipeline.spark, [uri for of_game in files.values() for uri in of_game.files], columns)
    columns = StructType([StructField(f.name, nullable(f.dataType)) for f in columns.fields])
    schema, tasks = pa.schema(Schema.from_json(columns.json())), 1 if few else 1 + count // TASK_ROWS
    read = FileRows(pipeline.lakehouse, schema, dealt(small, tasks), few=True)
    rows = read.numbers(pipeline.spark).mapInArrow(read, columns)
    return rows.union(read_files(pipeline.spark, large, columns)) if large else rows


def columns_of_measures(aggregate: GoldAggregate, columns: Iterable[str]) -> set[str] | None:
    """The columns that an aggregate's keys and measures may use: those whose names its SQL has; for a `*`, all of them.

    None: the SQL asks what only Spark knows of a file.
    """
    text = " ".join([*aggregate.keys, *(measure.of for measure in aggregate.measures.values())])
    return None if HIDDEN in words(text) else columns_in(text, columns)
