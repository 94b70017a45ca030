"""Checks beyond one table: gold against silver, the tables against their past in the event log, rules over all rows."""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import zip_longest
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, StructField, StructType

from game_events.decoding.columns import type_name
from game_events.errors import first_few
from game_events.extending import GoldAggregate
from game_events.lakehouse.commits.group import for_games, opened
from game_events.lakehouse.commits.transactions import BronzeIdentity, counter, expired_rows, silver_app, txn
from game_events.lakehouse.data.columns import has_decoded_columns
from game_events.lakehouse.data.reading import files_with, row_count, selection
from game_events.lakehouse.data.spark_files import game_of_file, read_files, spark_schema
from game_events.lakehouse.data.staging import partition_of
from game_events.lakehouse.duckdb_connection import query
from game_events.lakehouse.system_tables import read_events
from game_events.lakehouse.tables import PART_PATH, UNIFIED, Table
from game_events.pipeline.checks.reconcile import last_batches
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.plan import expressions, is_current, player_agg, player_agg_columns, silver_columns
from game_events.pipeline.gold.unified import gold_app
from game_events.pipeline.quality import breaks, require_valid, violated
from game_events.pipeline.reporting.result import CheckResult, RuleReport
from game_events.pipeline.silver.stage import SilverInput
from game_events.rules import Rule
from game_events.spark.config import null_on_error, reads_delta, small_snapshots
from game_events.spark.schemas import merged_columns, quoted
from game_events.workers.rules import RuleColumns

RECOMPUTED = "gold_equals_recompute"
#: Games of one check; the next one chooses others.
SAMPLE_GAMES = 10
#: Relative difference up to which floating point numbers are equal.
CLOSE = 1e-9


@dataclass(frozen=True)
class _Tables:
    """What is compared.

    `silver`: what its tables are called -> handle. `taken`: game -> last bronze batch that its gold contains. `current`: games
    with all of gold's rows in `unified`. `fewer`: games left out, as silver lacks rows by age that gold has aggregated.
    """

    silver: dict[str, DeltaTable]
    gold: dict[str, DeltaTable]
    taken: dict[str, int]
    unified: DeltaTable | None
    current: list[str]
    fewer: list[str] = field(default_factory=list)


def gold_equals_recompute(pipeline: Pipeline, sample_games: int = SAMPLE_GAMES) -> CheckResult:
    """Check that gold of a sample of games equals a recompute from silver, and the unified table equals gold.

    One Spark job. A hash of the run chooses the games; one with pending rows is left out, and one whose silver has lost rows by
    age since gold was made.
    """
    words = pipeline.settings.names
    tables = _tables(pipeline, sample_games)
    left_out = f"{len(tables.fewer)} {words.entities} left out: gold has rows that are gone from silver by age"
    if not tables.taken:
        why = left_out if tables.fewer else f"no {words.entity} has a gold table yet"
        return CheckResult(RECOMPUTED, "gold", True, why, wrong_rows=True)
    independent = reads_delta(pipeline.spark)
    with small_snapshots(pipeline.spark):
        rows = _compared(_all_rows(pipeline, tables, independent), pipeline, tables.current).collect()
    players = sum(row["players"] for row in rows)
    counts: dict[str, int | float | str] = {
        "games": ", ".join(sorted(tables.taken)),
        "games_compared": len(tables.taken),
        "games_compared_with_unified": len(tables.current),
        "gold_read_by": "delta-spark" if independent else "this project",
        "players": players,
        "players_that_differ_in_gold": sum(row["gold"] for row in rows),
        "players_that_differ_in_unified": sum(row["unified"] for row in rows),
    }
    wrong = sorted((row["_game"], row["gold"], row["unified"]) for row in rows if row["gold"] + row["unified"])
    summary = f"{players:,} {words.keys} of {len(tables.taken)} {words.entities} are what silver gives"
    if wrong:
        named = ", ".join(f"{game} ({g} {words.keys} in gold, {u} in unified)" for game, g, u in wrong)
        summary = f"not what silver gives: {named}. A full refresh of gold (unified: of the unified table) repairs it"
    if tables.fewer:
        counts["games_left_out"] = len(tables.fewer)
        summary = f"{summary}; {left_out}"
    return CheckResult(RECOMPUTED, "gold", not wrong, summary, counts, wrong_rows=True)


