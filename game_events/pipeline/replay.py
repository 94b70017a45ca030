"""Rows of `quarantine_events` that can be decoded after all -> `bronze_events`, and so by the ordinary way to silver and gold.

Guarantee: a replayed row is in bronze once, through any crash and beside any rival; its row of quarantine stays and says when
it was replayed and as which batch. Bronze's commit is the decision: it carries the rows and the number of the replay (`txn`
``replay``). Quarantine notes it in a second commit; a replay that finds the first without the second notes it before anything
else, so at most one replay is ever without its note.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.decoding.decoder import DecodePlan, TypeKey
from game_events.decoding.frames import SchemaId
from game_events.decoding.reasons import Reason
from game_events.errors import ConflictError, TransientError
from game_events.lakehouse import crash_points
from game_events.lakehouse.commits import Commit, commit, evolve, paths
from game_events.lakehouse.reading import files_with, read_arrow, read_files, spark_schema
from game_events.lakehouse.staging import REPORT_SCHEMA
from game_events.pipeline.bronze import BATCH_APP, FIRST_MESSAGE, RIVAL_ATTEMPTS, column_map
from game_events.pipeline.bronze_stage import OWN_COLUMNS, QUARANTINE_COLUMNS, bronze_schema
from game_events.pipeline.context import Pipeline
from game_events.pipeline.file_stage import FileStage, staged_files
from game_events.pipeline.planning import run_decode_job
from game_events.pipeline.report import RunReport
from game_events.pipeline.stored_stage import StoredTask

log = logging.getLogger(__name__)

#: `txn` of bronze with the batch of the last replay; of quarantine, followed by bronze's id, with the last one noted.
REPLAY_APP = "replay"
#: Unknown ids that a run asks the registry about, those with most rows first: made-up ids may be any number.
IDS_ASKED = 200
COORDINATES = ["_kafka_topic_id", "_kafka_partition", "_kafka_offset"]


@dataclass(frozen=True)
class Selection:
    """Which rows of quarantine to try; empty: all that hold a raw value and are not in bronze.

    Attributes:
        reasons: only these reasons.
        schema_ids: only these schema ids (numbers) or GUIDs (texts).
    """

    reasons: frozenset[str] = frozenset()
    schema_ids: frozenset[SchemaId] = frozenset()

    def condition(self, bronze_id: str) -> Column:
        """As a condition on quarantine's rows."""
        waiting = F.col("replayed_table").isNull() | (F.col("replayed_table") != bronze_id)
        found = (F.col("layer") == "bronze") & F.col("_raw_value").isNotNull() & waiting
        if self.reasons:
            found &= F.col("reason").isin(*sorted(self.reasons))
        if self.schema_ids:
            numbers = [i for i in self.schema_ids if isinstance(i, int)]
            guids = [i for i in self.schema_ids if isinstance(i, str)]
            found &= F.col("_schema_id").isin(*numbers) | F.col("_schema_guid").isin(*guids)
        return found


@dataclass
class Replayed:
    """What a replay did: rows that came to bronze, and those that still cannot be decoded, by reason."""

    rows: int = 0
    left: Counter[str] = field(default_factory=Counter)


def replay(pipeline: Pipeline, report: RunReport, selection: Selection) -> Replayed:
    """Try the selected rows again with what the registry knows now; those that decode are appended to bronze.

    Raises:
        ConflictError: rivals won every attempt.
        TransientError: the registry cannot be asked about a schema that is not archived.
    """
    began = time.monotonic()
    result = Replayed()
    for attempt in range(RIVAL_ATTEMPTS):
        try:
            result = _replay(pipeline, report, selection)
            break
        except ConflictError:
            if attempt == RIVAL_ATTEMPTS - 1:
                raise
    report.replayed += result.rows
    report.seconds["replay"] = report.seconds.get("replay", 0.0) + time.monotonic() - began
    return result


