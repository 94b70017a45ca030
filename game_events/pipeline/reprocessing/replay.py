"""Replay: rows of `quarantine_events` that can be decoded now are appended to `bronze_events`, as a new batch.

Guarantee: a replayed row is in bronze once, through any crash and beside concurrent runs; its row of quarantine stays, with the
time and the batch of the replay. Bronze's commit is the decision: it has the rows and the number of the replay (`txn`
``replay``). A second commit marks the rows of quarantine; a replay first completes the marks of the last one, so at most one
replay is without its marks.
"""

import logging
import time
from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.decoding.batch_decoder import DecodePlan, TypeKey
from game_events.decoding.core.reasons import NO_RECORD
from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import commit
from game_events.lakehouse.commits.evolution import evolve
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn, counter, txns
from game_events.lakehouse.data.snapshot import may_hold
from game_events.lakehouse.data.spark_files import read_files, read_table, spark_schema
from game_events.lakehouse.event_columns import COORDINATES, FIRST_MESSAGE, OWN_COLUMNS, QUARANTINE_COLUMNS, column_map
from game_events.lakehouse.event_expressions import of_schemas, travelling
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import add_actions, names_of
from game_events.pipeline.bronze.load import archive_schemas, commit_of, report_batch
from game_events.pipeline.bronze.staging import run_decode_job
from game_events.pipeline.bronze.stored_worker import StoredTask
from game_events.pipeline.bronze.worker import StageResult
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.commits import erase_from_quarantine
from game_events.pipeline.quarantine.full_refresh import finish_reset, is_finished
from game_events.pipeline.quarantine.intact import intact_tables
from game_events.pipeline.quarantine.replay_marks import is_noted, note_replay
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult
from game_events.pipeline.reprocessing.selection import ReplaySelection
from game_events.pipeline.state.commit_info import batch_info
from game_events.pipeline.suppression.driver import erasure_fence, suppression
from game_events.spark.crashed_workers import WORKER_CRASHED, crashes_explained

log = logging.getLogger(__name__)


@dataclass
class Replayed:
    """Result of a replay: rows added to bronze, and rows that still cannot be decoded, by reason."""

    rows: int = 0
    left: Counter[str] = field(default_factory=Counter)


def replay(pipeline: Pipeline, report: RunReport, selection: ReplaySelection) -> Replayed:
    """Decode the selected rows with the schemas known now, and append those that decode to bronze.

    Raises:
        ConflictError: every attempt lost to concurrent runs.
        DataError: quarantine was altered so that its rows cannot be replaced (`Table.writable`): nothing was done.
        TransientError: a schema is not archived, and the registry does not answer.
    """
    began = time.monotonic()
    result = _replay(pipeline, report, selection)
    report.add(BronzeResult(replayed=result.rows))
    report.add_seconds("replay", time.monotonic() - began)
    return result


@retry_on_conflict()
def _replay(pipeline: Pipeline, report: RunReport, selection: ReplaySelection) -> Replayed:
    tables = _settled_tables(pipeline, report)
    if tables is None:
        return Replayed()
    bronze, quarantine = tables
    quarantine = evolve(pipeline.quarantine, quarantine, QUARANTINE_COLUMNS)
    batch = counter(bronze, Txn.BATCH) + 1
    pipeline.on_progress("replay: rows of quarantine are tried again")
    staged = _stage(pipeline, bronze, quarantine, selection, batch, report)
    failpoints.reach("replay_staged")
    # Rows of erased data subjects that are recognized only now that they decode.
    report.add(BronzeResult(suppressed=erase_from_quarantine(pipeline, staged.suppressed_records)))
    if not staged.bronze:
        return Replayed(0, staged.reasons)
    rows = _commit(pipeline, report, bronze, staged, batch)
    note_replay(pipeline)
    failpoints.reach("replay_noted")
    log.info("replayed_rows=%d batch=%d left=%s", rows, batch, dict(staged.reasons))
    return Replayed(rows, staged.reasons)


def _commit(pipeline: Pipeline, report: RunReport, bronze: DeltaTable, staged: StageResult, batch: int) -> int:
    """Append the staged rows to bronze, and report them; returns their number."""
    archive_schemas(pipeline, report, staged)
    expected = txns(bronze, [Txn.REPLAY]) | {Txn.BATCH: batch - 1} | erasure_fence(bronze)
    info = batch_info(batch, sum(f.rows for f in staged.bronze)) | {"replay_of": pipeline.quarantine.name}
    plan = commit_of(pipeline, bronze, staged, expected, {Txn.BATCH: batch, Txn.REPLAY: batch}, info)
    landed = commit(plan)
    failpoints.reach("replay_committed")
    report.add(BronzeResult(nulled=staged.nulled))
    report_batch(pipeline, report, names_of(bronze), plan, landed, staged)
    return landed.rows