def _tables(pipeline: Pipeline, sample_games: int) -> _Tables:
    """The sample's tables, opened from the last layer to the first, so that none has rows that its source does not have."""
    bronze = pipeline.open_bronze()
    known = pipeline.progress.read(BronzeIdentity.of(bronze).key).games if bronze is not None else ()
    # Others in each run.
    chosen = sorted(known, key=lambda game: hashlib.sha256(f"{pipeline.run_id}:{game}".encode()).digest())[:sample_games]
    aggregate = player_agg(pipeline.settings)
    unified = _unified(pipeline, aggregate)
    all_gold = opened(chosen, pipeline.lakehouse.gold)
    all_silver = opened(chosen, pipeline.lakehouse.silver)
    listed = pipeline.lakehouse.type_tables()
    sample = _Tables({}, {}, {}, unified, [])
    for game in all_gold.keys() & all_silver.keys():
        gold = all_gold[game]
        silver = all_silver[game]
        batch = gold.transaction_version(silver_app(silver))
        # Where the setting has other columns by now, gold is pending too.
        if batch is None or not is_current(gold, aggregate):
            continue
        types = opened(listed.get(game, []), pipeline.lakehouse.silver)
        if sum(map(expired_rows, (silver, *types.values()))) != expired_rows(gold):
            sample.fewer.append(game)
            continue
        sample.silver[game] = silver
        sample.silver.update(types)
        sample.gold[game] = gold
        sample.taken[game] = batch
        if unified is not None and txn(unified, gold_app(gold)) == gold.version():
            sample.current.append(game)
    return sample


def _unified(pipeline: Pipeline, aggregate: GoldAggregate) -> DeltaTable | None:
    """The unified table, if it can be compared; in the layout `partitioned` it is gold itself."""
    unified = None if pipeline.lakehouse.is_partitioned else pipeline.lakehouse.table(UNIFIED).open_to_read()
    if unified is None or not (is_current(unified, aggregate) and unified.metadata().partition_columns):
        return None
    return unified


def _read_by_delta(pipeline: Pipeline, gold: Mapping[str, DeltaTable]) -> DataFrame:
    """Rows of games' gold tables, with `_game`, by Delta Lake's own reader: delta-rs does not list the files."""
    read = pipeline.spark.read.format("delta")
    parts: list[DataFrame] = []
    for game, handle in gold.items():
        table = pipeline.lakehouse.gold(game)
        rows = read.option("versionAsOf", handle.version()).load(table.uri)
        if table.part is not None:
            rows = rows.where(F.col(quoted(str(table.by))) == game).drop(str(table.by))
        parts.append(rows.withColumn("_game", F.lit(game)))
    return reduce(DataFrame.unionByName, parts)


def _all_rows(pipeline: Pipeline, tables: _Tables, independent: bool) -> DataFrame:
    """(_game, key, gold's columns, _source) of the recompute, of gold and of the unified table.

    `independent`: Delta Lake's own reader reads gold, so that a wrong list of files is found, too.
    """
    settings = pipeline.settings
    key = settings.key_column
    measured = expressions(settings)
    columns = ["_game", key, *measured]
    wanted = None if settings.gold_columns else (key, settings.time_column, "_batch")
    events = _files(pipeline, tables.silver, wanted, pipeline.lakehouse.silver_path(), silver_columns(pipeline))
    events = events.join(last_batches(pipeline.spark, tables.taken), "_game").where(F.col("_batch") <= F.col("_taken"))
    recomputed = events.groupBy("_game", key).agg(*(F.expr(sql).alias(column) for column, sql in measured.items()))
    if independent:
        gold = _read_by_delta(pipeline, tables.gold)
    else:
        gold = _files(pipeline, tables.gold, (key, *measured), pipeline.lakehouse.gold_path())
    rows = recomputed.select(*columns, F.lit("silver").alias("_source"))
    rows = rows.unionByName(gold.select(*columns, F.lit("gold").alias("_source")))
    if tables.unified is not None and tables.current:
        unified = _unified_rows(pipeline, tables.unified, tables.current)
        rows = rows.unionByName(unified.select(*columns, F.lit("unified").alias("_source")))
    return rows


def _unified_rows(pipeline: Pipeline, unified: DeltaTable, games: Collection[str]) -> DataFrame:
    """The rows of these games, with `_game`."""
    entity = pipeline.settings.entity_column
    files = selection(unified)
    uris = [uri for uri, path in zip(files.files, files.paths, strict=True) if partition_of(path).get(entity) in games]
    columns = [f for f in spark_schema(unified.schema()).fields if f.name != entity]
    return read_files(pipeline.spark, uris, StructType(columns)).withColumn("_game", game_of_file(uris, PART_PATH))


