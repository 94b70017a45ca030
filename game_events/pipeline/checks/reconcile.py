"""Reconciliation: bronze rows = silver rows + dropped + quarantined + unrouted + pending, in all and for each game.

Numbers of bronze's rows by game: of all rows, or of those after the rows that an earlier check has counted.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from game_events.errors import GameEventsError, ReadOnlyError
from game_events.lakehouse.commits.group import for_games, opened
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter
from game_events.lakehouse.data.columns import COORDINATES, has_decoded_columns
from game_events.lakehouse.data.reading import read_arrow, row_count, selection
from game_events.lakehouse.data.spark_files import read_files, read_table, spark_schema
from game_events.lakehouse.system_tables import CountedRows, GameRows, Progress
from game_events.lakehouse.tables import Layer
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.silver.admission import readmitted_rows

log = logging.getLogger(__name__)

#: Files that the driver counts by itself, in less time than a Spark job takes to start.
FEW_FILES = 32


@dataclass(frozen=True)
class RowCounts:
    """Numbers of bronze's rows; game None: those of no game with a silver table.

    Attributes:
        rows: all rows.
        pending: rows that are not in silver yet.
        held: rows that are not pending, and are in quarantine as rejected ones of this game.
        settled: rows of the batches that a later check need not read. Those of them that are pending, as the settings have left
            out their game, belong to no game.
    """

    rows: Counter[str | None] = field(default_factory=Counter)
    pending: Counter[str | None] = field(default_factory=Counter)
    held: Counter[str | None] = field(default_factory=Counter)
    settled: Counter[str | None] = field(default_factory=Counter)


def count_all(
    pipeline: Pipeline, handle: DeltaTable, decisions: Decisions, taken: Mapping[str, int], settled: int
) -> RowCounts:
    """Count all rows of bronze; if quarantine has rejected rows, the job joins them with bronze.

    `taken`: game -> last batch in its silver table; `settled`: last batch without pending rows.
    """
    rows = read_table(pipeline.spark, handle)
    # An idle game's silver has an older batch than others and is complete all the same: only rows above it are pending.
    held = decisions.held_rows(pipeline, decisions.rejected_rows)
    name = _name(pipeline, handle)
    if held is None:
        rows = rows.select(name, "_batch", F.lit(None).alias("_held"))
    else:
        rows = rows.select(name, "_batch", *COORDINATES)
        held = held.withColumnRenamed("game", "_name").withColumn("_held", F.lit(True))
        rows = rows.join(held, [*COORDINATES, "_name"], "left")
    pending = F.col("_batch") > F.col("_taken")
    late = F.coalesce(pending, F.lit(False))
    found = (
        rows.join(last_batches(pipeline.spark, taken), F.col("_name") == F.col("_game"), "left")
        .groupBy("_game")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count(F.when(pending, 1)).alias("pending"),
            F.count(F.when(F.col("_held").isNotNull() & ~pending, 1)).alias("held"),
            F.count(F.when((F.col("_batch") <= settled) & ~late, 1)).alias("settled"),
            F.count(F.when((F.col("_batch") <= settled) & late, 1)).alias("late"),
        )
        .collect()
    )
    counts = RowCounts()
    for row in found:
        for name_of, by_game in vars(counts).items():
            by_game[row["_game"]] += int(row[name_of])
        counts.settled[None] += int(row["late"])
    return counts


def last_batches(spark: SparkSession, taken: Mapping[str, int]) -> DataFrame:
    """`_game` and `_taken`, the last bronze batch in its silver table: to be joined with rows, a copy for each worker."""
    limits = pa.table({"_game": pa.array(list(taken), pa.string()), "_taken": pa.array(taken.values(), pa.int64())})
    return F.broadcast(spark.createDataFrame(limits, "_game string, _taken bigint"))


def count_later(
    pipeline: Pipeline, handle: DeltaTable, above: int, few_rows: int | None = None
) -> dict[tuple[str | None, int], int]:
    """(Name of a game, valid or not; batch) -> rows of bronze, of the batches above one: these alone are read.

    `few_rows`: with at most so many rows in a few files they are counted in this process; more, or a number that the log does
    not say, take a Spark job. None: as many rows as are read at a time.
    """
    later = selection(handle, above)
    few_rows = pipeline.lakehouse.sizes.read_rows if few_rows is None else few_rows
    if later.rows <= few_rows and later.rows_known and len(later.files) <= FEW_FILES:
        return _counted_here(pipeline, handle, later.paths, above)
    rows = read_files(pipeline.spark, later.files, spark_schema(handle.schema())).where(F.col("_batch") > above)
    found = rows.groupBy(_name(pipeline, handle), "_batch").agg(F.count(F.lit(1)).alias("rows")).collect()
    return {(row["_name"], row["_batch"]): int(row["rows"]) for row in found}


def _counted_here(
    pipeline: Pipeline, handle: DeltaTable, files: Sequence[str], above: int
) -> dict[tuple[str | None, int], int]:
    entity = pipeline.settings.entity_column
    rows = read_arrow(pipeline.bronze, handle, [entity, "_batch"], files)
    groups = rows.group_by(rows.column_names).aggregate([([], "count_all")])
    names = groups[entity].to_pylist() if entity in rows.column_names else [None] * groups.num_rows
    found = zip(names, groups["_batch"].to_pylist(), groups["count_all"].to_pylist(), strict=True)
    return {(name, batch): count for name, batch, count in found if batch is not None and batch > above}


@dataclass(frozen=True)
class CountJobs:
    """What counts bronze's rows: all of them, or those of later batches."""

    all_rows: Callable[[Pipeline, DeltaTable, Decisions, Mapping[str, int], int], RowCounts] = count_all
    later_rows: Callable[[Pipeline, DeltaTable, int], Mapping[tuple[str | None, int], int]] = count_later