def replay_what_became_known(pipeline: Pipeline, report: RunReport) -> None:
    """What each run does by itself: rows whose schema id the registry knows by now, and rows replayed to a bronze that is gone.

    Costs two looks at table logs where quarantine holds no such rows.
    """
    finish(pipeline)
    quarantine, bronze = pipeline.quarantine.open(), pipeline.bronze.open()
    if quarantine is None or bronze is None:
        return
    ids, elsewhere = _due(pipeline, quarantine, str(bronze.metadata().id))
    try:
        known = frozenset(i for i in ids if pipeline.catalog.knows(i))
    except TransientError:
        log.info("registry_down=true unknown_ids=%d asked_again=next_run", len(ids))
        return
    if known:
        replay(pipeline, report, Selection(frozenset({Reason.UNKNOWN_SCHEMA}), known))
    if elsewhere:
        replay(pipeline, report, Selection())


def finish(pipeline: Pipeline) -> None:
    """Note the replay that bronze has and quarantine does not, if there is one: it crashed between its two commits."""
    bronze, quarantine = pipeline.bronze.open(), pipeline.quarantine.open()
    if bronze is None or quarantine is None:
        return
    app = f"{REPLAY_APP}:{bronze.metadata().id}"
    batch, noted = bronze.transaction_version(REPLAY_APP), quarantine.transaction_version(app)
    if batch is None or batch == noted:
        return
    quarantine = evolve(pipeline.quarantine, quarantine, QUARANTINE_COLUMNS)
    came = read_files(pipeline.spark, files_with(bronze, "_batch", batch - 1), spark_schema(bronze.schema()))
    came = came.where(F.col("_batch") == batch).select(*COORDINATES, F.lit(True).alias("_came"))
    held = read_files(pipeline.spark, quarantine.file_uris(), spark_schema(quarantine.schema())).where("layer = 'bronze'")
    held = held.select(*COORDINATES, F.col("_metadata.file_name").alias("_file"))
    touched = held.join(F.broadcast(came), COORDINATES, "left_semi").select("_file").distinct().collect()
    names = {r["_file"] for r in touched}
    rewritten = frozenset(path for path in paths(quarantine) if path.rpartition("/")[2] in names)
    files = [f"{quarantine.table_uri.rstrip('/')}/{path}" for path in rewritten]
    rows = read_files(pipeline.spark, files, spark_schema(quarantine.schema()))
    staged = _noted(rows.join(F.broadcast(came), COORDINATES, "left"), str(bronze.metadata().id), batch).mapInArrow(
        FileStage(pipeline.quarantine, QUARANTINE_COLUMNS), REPORT_SCHEMA
    )
    commit(
        Commit(
            pipeline.quarantine,
            QUARANTINE_COLUMNS,
            staged_files(staged.collect()),
            expected={app: noted},
            advance={app: batch},
            table_id=str(quarantine.metadata().id),
            rewritten=rewritten,
            info={"replayed_batch": str(batch)},
        )
    )


def _noted(rows: DataFrame, table_id: str, batch: int) -> DataFrame:
    came = F.col("_came").isNotNull() & (F.col("layer") == "bronze")
    values = {"replayed_table": F.lit(table_id), "replayed_batch": F.lit(batch), "replayed_at": F.current_timestamp()}
    return rows.select(
        *(F.when(came, values[n]).otherwise(F.col(n)).alias(n) if n in values else n for n in QUARANTINE_COLUMNS.names)
    )