def _files(
    pipeline: Pipeline,
    tables: Mapping[str, DeltaTable],
    wanted: tuple[str, ...] | None,
    pattern: str,
    asked: StructType | None = None,
) -> DataFrame:
    """Rows of several games' tables; the game is that of the folder, so that a row in a wrong table is found.

    `wanted` are columns; None: the columns of all tables. `asked` are columns that are NULL where no table has them.
    """
    fields = _fields(tables, wanted, asked)
    uris = [uri for table in tables.values() for uri in files_with(table)]
    rows = read_files(pipeline.spark, uris, StructType(list(fields.values())))
    return rows.select(game_of_file(uris, pattern).alias("_game"), *map(F.col, map(quoted, wanted or fields)))


def _fields(
    tables: Mapping[str, DeltaTable], wanted: tuple[str, ...] | None, asked: StructType | None
) -> dict[str, StructField]:
    """Name -> column, of those that `_files` reads."""
    schemas = [spark_schema(table.schema()) for table in tables.values()]
    # Of a column that two of them have the later one counts.
    known = [asked or StructType(), StructType() if wanted is None else schemas[0], merged_columns(schemas)[0]]
    return {f.name: f for columns in known for f in columns.fields if wanted is None or f.name in wanted}


def _compared(rows: DataFrame, pipeline: Pipeline, current: list[str]) -> DataFrame:
    """Game -> players, and how many of them differ between silver and gold, gold and unified."""
    columns = list(expressions(pipeline.settings))
    of = {source: F.col("_source") == source for source in ("silver", "gold", "unified")}
    kinds = {f.name: f.dataType for f in rows.schema.fields if f.name in columns}
    counted = rows.groupBy("_game", pipeline.settings.key_column).agg(
        *(F.count_if(which).alias(f"n_{source}") for source, which in of.items()),
        *(F.first(F.when(which, F.struct(*columns)), ignorenulls=True).alias(f"v_{source}") for source, which in of.items()),
    )
    in_unified = F.col("_game").isin(*current) if current else F.lit(False)
    return counted.groupBy("_game").agg(
        F.count(F.lit(1)).alias("players"),
        F.count_if(~_same("silver", "gold", kinds)).alias("gold"),
        F.count_if(in_unified & ~_same("gold", "unified", kinds)).alias("unified"),
    )


def _same(one: str, other: str, kinds: Mapping[str, DataType]) -> Column:
    """Whether both have one row of a key, and its values are equal; never NULL."""
    same = (F.col(f"n_{one}") == 1) & (F.col(f"n_{other}") == 1)
    for name, kind in kinds.items():
        a = F.col(f"v_{one}")[name]
        b = F.col(f"v_{other}")[name]
        equal = a.eqNullSafe(b)
        if isinstance(kind, DoubleType | FloatType):
            # A sum of floating point numbers depends on the order of rows.
            equal |= F.coalesce(F.abs(a - b) <= CLOSE * F.greatest(F.abs(a), F.abs(b)), F.lit(False))
        same &= equal
    return same


DRIFT = "schema_drift"
#: Newest event log files with checks that are searched for the last check: one of each triggered run that changed a table,
#: and one of each continuous run, written at its end.
LOOK_BACK_FILES = 50
#: Changed columns, and unusual games, in a summary.
CHANGES_SHOWN, GAMES_SHOWN = 20, 10
VOLUME = "volume"
#: Days of 24 hours before now; the last one is compared with the others.
HISTORY_DAYS = 28
#: Days before the last one that a game must have to be compared.
MIN_DAYS = 7
#: Distance from the median that is unusual, in standard deviations (MAD times 1.4826) and as a share of the median, as the
#: deviation is 0 for a game that sends the same number every day.
DEVIATIONS, SHARE = 5.0, 0.5
_MAD_TO_SIGMA = 1.4826
_READ = ("time", "kind", "layer", "game", "table", "rows", "table_rows")
#: Rows of a game's tables at the end of each day, so that a full refresh, which writes all rows again, adds nothing; with those
#: that were removed by age since the first of these days.
_DAYS = """
WITH of_games AS (
  SELECT *, sum(CASE WHEN kind = 'gone_by_age' THEN rows ELSE 0 END)
    OVER (PARTITION BY game, "table" ORDER BY time)::BIGINT AS expired
  FROM events
  WHERE kind IN ('table', 'gone_by_age') AND layer = 'silver' AND game IS NOT NULL AND time <= $now
)
SELECT game, "table", (date_diff('second', time, $now) // 86400)::BIGINT AS back, arg_max(table_rows + expired, time) AS total
FROM of_games WHERE kind = 'table' AND table_rows IS NOT NULL
GROUP BY ALL ORDER BY game, back DESC
"""


