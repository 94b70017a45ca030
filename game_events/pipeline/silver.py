"""`bronze_events` -> one `silver_{game}_events` for each game, all games in one Spark job.

Guarantee: every bronze row of an admitted game is in its silver table once, through any crash and beside any rival. Each
game's table holds the highest bronze batch it has taken; its commit lands only if that is where its rows were planned from.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.errors import ConfigurationError, ExtensionError
from game_events.lakehouse import crash_points
from game_events.lakehouse.commits import Commit
from game_events.lakehouse.progress import SILVER, Progress
from game_events.lakehouse.reading import BATCH_INFO, files_with, read_files, restored, row_count, selection, spark_schema
from game_events.lakehouse.staging import StagedFile, discard
from game_events.lakehouse.tables import is_game
from game_events.pipeline.bronze import BATCH_APP
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fan_out import TASK_ROWS, FanOut, FanOutResult, rows_of, stage
from game_events.pipeline.game_commits import Committed, commit_games
from game_events.pipeline.report import RunReport, TableReport
from game_events.pipeline.routing import OVER_LIMIT, Routing, admit
from game_events.pipeline.transformations import run_time_failure, transformed

#: Bronze's columns that silver leaves out: they are in bronze, under the same coordinates.
BRONZE_ONLY = ("_raw_value", "_kafka_key", "_kafka_headers", "_kafka_topic_id")
#: `txn` that counts how often a table's rows were replaced: whoever aggregated the old ones begins anew.
GENERATION_APP = "generation"
#: Times games are planned again (rivals, games that are ahead of the floor) before a run gives up on them.
ATTEMPTS = 10


def bronze_app(bronze_id: str) -> str:
    """Name of the `txn` that holds the highest bronze batch in a silver table."""
    return f"bronze:{bronze_id}"


def generation(silver: DeltaTable) -> int:
    """How often the rows of a silver table were replaced."""
    return int(silver.transaction_version(GENERATION_APP) or 0)


@dataclass(frozen=True)
class _Source:
    """Bronze at one version: what every game of this run is planned from."""

    handle: DeltaTable
    bronze_id: str
    batch: int
    #: Columns of bronze that are read, and those that silver gets: the same but for transformations of the user's own.
    columns: pa.Schema
    schema: pa.Schema

    @property
    def app(self) -> str:
        return bronze_app(self.bronze_id)


def refresh_silver(pipeline: Pipeline, report: RunReport, games: frozenset[str] | None = None, *, full: bool = False) -> None:
    """Bring silver up to bronze.

    Args:
        pipeline: the parts.
        report: gets an entry for each game that changed or failed.
        games: only these; None: every game, and the floor moves.
        full: replace the given games' tables by everything bronze has of them.
    """
    began = time.monotonic()
    handle = pipeline.bronze.open()
    if handle is None:
        return
    source = _source(pipeline, handle)
    try:
        _refresh(pipeline, report, source, games, full=full)
    except ExtensionError as error:
        # Every game's: nothing moves, and the run's account of bronze stays.
        report.tables.append(TableReport(SILVER, "silver_events", pipeline.lakehouse.root, error=str(error)))
    report.seconds["silver"] = report.seconds.get("silver", 0.0) + time.monotonic() - began


def _refresh(pipeline: Pipeline, report: RunReport, source: _Source, games: frozenset[str] | None, *, full: bool) -> None:
    state = pipeline.progress.read(source.bronze_id)
    floor = state.floor(SILVER)
    done: dict[str, int] = {}
    failed: dict[str, str] = {}
    unrouted: Counter[str] = Counter()
    again: set[str] = set()
    if full or games is not None:
        # Rows that had no game before they were decoded anew may have one now.
        again = set(games or state.games) | (set(new_games(pipeline, above=0)) if games is None else set())
        if full:
            # Before any commit: a crash between the layers' commits must not leave the later ones with the old rows.
            why = "its silver table was replaced"
            pipeline.progress.update(source.bronze_id, lambda now: now.pending_downstream(again, why))
    elif source.batch > floor:
        again, failed, unrouted = _default_pass(pipeline, source, state, report, done)
    if games is None and not full:
        again |= state.failed_in(SILVER)
    for _ in range(ATTEMPTS):
        if not again:
            break
        again = _planned_pass(pipeline, source, state, again, report, done, failed, full=full)
    failed |= dict.fromkeys(again, "rival runs won every attempt; run again")
    crash_points.reach("silver_committed")
    for game, why in failed.items():
        table = pipeline.lakehouse.silver(game)
        report.tables.append(TableReport(SILVER, table.name, table.uri, game, error=why))
    valid_unrouted = any(why != "invalid" and rows for why, rows in unrouted.items())

    whole = games is None and not full

    def moved(now: Progress) -> Progress:
        floor_now = source.batch if whole else now.floor(SILVER)
        after = now.done(SILVER, floor_now, done, failed if whole else _other(now, done, failed))
        return _with_unrouted(after, source.batch) if valid_unrouted else after

    pipeline.progress.update(source.bronze_id, moved)
    report.unrouted += unrouted


def _other(now: Progress, done: Mapping[str, int], failed: Mapping[str, str]) -> dict[str, str]:
    """Failures after a run over some games only: the others' stand."""
    floor = now.floor(SILVER)
    before = {game: why for (layer, game), why in now.failed.items() if layer == SILVER and done.get(game, -1) < floor}
    return before | dict(failed)


