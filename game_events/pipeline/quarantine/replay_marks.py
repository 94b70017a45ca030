"""Marks of replayed rows in `quarantine_events`: when they were added to bronze, and as which batch."""

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.evolution import evolve
from game_events.lakehouse.commits.restore_check import refuse_restored
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn, counter, txns
from game_events.lakehouse.data.snapshot import files_with
from game_events.lakehouse.data.spark_files import read_files, read_table, spark_schema
from game_events.lakehouse.data.staging import StagedFile
from game_events.lakehouse.data.table_writer import FileStage
from game_events.lakehouse.event_columns import COORDINATES, HEADERS, QUARANTINE_COLUMNS
from game_events.lakehouse.event_expressions import travelling
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import paths, table_id
from game_events.pipeline.context import Pipeline


def is_noted(bronze: DeltaTable, quarantine: DeltaTable) -> bool:
    """Whether quarantine has the mark of bronze's last replay, by these versions."""
    batch = bronze.transaction_version(Txn.REPLAY)
    return batch is None or batch == quarantine.transaction_version(_noted_app(bronze))


@retry_on_conflict()
def note_replay(pipeline: Pipeline) -> None:
    """Mark the rows of a replay that crashed between its commits to bronze and to quarantine, if there is one.

    Raises:
        ConflictError: concurrent runs won every attempt.
        DataError: quarantine was restored: this commit would hide that.
    """
    bronze, quarantine = pipeline.open_bronze(), pipeline.open_quarantine()
    if bronze is None or quarantine is None or is_noted(bronze, quarantine):
        return
    quarantine = refuse_restored(pipeline.quarantine, quarantine)
    app, batch, seen = _noted_app(bronze), counter(bronze, Txn.REPLAY), quarantine.version()
    expected = txns(quarantine, [app])
    quarantine = evolve(pipeline.quarantine, quarantine, QUARANTINE_COLUMNS)
    files, rewritten = _stage(pipeline, bronze, quarantine, batch)
    commit(
        Commit(
            pipeline.quarantine,
            QUARANTINE_COLUMNS,
            files,
            expected,
            advance={app: batch},
            table_id=str(quarantine.metadata().id),
            seen=seen,
            rewritten=rewritten,
            info={"replayed_batch": str(batch)},
        )
    )


def _noted_app(bronze: DeltaTable) -> str:
    return Txn.REPLAY.of(bronze.metadata().id)


def _stage(
    pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable, batch: int
) -> tuple[list[StagedFile], frozenset[str]]:
    """Files with the rows of that batch marked, and the paths of the files that they replace."""
    came = read_files(pipeline.spark, files_with(bronze, batch - 1), spark_schema(bronze.schema()))
    came = came.where(F.col("_batch") == batch).select(*COORDINATES, F.lit(True).alias("_came"))
    held = read_table(pipeline.spark, quarantine).where("layer = 'bronze'")
    touched = held.select(*COORDINATES, file_name()).join(came, list(COORDINATES), "left_semi").select("_file")
    replayed = F.col("_came").isNotNull() & (F.col("layer") == Layer.BRONZE)
    table = F.lit(table_id(bronze))
    return marked_files(
        pipeline, quarantine, touched, came, keys=list(COORDINATES), replayed=replayed, table=table, batch=batch
    )


def file_name() -> Column:
    """Name of the file of each row, as the column `_file`."""
    return F.col("_metadata.file_name").alias("_file")


def marked_files(  # noqa: PLR0913
    pipeline: Pipeline,
    quarantine: DeltaTable,
    touched: DataFrame,
    marks: DataFrame,
    *,
    keys: list[str],
    replayed: Column,
    table: Column,
    batch: int,
) -> tuple[list[StagedFile], frozenset[str]]:
    """Files with rows of quarantine marked as replayed, and the paths of the files that they replace.

    `touched`: names (`_file`) of the files with such rows. `marks` are joined by the columns `keys`; then `replayed` is the
    condition on rows to mark, and `table` the value of `replayed_table`.
    """
    names = {r["_file"] for r in touched.distinct().collect()}
    rewritten = frozenset(path for path in paths(quarantine) if path.rpartition("/")[2] in names)
    uris = [f"{quarantine.table_uri.rstrip('/')}/{path}" for path in rewritten]
    rows = read_files(pipeline.spark, uris, spark_schema(quarantine.schema())).join(marks, keys, "left")
    values = {"replayed_table": table, "replayed_batch": F.lit(batch), "replayed_at": F.current_timestamp()}
    rows = rows.withColumns({n: F.when(replayed, value).otherwise(F.col(n)) for n, value in values.items()})
    rows = rows.select(travelling(QUARANTINE_COLUMNS.names))
    return FileStage(pipeline.quarantine, QUARANTINE_COLUMNS, HEADERS).write(rows), rewritten