def _stage(
    pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable, selection: ReplaySelection, batch: int, report: RunReport
) -> StageResult:
    """Decode the selected rows that bronze lacks; commits nothing."""
    held = read_table(pipeline.spark, quarantine)
    waiting = held.where(_condition(selection, str(bronze.metadata().id)))
    rows = _not_in_bronze(pipeline, bronze, waiting, report).select(travelling(OWN_COLUMNS.names))
    keep_raw, subjects = pipeline.settings.keep_raw == "all", suppression(pipeline, bronze)
    job = StoredTask(pipeline.bronze, None, DecodePlan(), batch, keep_raw, keep_undecodable=False, suppression=subjects)
    wanted: set[TypeKey] = {(i, FIRST_MESSAGE) for i in selection.schema_ids}
    with crashes_explained(f" over rows of {pipeline.quarantine.name}"):
        return run_decode_job(pipeline, job, rows, column_map(bronze), wanted)[1]


def _condition(selection: ReplaySelection, bronze_id: str) -> Column:
    """The condition for undecodable rows of quarantine."""
    waiting = F.col("replayed_table").isNull() | (F.col("replayed_table") != bronze_id)
    found = (F.col("layer") == Layer.BRONZE) & F.col("_raw_value").isNotNull() & waiting
    found &= ~F.col("reason").isin(*map(str, NO_RECORD))
    if selection.reasons:
        found &= F.col("reason").isin(*sorted(selection.reasons))
    else:
        # They would crash the job.
        found &= ~F.coalesce(F.col("detail").startswith(WORKER_CRASHED), F.lit(False))
    if selection.schema_ids:
        found &= of_schemas(selection.schema_ids)
    return found


def _not_in_bronze(pipeline: Pipeline, bronze: DeltaTable, waiting: DataFrame, report: RunReport) -> DataFrame:
    """Rows of quarantine that bronze lacks; only an early version of this project has left rows that are in both."""
    offset = F.col("_kafka_offset")
    ranges = waiting.groupBy("_kafka_partition").agg(F.min(offset).alias("first"), F.max(offset).alias("last")).collect()
    actions = add_actions(bronze)
    chosen = pa.repeat(False, actions.num_rows)
    for partition, first, last in ranges:
        of_partition = may_hold(actions, "_kafka_partition", partition, partition)
        chosen = pc.or_(chosen, pc.and_(of_partition, may_hold(actions, "_kafka_offset", first, last)))
    files = [f"{bronze.table_uri.rstrip('/')}/{path}" for path in actions.filter(chosen)["path"].to_pylist()]
    there = read_files(pipeline.spark, files, spark_schema(bronze.schema())).select(*COORDINATES)
    twice = waiting.join(there, list(COORDINATES), "left_semi").count() if files else 0
    if not twice:
        return waiting
    here, there_too = pipeline.quarantine.name, pipeline.bronze.name
    report.warn(f"{twice:,} rows of {here} are in {there_too} already: they are not added again")
    return waiting.join(there, list(COORDINATES), "left_anti")


def _settled_tables(pipeline: Pipeline, report: RunReport) -> tuple[DeltaTable, DeltaTable] | None:
    """Bronze and quarantine, interrupted work on both completed; None without one; ConflictError if a run has begun more."""
    finish_reset(pipeline, report)
    note_replay(pipeline)
    bronze, quarantine = intact_tables(pipeline, report) or (None, None)
    if bronze is None or quarantine is None:
        return None
    if not is_finished(bronze, quarantine):
        # Bronze may have the rows that quarantine still has.
        raise ConflictError(f"{pipeline.quarantine.name}: a concurrent full refresh of bronze is not finished yet")
    if not is_noted(bronze, quarantine):
        # The replayed rows are not marked yet: they would be in bronze twice.
        raise ConflictError(f"{pipeline.quarantine.name}: a concurrent replay is not noted yet")
    # Its rows are marked after bronze's commit.
    return bronze, pipeline.quarantine.writable(quarantine, replaced=True)