def _with_unrouted(state: Progress, batch: int) -> Progress:
    return replace(state, unrouted_batch=max(batch, state.unrouted_batch))


def _source(pipeline: Pipeline, handle: DeltaTable) -> _Source:
    schema = pa.schema([f for f in pa.schema(handle.schema()) if f.name not in BRONZE_ONLY])
    batch = int(handle.transaction_version(BATCH_APP) or 0)
    if batch and row_count(handle) and pipeline.settings.entity_column not in schema.names:
        raise ConfigurationError(
            f"bronze has no column {pipeline.settings.entity_column!r} (it has {', '.join(schema.names)}): set "
            "GAME_EVENTS_ENTITY_COLUMN to the one that names the game"
        )
    return _Source(handle, str(handle.metadata().id), batch, schema, schema)


def _with_transformations(pipeline: Pipeline, source: _Source) -> _Source:
    """The source with the columns that silver gets: asked of Spark, so only when there is work to do."""
    if not pipeline.extensions.transformations:
        return source
    nothing = read_files(pipeline.spark, [], spark_schema(source.handle.schema())).select(*source.columns.names)
    return replace(source, schema=_transformed(pipeline, source, nothing)[1])


def _transformed(pipeline: Pipeline, source: _Source, rows: DataFrame) -> tuple[DataFrame, pa.Schema]:
    entity = pipeline.settings.entity_column
    return transformed(rows, source.columns, entity, pipeline.extensions.transformations)


def _default_pass(
    pipeline: Pipeline, source: _Source, state: Progress, report: RunReport, done: dict[str, int]
) -> tuple[set[str], dict[str, str], Counter[str]]:
    """All games of the batches above the floor, without opening a table before its commit.

    Returns:
        games to plan one by one (ahead of the floor, restored, failed before), games that failed, unrouted rows by why.
    """
    source = _with_transformations(pipeline, source)
    floor = state.floor(SILVER)
    known = set(state.games)
    routing = Routing(frozenset(pipeline.settings.games))
    over = 0
    if not routing.allowed and len(known) >= pipeline.settings.max_games:
        counted, over = _new_names(pipeline, source, floor, known)
        admitted, kept_out = admit(pipeline.settings, known, counted)
        over += sum(kept_out.values())
        routing = Routing(frozenset(), frozenset(known | admitted))
    pipeline.on_progress(f"silver: batches {floor + 1} to {source.batch}")
    result = _stage(pipeline, source, floor, routing, len(known), None)
    crash_points.reach("silver_staged")
    new = {game: rows_of(files) for game, files in result.files.items() if game not in known}
    _, refused = admit(pipeline.settings, known, new)
    # A name with a table was let in before, whatever became of the record of it.
    refused = {game: rows for game, rows in refused.items() if pipeline.lakehouse.silver(game).open() is None}
    for game in refused:
        discard(pipeline.lakehouse.silver(game), result.files.pop(game))
    unrouted = Counter({why: sum(names.values()) for why, names in result.refused.items()})
    unrouted[OVER_LIMIT] += sum(refused.values()) + over

    def planner(game: str, files: list[StagedFile]) -> Commit | None:
        table = pipeline.lakehouse.silver(game)
        handle = table.open()
        taken = handle.transaction_version(source.app) if handle is not None else None
        if handle is None:
            # Rows below the floor exist only if the table is gone, or the name was kept out before.
            from_floor = not floor or (game not in state.games and not state.unrouted_batch)
        elif taken is None:
            from_floor = not floor
        else:
            # Ahead of the floor: a crash or a rival. Behind what is known of it, or of rows kept out: rows are missing below.
            from_floor = max(state.games.get(game, 0), state.unrouted_batch) <= taken <= floor and not restored(handle)
        if game in state.failed_in(SILVER) or not from_floor:
            discard(table, files)
            return None
        # Rows of another bronze are replaced: with a floor of 0 these files are everything this bronze has.
        return _commit_plan(pipeline, source, game, files, handle, taken, replace=handle is not None and taken is None)

    plans = {game: partial(planner, game, files) for game, files in result.files.items()}
    outcome = commit_games(plans, "game_committed")
    _record(pipeline, source, report, outcome, done, known)
    return outcome.again, outcome.failed | result.failed, +unrouted


