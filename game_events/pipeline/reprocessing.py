"""Rows that are decoded again: replay of quarantine, by hand and by itself, and decoding all of bronze once more.

Replay: rows of `quarantine_events` that can be decoded now are appended to `bronze_events`, as a new batch.

Guarantee: a replayed row is in bronze once, through any crash and beside concurrent runs; its row of quarantine stays, with the
time and the batch of the replay. Bronze's commit is the decision. A second commit marks the rows of quarantine; a replay first
completes the marks of the last one, so at most one replay is without its marks (`quarantine.complete_quarantine`).

Redecode: bronze's decoded columns are rebuilt from its raw values, without Kafka, in one atomic commit.

Guarantee: rows, coordinates, batches and progress stay; readers see the old columns or the new. A row that does not decode any
more, or has no raw value, keeps its columns and is counted; a row of a message type that is not selected has none.

Automatic replay in each run: rows with a schema that became known, and rows replayed to a bronze that is gone.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.config.masking import without_secrets
from game_events.config.sources.several import registry_names
from game_events.decoding.decoder import DecodePlan, TypeKey
from game_events.decoding.frame import NO_RECORD, Reason, SchemaId
from game_events.errors import ConfigurationError, ConflictError, DataError, TransientError, many
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import commit, refuse_restored, retry_on_conflict, without_rows
from game_events.lakehouse.commits.evolution import evolve
from game_events.lakehouse.commits.transactions import Txn, counter, txn, txns
from game_events.lakehouse.data.columns import (
    COORDINATES,
    FIRST_MESSAGE,
    OWN_COLUMNS,
    QUARANTINE_COLUMNS,
    SCHEMA_COLUMNS,
    SOURCE,
    id_of_row,
    is_sourced,
    own_columns,
)
from game_events.lakehouse.data.reading import may_hold, read_parts, row_count
from game_events.lakehouse.data.spark_files import of_schemas, read_files, read_table, spark_schema, stored_types, travelling
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.tables import Layer, add_actions, names_of, paths, table_id
from game_events.pipeline.bronze.load import archive_schemas, commit_of, report_batch, run_decode_job
from game_events.pipeline.context import Pipeline, erase_rejected, record_filter
from game_events.pipeline.definitions import is_first, refuse_misfits, refuse_other_types, refuse_others, report_definitions
from game_events.pipeline.offsets import ERASED_BY_BATCH, batch_info
from game_events.pipeline.quarantine import complete_quarantine, intact_tables, is_finished, is_noted, quarantine_rows
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult
from game_events.spark.failures import WORKER_CRASHED, crashes_explained
from game_events.workers.decode import StoredTask
from game_events.workers.results import StagedRows

log = logging.getLogger(__name__)


@dataclass
class Replayed:
    """Rows added to bronze, and rows that still cannot be decoded, by reason."""

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
    complete_quarantine(pipeline, report)
    bronze, quarantine = intact_tables(pipeline, report) or (None, None)
    if bronze is None or quarantine is None:
        return Replayed()
    # Else bronze may have rows that quarantine still has, or that are not marked in it yet.
    if not (is_finished(bronze, quarantine) and is_noted(bronze, quarantine)):
        raise ConflictError(f"{pipeline.quarantine.name}: a concurrent full refresh or replay is not finished yet")
    pipeline.quarantine.writable(quarantine, replaced=True)  # its rows are marked after bronze's commit
    refuse_others(pipeline, bronze)
    batch = counter(bronze, Txn.BATCH) + 1
    pipeline.on_progress("replay: rows of quarantine are tried again")
    staged = _stage(pipeline, bronze, quarantine, selection, batch, report)
    failpoints.reach("replay_staged")
    # Rows of erased people that are recognized only now that they decode.
    report.add(BronzeResult(suppressed=erase_rejected(pipeline, staged.suppressed_records)))
    if not staged.bronze:
        return Replayed(0, staged.reasons)
    archive_schemas(pipeline, report, staged)
    expected = txns(bronze, (Txn.REPLAY, Txn.ERASURES)) | {Txn.BATCH: batch - 1}
    info = batch_info(batch, sum(f.rows for f in staged.bronze)) | {"replay_of": pipeline.quarantine.name}
    plan = commit_of(pipeline, bronze, staged, expected, {Txn.BATCH: batch, Txn.REPLAY: batch}, info)
    landed = commit(plan)
    failpoints.reach("replay_committed")
    report.add(BronzeResult(nulled=staged.nulled, rescued=staged.rescued))
    report_definitions(pipeline, report, bronze, staged)
    report_batch(pipeline, report, names_of(bronze), plan, landed, staged)
    complete_quarantine(pipeline, report)
    failpoints.reach("replay_noted")
    log.info("replayed_rows=%d batch=%d left=%s", landed.rows, batch, dict(staged.reasons))
    return Replayed(landed.rows, staged.reasons)


def _stage(
    pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable, selection: ReplaySelection, batch: int, report: RunReport
) -> StagedRows:
    """Decode the selected rows that bronze lacks; commits nothing."""
    waiting = quarantine_rows(pipeline, paths(quarantine))
    registries = registry_names(pipeline.settings) if SOURCE in waiting.columns else None
    waiting = waiting.where(_condition(selection, table_id(bronze), registries))
    own = own_columns(OWN_COLUMNS, sourced=SOURCE in waiting.columns)
    rows = _not_in_bronze(pipeline, bronze, waiting, report).select(travelling(own.names))
    keep_raw = pipeline.settings.keep_raw == "all"
    kept_out = record_filter(pipeline, bronze)
    job = StoredTask(pipeline.bronze, None, DecodePlan(), batch, keep_raw, keep_undecodable=False, record_filter=kept_out)
    wanted: set[TypeKey] = {(i, FIRST_MESSAGE) for i in selection.schema_ids}
    with crashes_explained(f" over rows of {pipeline.quarantine.name}"):
        return run_decode_job(pipeline, job, rows, pipeline.column_map(bronze), wanted)[1]


def _condition(selection: ReplaySelection, bronze_id: str | None, registries: Mapping[str, str] | None) -> Column:
    """The condition for undecodable rows of quarantine."""
    waiting = F.col("replayed_table").isNull() | (F.col("replayed_table") != bronze_id)
    chosen = (F.col("layer") == Layer.BRONZE) & F.col("_raw_value").isNotNull() & waiting
    chosen &= ~F.col("reason").isin(*map(str, NO_RECORD))
    if selection.reasons:
        chosen &= F.col("reason").isin(*sorted(selection.reasons))
    else:
        # They would crash the job.
        chosen &= ~F.coalesce(F.col("detail").startswith(WORKER_CRASHED), F.lit(False))
    if selection.schema_ids:
        chosen &= of_schemas(selection.schema_ids, registries)
    return chosen


def _not_in_bronze(pipeline: Pipeline, bronze: DeltaTable, waiting: DataFrame, report: RunReport) -> DataFrame:
    """Rows of quarantine that bronze lacks: an older copy of quarantine lacks the marks of all replays but the last."""
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
    report.warn(f"{twice:,} rows of {pipeline.quarantine.name} are in {pipeline.bronze.name} already: they are not added again")
    return waiting.join(there, list(COORDINATES), "left_anti")


#: Reason of rows that keep their columns because bronze was written with `keep_raw: failures`.
NO_RAW_VALUE = "NO_RAW_VALUE"


@dataclass
class Redecoded:
    """Rows, those that keep their columns by reason, new columns, and rows of types that are not selected."""

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
    refuse_other_types(pipeline, handle)
    is_redefined = is_first(pipeline, handle)
    before = names_of(handle)
    handle = evolve(pipeline.bronze, handle, OWN_COLUMNS)
    staged = _stage_redecoded(pipeline, handle)
    try:
        refuse_misfits(pipeline, handle, staged)
    except ConfigurationError:
        discard(pipeline.bronze, staged.bronze)
        raise
    failpoints.reach("redecode_staged")
    info = {"redecode": "all decoded columns rebuilt from raw values"}
    if staged.suppressed:
        # Before bronze's commit: the rows that rules have rejected are found by bronze's rows. A full refresh of silver removes
        # the rows there.
        erase_rejected(pipeline, staged.suppressed_records)
        report.add(BronzeResult(suppressed=staged.suppressed))
        report.warn(
            f"{staged.suppressed:,} rows of erased people, not recognised before, were erased from bronze and quarantine: "
            "erase them from silver and gold with `game-events redecode --downstream`"
        )
        info[ERASED_BY_BATCH] = json.dumps(Counter(batch for _, _, _, batch in staged.suppressed_records))
    batch = counter(handle, Txn.BATCH)
    expected = txns(handle, (Txn.ERASURES, Txn.REDECODE, Txn.EXPIRED, Txn.RAW_EXPIRED)) | {Txn.BATCH: batch}
    # The unchanged batch, too: of two concurrent commits with the same `txn`, Delta lets only one succeed.
    advance: dict[str, int] = {Txn.REDECODE: counter(handle, Txn.REDECODE) + 1, Txn.BATCH: batch}
    plan = replace(commit_of(pipeline, handle, staged, expected, advance, info), replace=True, from_version=None)
    try:
        landed = commit(plan)
    except ConflictError as error:
        advice = "Nothing was changed: run `game-events redecode` again while no run is under way"
        raise ConflictError(f"{error}. {advice}") from None
    failpoints.reach("redecode_committed")
    report.add(BronzeResult(nulled=staged.nulled, rescued=staged.rescued))
    report_definitions(pipeline, report, handle, staged)
    if is_redefined:
        report.warn(*_not_redefined(pipeline, staged))
    report.add_landed(Layer.BRONZE, pipeline.bronze, landed, plan.schema, batch, known_columns=before)
    report.add_seconds(Layer.BRONZE, time.monotonic() - began)
    new_columns = [name for name in plan.schema.names if name not in before]
    return Redecoded(landed.rows, _kept(staged), new_columns, pipeline.catalog.other_types(staged.undecoded))


def _not_redefined(pipeline: Pipeline, staged: StagedRows) -> list[str]:
    """A warning about rows that have the game, player and time of earlier definitions."""
    rows = sum(_kept(staged).values())
    if not rows:
        return []
    return [
        f"{many(rows, 'row')} of {pipeline.bronze.name} keep the game, player and time of before: they hold no raw value that "
        "can be decoded; only a full refresh of bronze gives them what the settings define now"
    ]


def _kept(staged: StagedRows) -> Counter[str]:
    """Rows that stay as they are, by reason."""
    return Counter({NO_RAW_VALUE if why == Reason.TOMBSTONE else why: n for why, n in staged.reasons.items()})


def _stage_redecoded(pipeline: Pipeline, handle: DeltaTable) -> StagedRows:
    """Write all rows with new decoded columns to files; DataError if rows are missing in them."""
    total = row_count(handle)
    rows = read_table(pipeline.spark, handle)
    pipeline.on_progress(f"redecode: {total:,} rows of bronze")
    kept_out = record_filter(pipeline, handle)
    types = pipeline.catalog.types_of_stored(stored_types(rows))
    job = StoredTask(pipeline.bronze, None, DecodePlan(), None, keep_raw=True, keep_undecodable=True, record_filter=kept_out)
    with crashes_explained(f" during the redecode of {pipeline.bronze.name}"):
        _, staged = run_decode_job(pipeline, job, rows.select(travelling(rows.columns)), pipeline.column_map(handle), types)
    written = sum(f.rows for f in staged.bronze)
    if written + staged.suppressed != total:
        discard(pipeline.bronze, staged.bronze)
        raise DataError(f"redecode wrote {written} rows of {total}: nothing was committed; please report this")
    return staged


#: Unknown ids that a run asks the registry about, those with most rows first: there may be any number of invalid ids.
IDS_ASKED = 200


def replay_what_became_known(pipeline: Pipeline, report: RunReport) -> None:
    """Complete an interrupted replay, then replay what is due; reads two table logs if quarantine has no such rows."""
    complete_quarantine(pipeline, report)
    quarantine = pipeline.open_quarantine()
    bronze = pipeline.open_bronze()
    if quarantine is None or bronze is None:
        return
    ids, elsewhere = _due(pipeline, quarantine, str(bronze.metadata().id))
    try:
        known = frozenset(i for i in _untried(quarantine, ids) if _is_known(pipeline, i))
    except TransientError:
        log.info("registry_down=true unknown_ids=%d asked_again=next_run", len(ids))
        return
    if known:
        done = replay(pipeline, report, ReplaySelection(frozenset({Reason.UNKNOWN_SCHEMA}), known))
        _note_left(pipeline, known, sum(ids[i] for i in known) - done.rows)
    if elsewhere:
        replay(pipeline, report, ReplaySelection())


def _is_known(pipeline: Pipeline, schema_id: SchemaId) -> bool:
    """Whether an id has a schema by now; of several registries one that does not answer holds up its own rows only."""
    try:
        return pipeline.catalog.knows(schema_id)
    except (TransientError, ConfigurationError) as error:
        if not pipeline.settings.sources:
            raise
        log.warning("schema_id=%s not_asked=true cause=%r", schema_id, without_secrets(str(error), pipeline.settings))
        return False


def _untried(quarantine: DeltaTable, ids: Counter[SchemaId]) -> Iterator[SchemaId]:
    """The ids with most rows, without those of which the last replay left all these rows."""
    return (i for i, rows in ids.most_common(IDS_ASKED) if rows != txn(quarantine, Txn.REPLAY_LEFT.of(i)))


def _note_left(pipeline: Pipeline, known: frozenset[SchemaId], expected: int) -> None:
    """Note how many rows of these ids still do not decode: no run tries them again before there are others."""
    quarantine = pipeline.open_quarantine()
    bronze = pipeline.open_bronze()
    if not expected or quarantine is None or bronze is None:
        return
    quarantine = refuse_restored(pipeline.quarantine, quarantine)
    ids, _ = _due(pipeline, quarantine, str(bronze.metadata().id))
    left = {i: ids[i] for i in known if ids[i]}
    if sum(left.values()) != expected:
        return  # a concurrent run has added rows that were not tried
    advance = {Txn.REPLAY_LEFT.of(i): rows for i, rows in left.items()}
    with suppress(ConflictError):  # a concurrent run noted it, or the next run will
        commit(without_rows(pipeline.quarantine, quarantine, {}, txns(quarantine, advance), advance))


def _due(pipeline: Pipeline, quarantine: DeltaTable, bronze_id: str) -> tuple[Counter[SchemaId], bool]:
    """Rows of each unknown id, and whether rows were replayed to another bronze; reads only files that may have such rows."""
    actions = add_actions(quarantine)
    if "max.reason" not in actions.column_names:
        return Counter(), False
    waits = may_hold(actions, "reason", Reason.UNKNOWN_SCHEMA, Reason.UNKNOWN_SCHEMA)
    if "null_count.replayed_batch" in actions.column_names:
        waits = pc.and_(waits, pc.not_equal(pc.fill_null(actions["null_count.replayed_batch"], -1), 0))
    if "max.replayed_table" in actions.column_names:
        other = (pc.not_equal(actions[f"{end}.replayed_table"], bronze_id) for end in ("min", "max"))
        waits = pc.or_(waits, pc.fill_null(pc.or_kleene(*other), False))
    waits = pc.and_(waits, may_hold(actions, "layer", Layer.BRONZE, Layer.BRONZE))
    columns = ["layer", "reason", *SCHEMA_COLUMNS, "replayed_table", "replayed_batch"]
    of_ids = [*SCHEMA_COLUMNS, *([SOURCE] if is_sourced(quarantine) else [])]
    held = own_columns(QUARANTINE_COLUMNS, sourced=True)
    schema = pa.schema([held.field(name) for name in dict.fromkeys([*columns, *of_ids])])
    parts = read_parts(pipeline.quarantine, schema, actions.filter(waits).column("path").to_pylist())
    rows = pa.concat_tables([schema.empty_table(), *parts])
    rows = rows.filter(pc.equal(rows["layer"], Layer.BRONZE))
    elsewhere = bool(pc.any(pc.not_equal(rows["replayed_table"], bronze_id)).as_py())
    unknown = rows.filter(pc.and_(pc.equal(rows["reason"], Reason.UNKNOWN_SCHEMA), pc.is_null(rows["replayed_batch"])))
    ids: Counter[SchemaId] = Counter()
    registries = registry_names(pipeline.settings)
    counted = unknown.group_by(of_ids).aggregate([([], "count_all")])
    for rows_of_id, *row in zip(*(counted[name].to_pylist() for name in ("count_all", *of_ids)), strict=True):
        schema_id = id_of_row(*row, registries=registries)
        if schema_id is not None:
            ids[schema_id] += rows_of_id
    return ids, elsewhere