def _replay(pipeline: Pipeline, report: RunReport, selection: Selection) -> Replayed:
    finish(pipeline)
    bronze, quarantine = pipeline.bronze.open(), pipeline.quarantine.open()
    if bronze is None or quarantine is None:
        return Replayed()
    quarantine = evolve(pipeline.quarantine, quarantine, QUARANTINE_COLUMNS)
    batch = int(bronze.transaction_version(BATCH_APP) or 0) + 1
    held = read_files(pipeline.spark, quarantine.file_uris(), spark_schema(quarantine.schema()))
    rows = held.where(selection.condition(str(bronze.metadata().id))).select(*OWN_COLUMNS.names)
    pipeline.on_progress("replay: rows of quarantine are tried again")

    def task(plan: DecodePlan) -> StoredTask:
        return StoredTask(pipeline.bronze, plan, batch, pipeline.settings.keep_raw == "all", keep_undecodable=False)

    wanted: set[TypeKey] = {(i, FIRST_MESSAGE) for i in selection.schema_ids}
    staged = run_decode_job(pipeline, column_map(bronze), wanted, lambda: rows, task)
    crash_points.reach("replay_staged")
    if not staged.bronze:
        return Replayed(0, staged.reasons)
    pipeline.catalog.archive(i for i, _ in staged.types)
    schema = bronze_schema(pipeline.catalog.message_columns(column_map(bronze), staged.types))
    last = bronze.transaction_version(REPLAY_APP)
    plan = Commit(
        pipeline.bronze,
        schema,
        staged.bronze,
        expected={BATCH_APP: batch - 1, REPLAY_APP: last},
        advance={BATCH_APP: batch, REPLAY_APP: batch},
        table_id=str(bronze.metadata().id),
        info={"batch": str(batch), "replay_of": "quarantine_events", "run_id": pipeline.run_id},
    )
    landed = commit(plan)
    crash_points.reach("replay_committed")
    known = {f.name for f in bronze.schema().fields}
    entry = report.add_landed("bronze", pipeline.bronze, landed, schema, batch)
    entry.new_columns += [f.name for f in schema if f.name not in known]
    report.batches.append(batch)
    report.schema_ids.update(i for i, _ in staged.types)
    finish(pipeline)
    log.info("replayed_rows=%d batch=%d left=%s", landed.rows, batch, dict(staged.reasons))
    return Replayed(landed.rows, staged.reasons)


def _due(pipeline: Pipeline, quarantine: DeltaTable, bronze_id: str) -> tuple[list[SchemaId], bool]:
    """Ids that were unknown, most rows first; and whether rows were replayed to another bronze. Only files that may say so."""
    actions = pa.table(quarantine.get_add_actions(flatten=True))
    if "max.reason" not in actions.column_names:
        return [], False
    waits = pc.or_kleene(pc.is_null(actions["max.reason"]), pc.greater_equal(actions["max.reason"], Reason.UNKNOWN_SCHEMA))
    elsewhere = pa.array([False] * actions.num_rows)
    if "null_count.replayed_batch" in actions.column_names:
        open_rows = pc.not_equal(pc.fill_null(actions["null_count.replayed_batch"], -1), 0)
        waits = pc.and_kleene(waits, open_rows)
    if "max.replayed_table" in actions.column_names:
        other = [pc.not_equal(actions[f"{end}.replayed_table"], bronze_id) for end in ("min", "max")]
        elsewhere = pc.fill_null(pc.or_kleene(*other), False)
    chosen = actions.filter(pc.fill_null(waits, True)).column("path").to_pylist()
    ids: Counter[SchemaId] = Counter()
    if chosen:
        columns = ["reason", "_schema_id", "_schema_guid", "replayed_batch"]
        found = read_arrow(pipeline.quarantine, quarantine, columns, chosen)
        unknown = found.filter(pc.equal(found["reason"], Reason.UNKNOWN_SCHEMA))
        if "replayed_batch" in unknown.column_names:
            unknown = unknown.filter(pc.is_null(unknown["replayed_batch"]))
        for name in {"_schema_id", "_schema_guid"} & set(unknown.column_names):
            counted = pc.value_counts(unknown[name].drop_null())
            ids.update({entry["values"]: entry["counts"] for entry in counted.to_pylist()})
    return [i for i, _ in ids.most_common(IDS_ASKED)], bool(pc.any(elsewhere).as_py())


def selection_of(reasons: Collection[str], schema_ids: Collection[str]) -> Selection:
    """A selection from a user's words: ids are numbers, GUIDs anything else."""
    return Selection(frozenset(reasons), frozenset(int(i) if i.isdigit() else i for i in schema_ids))