def _planned_pass(  # noqa: PLR0913 - one pass of a loop, its state passed explicitly
    pipeline: Pipeline,
    source: _Source,
    state: Progress,
    games: set[str],
    report: RunReport,
    done: dict[str, int],
    failed: dict[str, str],
    *,
    full: bool,
) -> set[str]:
    """Some games, each from its own progress, still in one Spark job; returns those that rivals won."""
    start: dict[str, tuple[DeltaTable | None, int | None, int]] = {}
    allowed = Routing(frozenset(pipeline.settings.games))
    for game in sorted(g for g in games if allowed.refusal(g) is None):
        handle = pipeline.lakehouse.silver(game).open()
        taken = handle.transaction_version(source.app) if handle is not None else None
        begin = 0 if full or taken is None or (handle is not None and restored(handle)) else taken
        if begin >= source.batch and not full:
            done[game] = begin
        else:
            start[game] = (handle, taken, begin)
    if not start:
        return set()
    pipeline.on_progress(f"silver: {len(start)} games from their own progress")
    source = _with_transformations(pipeline, source)
    lowest = min(begin for _, _, begin in start.values())
    ranges = {game: begin for game, (_, _, begin) in start.items()}
    routing = Routing(frozenset(pipeline.settings.games), frozenset(start))
    result = _stage(pipeline, source, lowest, routing, len(start), ranges)

    def planner(game: str) -> Commit:
        handle, taken, begin = start[game]
        files = result.files.get(game, [])
        return _commit_plan(pipeline, source, game, files, handle, taken, replace=handle is not None and begin == 0)

    plans = {}
    for game, (handle, _, begin) in start.items():
        if game in result.failed:
            continue
        if game in result.files or (handle is not None and begin == 0):
            plans[game] = partial(planner, game)
        elif handle is not None:
            done[game] = begin  # idle since: nothing to commit
    outcome = commit_games(plans, "game_committed")
    _record(pipeline, source, report, outcome, done, set(state.games))
    failed |= outcome.failed | result.failed
    return outcome.again


def _commit_plan(
    pipeline: Pipeline,
    source: _Source,
    game: str,
    files: list[StagedFile],
    handle: DeltaTable | None,
    taken: int | None,
    *,
    replace: bool,
) -> Commit:
    advance = {source.app: source.batch}
    if replace and handle is not None:
        advance[GENERATION_APP] = generation(handle) + 1
    return Commit(
        pipeline.lakehouse.silver(game),
        source.schema,
        files,
        expected={source.app: taken},
        advance=advance,
        table_id=str(handle.metadata().id) if handle is not None else None,
        replace=replace,
        # All rows are new, so columns that no transformation gives any more go, and types may be others.
        reshape=replace,
        info={BATCH_INFO: str(source.batch)},
        description=f"Events of the game {game}: its rows of bronze_events, append-only",
    )


