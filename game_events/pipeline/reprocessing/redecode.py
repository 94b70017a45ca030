"""Redecode: bronze's decoded columns are rebuilt from its raw values, without Kafka, in one atomic commit.

Guarantee: rows, coordinates, batches and progress stay; readers see the old columns or the new. A row that does not decode any
more, or has no raw value, keeps its columns and is counted; a row of a message type that is not selected has none.
"""

import json
import time
from collections import Counter
from dataclasses import dataclass, field, replace

import pyarrow as pa
from deltalake import DeltaTable

from game_events.decoding.batch_decoder import DecodePlan
from game_events.decoding.core.reasons import Reason
from game_events.errors import ConflictError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Landed, commit
from game_events.lakehouse.commits.evolution import evolve
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.event_columns import FIRST_MESSAGE, OWN_COLUMNS, column_map
from game_events.lakehouse.event_expressions import schema_ids, travelling
from game_events.lakehouse.layers import Layer
from game_events.pipeline.bronze.load import commit_of
from game_events.pipeline.bronze.staging import run_decode_job
from game_events.pipeline.bronze.stored_worker import StoredTask
from game_events.pipeline.bronze.worker import StageResult
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.commits import erase_from_quarantine
from game_events.pipeline.quarantine.intact import intact_tables
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult
from game_events.pipeline.state.commit_info import ERASED_BY_BATCH
from game_events.pipeline.suppression.driver import erasure_fence, suppression
from game_events.spark.crashed_workers import crashes_explained

#: Reason of rows that keep their columns because bronze was written with `keep_raw: failures`.
NO_RAW_VALUE = "NO_RAW_VALUE"


@dataclass
class Redecoded:
    """Result: rows, those that keep their columns by reason, new columns, and rows of types that are not selected."""

    rows: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    new_columns: list[str] = field(default_factory=list)
    other_types: Counter[str] = field(default_factory=Counter)


def redecode(pipeline: Pipeline, report: RunReport) -> Redecoded:
    """Decode every row of bronze again with the schemas known now, by one Spark job; silver and gold stay as they are.

    Raises:
        ConflictError: a concurrent run committed to bronze: nothing has changed, run it again.
        DataError: bronze or quarantine was restored, quarantine was deleted, bronze was altered so that its rows cannot be
            replaced (`Table.writable`), or rows are missing: nothing has changed.
        TransientError: a schema is not archived, and the registry does not answer.
    """
    began = time.monotonic()
    handle, _ = intact_tables(pipeline, report) or (None, None)
    if handle is None or not row_count(handle):
        return Redecoded()
    pipeline.bronze.writable(handle, replaced=True)
    before = {f.name for f in handle.schema().fields}
    handle = evolve(pipeline.bronze, handle, OWN_COLUMNS)
    staged = _stage(pipeline, handle)
    failpoints.reach("redecode_staged")
    info = {"redecode": "all decoded columns rebuilt from raw values"}
    if staged.suppressed:
        info[ERASED_BY_BATCH] = _erase(pipeline, report, staged)
    landed, schema = _commit(pipeline, handle, staged, info)
    failpoints.reach("redecode_committed")
    report.add(BronzeResult(nulled=staged.nulled))
    report.add_landed(Layer.BRONZE, pipeline.bronze, landed, schema, counter(handle, Txn.BATCH), known_columns=before)
    report.add_seconds(Layer.BRONZE, time.monotonic() - began)
    kept = Counter({NO_RAW_VALUE if why == Reason.TOMBSTONE else why: n for why, n in staged.reasons.items()})
    new_columns = [name for name in schema.names if name not in before]
    return Redecoded(landed.rows, kept, new_columns, pipeline.catalog.other_types(staged.undecoded))


def _stage(pipeline: Pipeline, handle: DeltaTable) -> StageResult:
    """Write all rows with new decoded columns to files; DataError if rows are missing in them."""
    total = row_count(handle)
    rows = read_table(pipeline.spark, handle)
    pipeline.on_progress(f"redecode: {total:,} rows of bronze")
    subjects, types = suppression(pipeline, handle), [(schema_id, FIRST_MESSAGE) for schema_id in schema_ids(rows)]
    job = StoredTask(pipeline.bronze, None, DecodePlan(), None, keep_raw=True, keep_undecodable=True, suppression=subjects)
    with crashes_explained(f" during the redecode of {pipeline.bronze.name}"):
        _, staged = run_decode_job(pipeline, job, rows.select(travelling(rows.columns)), column_map(handle), types)
    written = sum(f.rows for f in staged.bronze)
    if written + staged.suppressed != total:
        discard(pipeline.bronze, staged.bronze)
        raise DataError(f"redecode wrote {written} rows of {total}: nothing was committed; please report this")
    return staged


def _commit(pipeline: Pipeline, handle: DeltaTable, staged: StageResult, info: dict[str, str]) -> tuple[Landed, pa.Schema]:
    """Replace bronze's files by the staged ones."""
    batch, count = counter(handle, Txn.BATCH), handle.transaction_version(Txn.REDECODE)
    expected = erasure_fence(handle) | {Txn.BATCH: batch, Txn.REDECODE: count}
    # The unchanged batch, too: of two concurrent commits with the same `txn`, Delta lets only one succeed.
    advance: dict[str, int] = {Txn.REDECODE: (count or 0) + 1, Txn.BATCH: batch}
    plan = replace(commit_of(pipeline, handle, staged, expected, advance, info), replace=True, seen=None)
    try:
        return commit(plan), plan.schema
    except ConflictError as error:
        raise ConflictError(
            f"{error}. Nothing was changed: run `game-events redecode` again while no run is under way"
        ) from None


def _erase(pipeline: Pipeline, report: RunReport, staged: StageResult) -> str:
    """Erase rows of data subjects that were not recognized before from quarantine, too; returns their rows by batch, as JSON.

    Before bronze's commit: the rows that rules have rejected are found by bronze's rows. A full refresh of silver removes the
    rows there.
    """
    erase_from_quarantine(pipeline, staged.suppressed_records)
    report.add(BronzeResult(suppressed=staged.suppressed))
    report.warn(
        f"{staged.suppressed:,} rows of erased data subjects, not recognised before, were erased from bronze and quarantine: "
        "erase them from silver and gold with `game-events redecode --downstream`"
    )
    return json.dumps(Counter(batch for _, _, _, batch in staged.suppressed_records))
