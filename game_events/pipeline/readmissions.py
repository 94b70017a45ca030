"""What `quarantine_events` notes of rows that are not kept out of silver any more, when it is decided anew.

The rules let them in; or bronze does not have their records any more, or not of that game (a full refresh, a bronze that was
made again, another column that names the game): should such a record come, the rules judge it as any other.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import functions as F

from game_events.lakehouse.commits import paths
from game_events.lakehouse.reading import files_with, read_files, spark_schema
from game_events.lakehouse.staging import REPORT_SCHEMA
from game_events.lakehouse.tables import silver_name
from game_events.pipeline.bronze_stage import COORDINATES, HEADERS, QUARANTINE_COLUMNS, travelling
from game_events.pipeline.file_stage import FileStage, staged_files
from game_events.pipeline.rejections import Decisions, Rewritten
from game_events.pipeline.rule_columns import FATE, HELD_BACK, READMIT
from game_events.pipeline.silver_stage import Source, Start, rows_from, with_fate
from game_events.pipeline.spark import forgiving


def noted(source: Source, decisions: Decisions, starts: Mapping[str, Start]) -> Rewritten:
    """Write the files of quarantine with these games' rejected rows anew: those that are not held back now get a note.

    The note: `replayed_batch` is the bronze batch up to which silver is made, `replayed_table`, of rows that pass, the id of
    the game's silver table (its name if there is no table yet). The rules are those, and the rows of bronze, that silver was
    staged with, and a rule says the same of a row each time, so the rows that pass are those that the staged files hold.
    """
    held, handle, spark = decisions.held_rows(source.pipeline, starts), decisions.handle, source.pipeline.spark
    if held is None or handle is None:
        return Rewritten()
    columns = spark_schema(handle.schema())
    with forgiving(spark):
        rows = rows_from(source, read_files(spark, files_with(source.handle), spark_schema(source.handle.schema())), starts)
        rows = rows.join(held, list(COORDINATES), "left_semi")
        judged = with_fate(source, rows, held).where(F.col(FATE).isin(HELD_BACK, READMIT))
        judged = judged.select(*COORDINATES, F.col("_game").alias("game"), FATE)
        tables = {g: str(s.handle.metadata().id) if s.handle else silver_name(g) for g, s in starts.items()}
        of_game = spark.createDataFrame(pa.table({"game": list(tables), "_table": list(tables.values())}))
        judged = judged.join(F.broadcast(of_game), "game")
        rejected = (F.col("layer") == "silver") & F.col("replayed_batch").isNull() & F.col("game").isin(*starts)
        touched = read_files(spark, handle.file_uris(), columns).where(rejected)
        names = {r["_file"] for r in touched.select(F.col("_metadata.file_name").alias("_file")).distinct().collect()}
        rewritten = frozenset(path for path in paths(handle) if path.rpartition("/")[2] in names)
        old = read_files(spark, [f"{handle.table_uri.rstrip('/')}/{path}" for path in rewritten], columns)
        new = old.join(judged, [*COORDINATES, "game"], "left")
        leaves = rejected & ~F.col(FATE).eqNullSafe(HELD_BACK)
        now = F.current_timestamp()
        values = {"replayed_table": F.col("_table"), "replayed_batch": F.lit(source.batch), "replayed_at": now}
        new = new.withColumns({n: F.when(leaves, value).otherwise(F.col(n)) for n, value in values.items()})
        staged = new.select(travelling(QUARANTINE_COLUMNS.names)).mapInArrow(
            FileStage(source.pipeline.quarantine, QUARANTINE_COLUMNS, HEADERS), REPORT_SCHEMA
        )
        return Rewritten(staged_files(staged.collect()), rewritten)