def schema_drift(pipeline: Pipeline) -> CheckResult:
    """Check that bronze's columns are those of the last check: shows fields that a producer added or changed the type of."""
    handle = pipeline.open_bronze()
    if handle is None:
        return CheckResult(DRIFT, "bronze", True, "there is no bronze table yet")
    events = read_events(pipeline.lakehouse, newest_files=LOOK_BACK_FILES, kind="check")
    results = events.filter((pc.field("name") == DRIFT) & pc.field("delta_version").is_valid())
    versions = results.sort_by([("time", "descending")])["delta_version"].to_pylist()
    version = versions[0] if versions else None
    before = _columns_at(pipeline.bronze, version) if version is not None and version <= handle.version() else None
    now = _columns(handle)
    if before is None:
        why = "the first check" if version is None else f"version {version} of the last check is gone or had no rows"
        summary = f"{why}: later checks compare with these {len(now)} columns"
        return CheckResult(DRIFT, "bronze", True, summary, {"columns": len(now)}, version=handle.version())
    # New columns of the pipeline itself come with a release or a setting, not from a producer.
    diff = column_changes(before, {name: kind for name, kind in now.items() if name in before or not name.startswith("_")})
    counts = {"columns": len(now), "changes": len(diff), "since_version": int(version or 0)}
    summary = first_few(diff, CHANGES_SHOWN) or f"{len(now)} columns, as at version {version}"
    return CheckResult(DRIFT, "bronze", not diff, summary, counts, version=handle.version())


def column_changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Descriptions of the changed columns."""
    changes = []
    for name, kind in now.items():
        base, double, _ = name.rpartition("__")
        if name not in before and double and base in now:
            changes.append(f"{name} ({kind}): {base} ({now[base]}) has another type too")
        elif name not in before:
            changes.append(f"{name} ({kind}): new")
        elif before[name] != kind:
            changes.append(f"{name}: {before[name]} became {kind}")
    return changes + [f"{name} ({kind}): gone" for name, kind in before.items() if name not in now]


def _columns_at(table: Table, version: int) -> dict[str, str] | None:
    """Columns of a version; None: it is gone, or has no rows, as before the first batch, which adds all columns."""
    try:
        handle = DeltaTable(table.uri, version=version, storage_options=table.options)
        return _columns(handle) if row_count(handle) else None
    except (DeltaError, OSError):  # its log was cleaned up
        return None


def _columns(handle: DeltaTable) -> dict[str, str]:
    return {field.name: type_name(field.type) for field in pa.schema(handle.schema())}


@dataclass(frozen=True)
class Unusual:
    """A game with an unusual last day."""

    game: str
    rows: int
    usual: float

    def __str__(self) -> str:
        what = "fell silent" if not self.rows else f"{self.rows:,} rows"
        return f"{self.game}: {what} (usual: {self.usual:,.0f} a day)"


def volume(pipeline: Pipeline, now: datetime | None = None) -> CheckResult:
    """Check that each game's rows of the last 24 hours are near the median of its days before."""
    now = now or datetime.now(UTC)
    events = read_events(pipeline.lakehouse, now - timedelta(days=HISTORY_DAYS + 1), columns=_READ)
    totals: dict[str, dict[str, dict[int, int]]] = {}
    for row in query(events, _DAYS, now=now):
        totals.setdefault(row["game"], {}).setdefault(row["table"], {})[row["back"]] = row["total"]
    compared = 0
    unusual = []
    for game, by_table in totals.items():
        last, history = _daily_rows_of_all(by_table.values())
        if len(history) < MIN_DAYS:
            continue
        compared += 1
        if is_unusual(last, history):
            unusual.append(Unusual(game, last, median(history)))
    unusual.sort(key=lambda u: (u.rows > 0, -u.usual))
    counts = {
        "games_compared": compared,
        "games_with_too_short_a_history": len(totals) - compared,
        "unusual_games": len(unusual),
        "silent_games": sum(not u.rows for u in unusual),
    }
    if unusual:
        summary = f"the last 24 hours are unusual for {first_few(unusual, GAMES_SHOWN)}"
    elif compared:
        summary = f"{compared:,} games sent as much as usual"
    else:
        summary = f"no game has a history of {MIN_DAYS} days yet"
    return CheckResult(VOLUME, "silver", not unusual, summary, counts, games=tuple(u.game for u in unusual))


def daily_rows(totals: dict[int, int]) -> tuple[int, list[int]]:
    """Rows of the last day, and of the days before it, from the totals at the end of some days.

    `totals`: days back -> rows of the table at the end of that day; the first one is the starting value.
    """
    oldest = max(totals)
    rows = []
    before = totals[oldest]
    for back in range(oldest - 1, -1, -1):
        now = totals.get(back, before)
        rows.append(max(0, now - before))
        before = now
    return (rows[-1], rows[:-1]) if rows else (0, [])


