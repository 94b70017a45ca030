"""What `quarantine_events` notes of a replay: when its rows came to bronze, and as which batch."""

from __future__ import annotations

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.lakehouse.commits.commit import Commit, commit, paths
from game_events.lakehouse.commits.evolution import evolve
from game_events.lakehouse.commits.restore_check import refuse_restored
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import files_with, read_files, spark_schema
from game_events.lakehouse.data.staging import StagedFile
from game_events.lakehouse.data.table_writer import FileStage
from game_events.lakehouse.event_columns import COORDINATES, HEADERS, QUARANTINE_COLUMNS, travelling
from game_events.lakehouse.layers import Layer
from game_events.pipeline.context import Pipeline


def is_noted(bronze: DeltaTable, quarantine: DeltaTable) -> bool:
    """Whether this version of quarantine knows of every replay that this version of bronze holds."""
    batch = bronze.transaction_version(Txn.REPLAY)
    return batch is None or batch == quarantine.transaction_version(_noted_app(bronze))


@retry_on_conflict()
def note_replay(pipeline: Pipeline) -> None:
    """Note the replay that bronze has and quarantine does not, if there is one: it crashed between its two commits.

    Raises:
        ConflictError: rivals won every attempt.
        DataError: quarantine was restored: a note would cover that up.
    """
    bronze, quarantine = pipeline.bronze.open(), pipeline.quarantine.open()
    if bronze is None or quarantine is None or is_noted(bronze, quarantine):
        return
    quarantine = refuse_restored(pipeline.quarantine, quarantine)
    _note(pipeline, bronze, quarantine)


def _noted_app(bronze: DeltaTable) -> str:
    return Txn.REPLAY.of(bronze.metadata().id)


def _note(pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable) -> None:
    app = _noted_app(bronze)
    seen = quarantine.version()
    batch, noted = int(bronze.transaction_version(Txn.REPLAY) or 0), quarantine.transaction_version(app)
    quarantine = evolve(pipeline.quarantine, quarantine, QUARANTINE_COLUMNS)
    files, rewritten = _stage(pipeline, bronze, quarantine, batch)
    commit(
        Commit(
            pipeline.quarantine,
            QUARANTINE_COLUMNS,
            files,
            expected={app: noted},
            advance={app: batch},
            table_id=str(quarantine.metadata().id),
            seen=seen,
            rewritten=rewritten,
            info={"replayed_batch": str(batch)},
        )
    )


def _stage(
    pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable, batch: int
) -> tuple[list[StagedFile], frozenset[str]]:
    """Files with the rows of that batch noted, and the paths of those that they stand for."""
    came = read_files(pipeline.spark, files_with(bronze, "_batch", batch - 1), spark_schema(bronze.schema()))
    came = came.where(F.col("_batch") == batch).select(*COORDINATES, F.lit(True).alias("_came"))
    held = read_files(pipeline.spark, quarantine.file_uris(), spark_schema(quarantine.schema())).where("layer = 'bronze'")
    held = held.select(*COORDINATES, F.col("_metadata.file_name").alias("_file"))
    touched = held.join(came, list(COORDINATES), "left_semi").select("_file").distinct().collect()
    names = {r["_file"] for r in touched}
    rewritten = frozenset(path for path in paths(quarantine) if path.rpartition("/")[2] in names)
    files = [f"{quarantine.table_uri.rstrip('/')}/{path}" for path in rewritten]
    rows = read_files(pipeline.spark, files, spark_schema(quarantine.schema()))
    noted = _noted(rows.join(came, list(COORDINATES), "left"), str(bronze.metadata().id), batch)
    return FileStage(pipeline.quarantine, QUARANTINE_COLUMNS, HEADERS).write(noted), rewritten


def _noted(rows: DataFrame, table_id: str, batch: int) -> DataFrame:
    came = F.col("_came").isNotNull() & (F.col("layer") == Layer.BRONZE)
    values = {"replayed_table": F.lit(table_id), "replayed_batch": F.lit(batch), "replayed_at": F.current_timestamp()}
    noted = {n: F.when(came, value).otherwise(F.col(n)) for n, value in values.items()}
    return rows.withColumns(noted).select(travelling(QUARANTINE_COLUMNS.names))