def _stage(
    pipeline: Pipeline, source: _Source, above: int, routing: Routing, games: int, ranges: Mapping[str, int] | None
) -> FanOutResult:
    found = selection(source.handle, "_batch", above)
    if not found.files:
        return FanOutResult()
    entity = pipeline.settings.entity_column
    rows = read_files(pipeline.spark, found.files, spark_schema(source.handle.schema())).select(*source.columns.names)
    if ranges is None:
        rows = rows if found.exact else rows.where(F.col("_batch") > above)
    else:
        bounds = pa.table({"_game": list(ranges), "_from": list(ranges.values())})
        limits = F.broadcast(pipeline.spark.createDataFrame(bounds))
        rows = rows.join(limits, F.col(entity) == F.col("_game")).where(F.col("_batch") > F.col("_from"))
        rows = rows.select(*source.columns.names)
    count = found.rows
    if not games and count > TASK_ROWS:
        # The first load: whether to shuffle hangs on how many games there are, and one column tells.
        games = int(rows.agg(F.approx_count_distinct(entity)).first()[0])  # type: ignore[index]
    task = FanOut(pipeline.lakehouse, "silver", entity, source.schema, routing)
    rows, _ = _transformed(pipeline, source, rows)
    try:
        return stage(rows, task, count, games, salt="_kafka_offset")
    except (PySparkException, Py4JJavaError) as error:
        if not pipeline.extensions.transformations:
            raise
        raise run_time_failure("; ".join(map(str, pipeline.extensions.transformations)), error) from error


def _new_names(pipeline: Pipeline, source: _Source, floor: int, known: set[str]) -> tuple[dict[str, int], int]:
    """Rows of names that are no game yet, counted before anything is written: only once there is no room left.

    Returns:
        name -> rows of those that have enough rows to be let in, and the rows of all the others together.
    """
    entity = F.col(pipeline.settings.entity_column)
    rows = read_files(pipeline.spark, files_with(source.handle, "_batch", floor), spark_schema(source.handle.schema())).where(
        F.col("_batch") > floor
    )
    names = pipeline.spark.createDataFrame(pa.table({"_game": sorted(known)}), "_game string")
    new = rows.join(F.broadcast(names), entity == F.col("_game"), "left_anti").groupBy(entity.alias("game")).count()
    # A flood of names stays in the workers: only those that can be let in come to the driver.
    enough = new.where(F.col("count") >= pipeline.settings.new_game_min_rows).collect()
    rest = new.where(F.col("count") < pipeline.settings.new_game_min_rows).agg(F.sum("count").alias("n")).collect()
    return {r["game"]: int(r["count"]) for r in enough if is_game(r["game"])}, int(rest[0]["n"] or 0)


def _record(
    pipeline: Pipeline,
    source: _Source,
    report: RunReport,
    outcome: Committed,
    done: dict[str, int],
    known: set[str],
) -> None:
    for game, landed in sorted(outcome.landed.items()):
        done[game] = source.batch
        entry = report.add_landed(SILVER, pipeline.lakehouse.silver(game), landed, source.schema, source.batch, game)
        entry.new = game not in known


def new_games(pipeline: Pipeline, above: int | None = None) -> list[str]:
    """Valid, allowed names without a table in bronze above a batch (None: silver's floor), while there is room for games."""
    handle = pipeline.bronze.open()
    if handle is None or not row_count(handle):
        return []
    source = _source(pipeline, handle)
    state = pipeline.progress.read(source.bronze_id)
    uris = files_with(handle, "_batch", state.floor(SILVER) if above is None else above)
    if not uris:
        return []
    entity = F.col(pipeline.settings.entity_column).alias("game")
    rows = read_files(pipeline.spark, uris, spark_schema(handle.schema())).select(entity)
    room = max(0, pipeline.settings.max_games - len(state.games))
    routing = Routing(frozenset(pipeline.settings.games))
    counted = rows.groupBy("game").count().orderBy(F.desc("count"), "game").limit(room + len(state.games)).collect()
    names = [r["game"] for r in counted if routing.refusal(r["game"]) is None and r["game"] not in state.games]
    return names[:room]