def _daily_rows_of_all(tables: Iterable[dict[int, int]]) -> tuple[int, list[int]]:
    """The sums of `daily_rows` of a game's tables, of which some came later than others."""
    each = [[last, *reversed(before)] for last, before in map(daily_rows, tables)]
    last, *history = [sum(day) for day in zip_longest(*each, fillvalue=0)]
    return last, history[::-1]


def is_unusual(last: int, history: list[int]) -> bool:
    """Whether the last day is far from the median of the history."""
    usual = median(history)
    spread = _MAD_TO_SIGMA * median(abs(rows - usual) for rows in history)
    return abs(last - usual) > max(DEVIATIONS * spread, SHARE * usual)


#: (layer, game, rule) -> counts.
Reports = dict[tuple[str, str, str], RuleReport]


def audit_rules(pipeline: Pipeline, rules: Iterable[Rule]) -> Reports:
    """Count the rows of every game, and those that violate each rule: one Spark job for each layer, nothing is written.

    Rules of silver are evaluated on the bronze rows that the game's silver table was computed from, rejected ones included;
    rules of gold on gold's rows.

    Returns:
        (layer, game, rule) -> counts.

    Raises:
        ConfigurationError: a rule cannot be evaluated.
    """
    chosen = list(rules)
    bronze = pipeline.open_bronze()
    if bronze is None or not row_count(bronze) or not has_decoded_columns(bronze):
        return {}
    source = SilverInput.of(pipeline, bronze)
    games = sorted(pipeline.progress.read(source.bronze.key).games)
    reports: Reports = {}
    of_silver = [rule for rule in chosen if rule.layer == "silver"]
    if of_silver:
        silver = opened(games, pipeline.lakehouse.silver)
        rows = _rows_taken(source, silver)
        reports |= _count(pipeline, of_silver, rows, source.columns, pipeline.settings.entity_column, silver)
    of_gold = [rule for rule in chosen if rule.layer == "gold"]
    if of_gold:
        gold = opened(games, pipeline.lakehouse.gold)
        columns = player_agg_columns(pipeline.spark, pipeline.settings, source.columns)
        reports |= _count(pipeline, of_gold, _gold_rows(pipeline, gold, columns), columns, "_game", gold)
    return reports


def _gold_rows(pipeline: Pipeline, tables: Mapping[str, DeltaTable], columns: StructType) -> DataFrame:
    uris = [uri for files in for_games(tables, lambda game: files_with(tables[game])).values() for uri in files]
    game = game_of_file(uris, pipeline.lakehouse.gold_path())
    return read_files(pipeline.spark, uris, columns).withColumn("_game", game)


def _rows_taken(source: SilverInput, tables: Mapping[str, DeltaTable]) -> DataFrame:
    """Bronze's rows of each game, up to the last batch in its silver table."""
    taken = {game: counter(handle, source.bronze.app) for game, handle in tables.items()}
    spark = source.pipeline.spark
    rows = read_files(spark, files_with(source.handle), spark_schema(source.handle.schema()))
    of_game = F.col(source.pipeline.settings.entity_column) == F.col("_game")
    return rows.join(last_batches(spark, taken), of_game).where(F.col("_batch") <= F.col("_taken"))


def _count(
    pipeline: Pipeline, rules: list[Rule], rows: DataFrame, columns: StructType, game: str, tables: Mapping[str, DeltaTable]
) -> Reports:
    judged = RuleColumns.of(rules, rules[0].layer, game)
    require_valid(pipeline.spark, rules, columns)
    reports: Reports = {
        (r.layer, g, r.name): RuleReport(r.layer, g, r.name, r.action, r.sql) for g in tables for r in rules if r.applies_to(g)
    }
    with null_on_error(pipeline.spark):
        counts = [F.count(F.when(breaks(judged, n), 1)).alias(f"_rule_{n}") for n in range(len(rules))]
        masks = rows.select(F.col(game).alias("_of"), *violated(judged))
        for row in masks.groupBy("_of").agg(F.count(F.lit(1)).alias("_rows"), *counts).collect():
            for number, rule in enumerate(rules):
                entry = reports.get((rule.layer, row["_of"], rule.name))
                if entry is not None:
                    counted = replace(entry, rows=int(row["_rows"]), violated=int(row[f"_rule_{number}"]))
                    reports[rule.layer, row["_of"], rule.name] = counted
    return reports