def added(
    before: CountedRows,
    later: Mapping[tuple[str | None, int], int],
    known: Collection[str],
    taken: Mapping[str, int],
    settled: int,
    rejected: Mapping[str, int],
) -> RowCounts:
    """The rows that an earlier check has counted, and the later ones.

    `known`: games with a silver table; `taken`: of those with news its last batch; `settled`: as for `count_all`. `rejected`:
    game -> its rejected rows by quarantine's log, whether bronze has them or not.
    """
    counts = RowCounts(held=Counter({game: rejected.get(game, 0) for game in taken}))
    for name, found in before.games.items():
        game = name if name in known else None
        counts.rows[game] += found.rows
        counts.settled[game] += found.rows
    for (name, batch), rows in later.items():
        game = name if name in known else None
        late = game is not None and batch > taken[game]
        counts.rows[game] += rows
        counts.pending[game] += rows if late else 0
        counts.settled[None if late else game] += rows if batch <= settled else 0
    return counts


def _name(pipeline: Pipeline, handle: DeltaTable) -> Column:
    """The column that names the game; without it no record of a selected message type was read yet."""
    found = F.col(pipeline.settings.entity_column) if has_decoded_columns(handle) else F.lit(None).cast("string")
    return found.alias("_name")


@dataclass(frozen=True)
class GameCounts:
    """Row counts of one game, up to the last bronze batch in its silver table.

    `bronze`, `silver`: rows of the layers. `dropped`, `quarantined`: rejected rows, by silver's counters. `held`: rejected rows
    that are in quarantine.
    """

    bronze: int
    silver: int
    dropped: int = 0
    quarantined: int = 0
    held: int = 0

    @property
    def balanced(self) -> bool:
        """Whether every row is in exactly one place."""
        return self.bronze == self.silver + self.dropped + self.quarantined and self.quarantined == self.held

    def __str__(self) -> str:
        parts = [f"bronze {self.bronze}", f"silver {self.silver}"]
        if self.dropped or self.quarantined or self.held:
            parts += [f"dropped {self.dropped}", f"quarantined {self.quarantined}", f"in quarantine {self.held}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Reconciliation:
    """Row counts of all games.

    Attributes:
        bronze, silver: rows of the layers; silver without the games of `transformed`.
        quarantine: rows of quarantine, undecodable (perhaps replayed) and rejected ones.
        unrouted: bronze rows of a game without a silver table.
        pending: bronze rows that are not in silver yet.
        dropped, quarantined: rejected bronze rows.
        wrong: game -> counts that do not add up.
        transformed: game -> counts that a transformation with `rows="any"` makes incomparable.
        counted_before: bronze batch up to which an earlier check has counted bronze's rows; 0: all were counted now.
        readmitted: game -> rows of `unrouted` or `pending` that the settings left out until now: the next run adds them.
    """

    bronze: int = 0
    silver: int = 0
    quarantine: int = 0
    unrouted: int = 0
    pending: int = 0
    dropped: int = 0
    quarantined: int = 0
    wrong: Mapping[str, GameCounts] = field(default_factory=dict)
    transformed: Mapping[str, GameCounts] = field(default_factory=dict)
    counted_before: int = 0
    readmitted: Mapping[str, int] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        """Bronze rows of the games of `transformed`."""
        return sum(counts.bronze for counts in self.transformed.values())

    @property
    def accounted(self) -> int:
        """Bronze rows that were found."""
        return self.silver + self.dropped + self.quarantined + self.unrouted + self.pending + self.taken

    @property
    def passed(self) -> bool:
        """Whether every bronze row was found, in all and for each game."""
        return not self.wrong and self.bronze == self.accounted

    def metadata(self) -> Mapping[str, int | str]:
        """The counts, for display."""
        counts: dict[str, int | str] = {
            "bronze_rows": self.bronze,
            "silver_rows": self.silver,
            "quarantine_rows": self.quarantine,
            "unrouted_rows": self.unrouted,
            "pending_rows": self.pending,
            "dropped_rows": self.dropped,
            "quarantined_rows": self.quarantined,
        }
        if self.transformed:
            counts["transformed_games"] = _named(self.transformed)
        if self.readmitted:
            counts["rows_left_out_until_now"] = sum(self.readmitted.values())
        if self.wrong:
            counts["games_that_differ"] = _named(self.wrong)
        return counts

    def summary(self) -> str:
        """One sentence."""
        sums = f"bronze {self.bronze:,} = silver {self.silver:,} + unrouted {self.unrouted:,} + pending {self.pending:,}"
        if self.dropped or self.quarantined:
            sums += f" + dropped {self.dropped:,} + quarantined {self.quarantined:,}"
        if self.transformed:
            sums += f" + transformed {self.taken:,} (their rows may become any number of rows)"
        if self.readmitted:
            sums += f"; {sum(self.readmitted.values()):,} of them were left out by the settings until now, and wait for a run"
        return sums if self.passed else f"rows are missing or doubled: not {sums}"


def _named(games: Mapping[str, GameCounts]) -> str:
    return ", ".join(f"{game}: {counts}" for game, counts in games.items())


#: The Spark jobs of a check.
JOBS = CountJobs()


def reconcile(pipeline: Pipeline, changed: Collection[str] | None = None, jobs: CountJobs = JOBS) -> Reconciliation:
    """Count the rows: bronze by a Spark job (of `jobs`), silver and quarantine by their logs.

    `changed`: the games whose silver tables were written since an earlier check: of bronze only the batches after those that
    an earlier check has counted (`Progress.counted`) are read, and the tables of these games and of those with news, which
    costs what is new; None: all rows. If the counts do not add up then, or differ from bronze's log, all rows are counted, so
    no fault is reported without that. What only a count of all rows can find: changes in tables of other games, and rows of
    earlier batches that changed while all sums stayed the same.

    Correct beside a live writer: silver is opened before bronze and quarantine, which therefore have every batch of silver.
    """
    before = pipeline.open_bronze()
    if before is None or not row_count(before):
        return Reconciliation(quarantine=row_count(pipeline.open_quarantine()))
    state = pipeline.progress.read(BronzeIdentity.of(before).key)
    later = changed is not None and state.counted.batch > 0
    found = _of_later_rows(pipeline, before, state, changed or (), jobs) if later else None
    found = found if found is not None and found.passed else _of_all_rows(pipeline, before, state, jobs)
    return replace(found, readmitted=readmitted_rows(pipeline, before, state)[0])


def _of_later_rows(
    pipeline: Pipeline, before: DeltaTable, state: Progress, changed: Collection[str], jobs: CountJobs
) -> Reconciliation | None:
    """The counts of games with news, and of those `changed`; all others have what they had. None: bronze was replaced."""
    identity, counted = BronzeIdentity.of(before), state.counted
    news = {game for game, batch in state.games.items() if batch > counted.batch}
    others = state.games.keys() & {*changed, *state.failed_in(Layer.SILVER)}
    tables = opened(news | others, pipeline.lakehouse.silver, pipeline.tables.open_to_read)
    # After progress and these tables, so that it has every batch that they have.
    bronze = pipeline.open_bronze()
    if bronze is None or BronzeIdentity.of(bronze) != identity:
        return None
    rows = jobs.later_rows(pipeline, bronze, counted.batch)
    waiting = state.games.keys() & {name for name, _ in rows} - tables.keys()
    tables |= opened(waiting, pipeline.lakehouse.silver, pipeline.tables.open_to_read)
    news |= waiting
    idle = {game for game in state.games if game in counted.games and game not in news and game not in tables}
    taken = for_games(tables, lambda game: identity.taken(tables[game]) or 0)
    # Of a game that fails now, too, earlier batches were in silver.
    settled = max(_settled(state, taken), counted.batch)
    decisions = Decisions(pipeline.quarantine, pipeline.open_quarantine(), identity.key)
    counts = added(counted, rows, {*tables, *idle}, taken, settled, decisions.rejected_rows)
    unchanged = {game: counted.games[game] for game in idle}
    result = _compared(pipeline, bronze, decisions, tables, counts, settled, unchanged)
    for game, handle in tables.items():
        pipeline.tables.publish(pipeline.lakehouse.silver(game), handle)
    return replace(result, counted_before=counted.batch)


def _of_all_rows(pipeline: Pipeline, before: DeltaTable, state: Progress, jobs: CountJobs) -> Reconciliation:
    identity = BronzeIdentity.of(before)
    tables = opened(state.games, pipeline.lakehouse.silver)
    handle = pipeline.open_bronze() or before
    if BronzeIdentity.of(handle) != identity:
        return reconcile(pipeline, jobs=jobs)  # it was replaced meanwhile, and has progress of its own
    decisions = Decisions(pipeline.quarantine, pipeline.open_quarantine(), identity.key)
    taken = for_games(tables, lambda game: identity.taken(tables[game]) or 0)
    settled = _settled(state, taken)
    counts = jobs.all_rows(pipeline, handle, decisions, taken, settled)
    return _compared(pipeline, handle, decisions, tables, counts, settled, {})


def _settled(state: Progress, taken: Mapping[str, int]) -> int:
    """The bronze batch up to which no row is pending."""
    behind = [taken.get(game, 0) for game in state.failed_in(Layer.SILVER)]
    return min([state.floor(Layer.SILVER), *behind])


def _compared(
    pipeline: Pipeline,
    handle: DeltaTable,
    decisions: Decisions,
    tables: Mapping[str, DeltaTable],
    counts: RowCounts,
    settled: int,
    unchanged: Mapping[str, GameRows],
) -> Reconciliation:
    """The counts of bronze beside those of silver and quarantine, noted for the next check if they add up.

    `unchanged`: games that balanced, and have no news.
    """
    games = {
        game: GameCounts(counts.rows[game] - counts.pending[game], row_count(table), *_rejected(table), counts.held[game])
        for game, table in sorted(tables.items())
    }
    for game, found in unchanged.items():
        silver = found.rows - found.dropped - found.quarantined
        held = decisions.rejected_rows.get(game, 0)
        games[game] = GameCounts(found.rows, silver, found.dropped, found.quarantined, held)
    transformed = {game: found for game, found in games.items() if pipeline.extensions.transformed(game)}
    compared = {game: found for game, found in games.items() if game not in transformed}
    result = Reconciliation(
        row_count(handle),
        sum(c.silver for c in compared.values()),
        row_count(decisions.handle),
        counts.rows[None],
        sum(counts.pending.values()),
        sum(c.dropped for c in compared.values()),
        sum(c.quarantined for c in compared.values()),
        {game: found for game, found in compared.items() if not found.balanced},
        transformed,
    )
    if result.passed:
        _keep(pipeline, decisions.bronze_id, settled, counts, tables, unchanged)
    return result


def _keep(
    pipeline: Pipeline,
    bronze_id: str,
    settled: int,
    counts: RowCounts,
    tables: Mapping[str, DeltaTable],
    unchanged: Mapping[str, GameRows],
) -> None:
    games = dict[str | None, GameRows](unchanged.items())
    for name, rows in counts.settled.items():
        if rows and name not in games:
            games[name] = GameRows(rows, *(_rejected(tables[name]) if name is not None and name in tables else ()))
    counted = CountedRows(settled, games)
    try:
        pipeline.progress.update(bronze_id, lambda now: replace(now, counted=counted))
    except (GameEventsError, ReadOnlyError, DeltaError, OSError) as error:
        log.warning("counted_rows_not_kept=true the_next_check_counts_all_rows=true cause=%s", type(error).__name__)


def _rejected(silver: DeltaTable) -> tuple[int, int]:
    """A game's rows that rules have dropped, and put into quarantine."""
    return counter(silver, Txn.ROWS_DROPPED), counter(silver, Txn.ROWS_QUARANTINED)
