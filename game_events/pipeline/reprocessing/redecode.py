"""Bronze's decoded columns, rebuilt from its raw values: without Kafka, in one atomic commit.

Guarantee: rows, coordinates, batches and progress stay; readers see the old columns or the new. A row that does not decode any
more, or holds no raw value, keeps the columns it has and is counted; one of a message type that is not selected has none.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from game_events.decoding.batch_decoder import DecodePlan, TypeKey
from game_events.decoding.core.reasons import Reason
from game_events.errors import ConflictError, DataError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.evolution import evolve
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import read_files, row_count, spark_schema
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.event_columns import FIRST_MESSAGE, OWN_COLUMNS, bronze_schema, column_map, schema_ids, travelling
from game_events.lakehouse.layers import Layer
from game_events.pipeline.bronze.decode_job import StageResult, run_decode_job
from game_events.pipeline.bronze.stored_worker import StoredTask
from game_events.pipeline.column_comments import documented
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.commits import erase_from_quarantine
from game_events.pipeline.quarantine.intact import intact_tables
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult
from game_events.pipeline.state.commit_info import ERASED_BY_BATCH
from game_events.pipeline.suppression.driver import suppression, unfenced
from game_events.spark.crashed_workers import crashes_explained

#: Why a row keeps its columns although nothing is wrong with it: bronze was written with `keep_raw: failures`.
NO_RAW_VALUE = "NO_RAW_VALUE"


@dataclass
class Redecoded:
    """What happened.

    Attributes:
        rows: rows of the table.
        kept: rows that keep the columns they had, by reason (`NO_RAW_VALUE`: bronze did not keep it).
        new_columns: columns that bronze did not have before.
        other_types: rows of message types that are not selected, which are in no decoded column now.
    """

    rows: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    new_columns: list[str] = field(default_factory=list)
    other_types: Counter[str] = field(default_factory=Counter)


def redecode(pipeline: Pipeline, report: RunReport) -> Redecoded:
    """Decode every row of bronze again with what is known now. One Spark job over the whole table.

    Silver and gold keep what they have; a full refresh of silver takes the new columns over.

    Raises:
        ConflictError: a run committed to bronze meanwhile: nothing has changed, run it again.
        DataError: bronze or quarantine was restored, quarantine was deleted, or rows are missing: nothing has changed.
        TransientError: a schema is neither archived nor can the registry be asked.
    """
    began = time.monotonic()
    handle, _ = intact_tables(pipeline, report) or (None, None)
    if handle is None or not row_count(handle):
        return Redecoded()
    before = {f.name for f in handle.schema().fields}
    handle = evolve(pipeline.bronze, handle, OWN_COLUMNS)
    batch = int(handle.transaction_version(Txn.BATCH) or 0)
    rows = read_files(pipeline.spark, handle.file_uris(), spark_schema(handle.schema()))
    pipeline.on_progress(f"redecode: {row_count(handle):,} rows of bronze")

    whom = suppression(pipeline, handle)
    job = StoredTask(pipeline.bronze, None, DecodePlan(), None, keep_raw=True, keep_undecodable=True, suppression=whom)
    with crashes_explained(f" while it decoded {pipeline.bronze.name} anew"):
        staged = run_decode_job(pipeline, job, rows.select(travelling(rows.columns)), column_map(handle), _types_of(rows))
    failpoints.reach("redecode_staged")
    written = sum(f.rows for f in staged.bronze)
    if written + staged.suppressed != row_count(handle):
        discard(pipeline.bronze, staged.bronze)
        raise DataError(f"redecode wrote {written} rows of {row_count(handle)}: nothing was committed; please report this")
    info = {"redecode": "all decoded columns rebuilt from raw values", "run_id": pipeline.run_id}
    if staged.suppressed:
        info[ERASED_BY_BATCH] = _erase(pipeline, report, staged)
    columns = pipeline.catalog.message_columns(column_map(handle), staged.types)
    schema = documented(pipeline, bronze_schema(columns), columns, staged.types)
    count = handle.transaction_version(Txn.REDECODE)
    try:
        landed = commit(
            Commit(
                pipeline.bronze,
                schema,
                staged.bronze,
                expected={Txn.BATCH: batch, Txn.REDECODE: count} | unfenced(handle),
                # The batch too, as it is: of two commits that name it, Delta lets one land, however close they come.
                advance={Txn.REDECODE: (count or 0) + 1, Txn.BATCH: batch},
                table_id=str(handle.metadata().id),
                replace=True,
                owns_map=True,
                info=info,
            )
        )
    except ConflictError as error:
        raise ConflictError(
            f"{error}. Nothing was changed: run `game-events redecode` again while no run is under way"
        ) from None
    failpoints.reach("redecode_committed")
    report.add_landed(Layer.BRONZE, pipeline.bronze, landed, schema, batch, known_columns=before)
    report.add_seconds(Layer.BRONZE, time.monotonic() - began)
    kept = Counter({NO_RAW_VALUE if why == Reason.TOMBSTONE else why: n for why, n in staged.reasons.items()})
    new_columns = [name for name in schema.names if name not in before]
    return Redecoded(landed.rows, kept, new_columns, pipeline.catalog.other_types(staged.undecoded))


def _types_of(rows: DataFrame) -> list[TypeKey]:
    """The types that rows of bronze were written with."""
    return [(schema_id, FIRST_MESSAGE) for schema_id in schema_ids(rows)]


def _erase(pipeline: Pipeline, report: RunReport, staged: StageResult) -> str:
    """Forgotten gamers whose id was in no column before go from quarantine too; returns their rows by batch, as JSON.

    What silver has of them goes when it is made anew. What rules have rejected goes before bronze's commit: once bronze's rows
    are gone nothing leads to it.
    """
    erase_from_quarantine(pipeline, staged.suppressed_records)
    report.add(BronzeResult(suppressed=staged.suppressed))
    report.warn(
        f"{staged.suppressed:,} rows of forgotten gamers, who were not recognised before, are gone from bronze and "
        "quarantine: take that over with `game-events redecode --downstream`"
    )
    return json.dumps(Counter(batch for _, _, _, batch in staged.suppressed_records))
