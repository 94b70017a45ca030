"""Reconciliation: bronze rows = silver rows + dropped + quarantined + duplicates + unrouted + pending; also for each game."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from game_events.errors import GameEventsError, ReadOnlyError
from game_events.lakehouse.commits.group import for_games, opened
from game_events.lakehouse.commits.transactions import ROW_COUNTERS, BronzeIdentity, Txn, counter, expired_rows
from game_events.lakehouse.data.columns import COORDINATES, OWN_COLUMNS, has_decoded_columns
from game_events.lakehouse.data.reading import read_arrow, read_parts, row_count, selection
from game_events.lakehouse.data.spark_files import read_files, read_table, spark_schema
from game_events.lakehouse.system_tables import CountedRows, GameRows, Progress
from game_events.lakehouse.tables import Lakehouse, Layer, Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality import Decisions
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


def count_rows(
    pipeline: Pipeline, handle: DeltaTable, decisions: Decisions, taken: Mapping[str, int], settled: int, above: int = 0
) -> RowCounts:
    """Count bronze's rows by game in one Spark job; if quarantine has rejected rows, the job joins them with bronze.

    `taken`: game -> last batch in its silver table; `settled`: last batch without pending rows. `above`: only rows of later
    batches than this one are read, and `held` is not counted; 0: all rows.
    """
    if above:
        later = selection(handle, above)
        if not later.files:
            return RowCounts()
        if later.rows_known and later.rows <= pipeline.lakehouse.sizes.read_rows and len(later.files) <= FEW_FILES:
            return _count_here(pipeline, handle, later.paths, taken, settled, above)
        rows = read_files(pipeline.spark, later.files, spark_schema(handle.schema())).where(F.col("_batch") > above)
        held = None
    else:
        rows = read_table(pipeline.spark, handle)
        held = decisions.held_rows(pipeline, decisions.rejected_rows)
    # Without such a column no record of a selected message type was read yet.
    entity = F.col(pipeline.settings.entity_column) if has_decoded_columns(handle) else F.lit(None).cast("string")
    name = entity.alias("_name")
    if held is None:
        rows = rows.select(name, "_batch", F.lit(None).alias("_held"))
    else:
        rows = rows.select(name, "_batch", *COORDINATES)
        held = held.withColumnRenamed("game", "_name").withColumn("_held", F.lit(True))
        rows = rows.join(held, [*COORDINATES, "_name"], "left")
    # An idle game's silver has an older batch than others and is complete all the same: only rows above it are pending.
    pending = F.col("_batch") > F.col("_taken")
    late = F.coalesce(pending, F.lit(False))
    by_game = (
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
    for row in by_game:
        for count, games in vars(counts).items():
            games[row["_game"]] += int(row[count])
        counts.settled[None] += int(row["late"])
    return counts


def _count_here(
    pipeline: Pipeline, handle: DeltaTable, files: Sequence[str], taken: Mapping[str, int], settled: int, above: int
) -> RowCounts:
    """As `count_rows`, of a few files, in this process: an increment of some records would wait for Spark's job."""
    entity = pipeline.settings.entity_column
    rows = read_arrow(pipeline.bronze, handle, [entity, "_batch"], files)
    groups = rows.group_by(rows.column_names).aggregate([([], "count_all")])
    names = groups[entity].to_pylist() if entity in rows.column_names else [None] * groups.num_rows
    counts = RowCounts()
    for name, batch, number in zip(names, groups["_batch"].to_pylist(), groups["count_all"].to_pylist(), strict=True):
        if batch is None or batch <= above:
            continue
        game = name if name in taken else None
        is_pending = game is not None and batch > taken[game]
        counts.rows[game] += number
        if is_pending:
            counts.pending[game] += number
        if batch <= settled:
            counts.settled[None if is_pending else game] += number
    return counts


#: Counts rows as `count_rows` does.
RowCounter = Callable[[Pipeline, DeltaTable, Decisions, Mapping[str, int], int, int], RowCounts]


def last_batches(spark: SparkSession, taken: Mapping[str, int]) -> DataFrame:
    """`_game` and `_taken`, the last bronze batch in its silver table: to be joined with rows, a copy for each worker."""
    limits = pa.table({"_game": pa.array(list(taken), pa.string()), "_taken": pa.array(taken.values(), pa.int64())})
    return F.broadcast(spark.createDataFrame(limits, "_game string, _taken bigint"))


def add_expired(counts: RowCounts, bronze: DeltaTable, games: Collection[str]) -> None:
    """Add the rows that bronze has lost by age, all of which were in silver; `games`: those with a silver table."""
    gone = expired_rows(bronze)
    if not gone:
        return
    by_game = for_games(games, lambda game: expired_rows(bronze, game))
    of_others = gone - sum(by_game.values())
    for game, rows in [*by_game.items(), (None, of_others)]:
        counts.rows[game] += rows
        counts.settled[game] += rows


def add_earlier(counts: RowCounts, earlier: CountedRows, known: Collection[str]) -> None:
    """Add the rows that an earlier check has counted; `known`: games with a silver table, rows of others belong to none."""
    for name, of_game in earlier.games.items():
        game = name if name in known else None
        counts.rows[game] += of_game.rows
        counts.settled[game] += of_game.rows


@dataclass(frozen=True)
class GameCounts:
    """Row counts of one game, up to the last bronze batch in its silver table.

    `bronze`, `silver`: rows of the layers, of bronze with those that it has lost by age. `dropped`, `quarantined`: rejected
    rows, by silver's counters. `duplicates`: rows that were sent twice, by its counter. `held`: rejected rows that are in
    quarantine. `expired`, `rejected_expired`: rows that silver, and rejected rows that quarantine, lack by age.
    """

    bronze: int
    silver: int
    dropped: int = 0
    quarantined: int = 0
    duplicates: int = 0
    held: int = 0
    expired: int = 0
    rejected_expired: int = 0

    @property
    def balanced(self) -> bool:
        """Whether every row is in exactly one place."""
        accounted_for = self.silver + self.dropped + self.quarantined + self.duplicates + self.expired
        return self.bronze == accounted_for and self.quarantined == self.held + self.rejected_expired

    def __str__(self) -> str:
        parts = [f"bronze {self.bronze}", f"silver {self.silver}"]
        if self.dropped or self.quarantined or self.held:
            parts += [f"dropped {self.dropped}", f"quarantined {self.quarantined}", f"in quarantine {self.held}"]
        if self.duplicates:
            parts.append(f"duplicates {self.duplicates}")
        if self.expired or self.rejected_expired:
            parts.append(f"gone by age {self.expired}, from quarantine {self.rejected_expired}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Reconciliation:
    """Row counts of all games.

    Attributes:
        bronze, silver: rows of the layers; silver without the games of `transformed`.
        quarantine: rows of quarantine, undecodable (perhaps replayed) and rejected ones.
        unrouted: bronze rows of a game without a silver table.
        pending: bronze rows that are not in silver yet.
        dropped, quarantined: rejected bronze rows. duplicates: bronze rows that were sent twice.
        expired_bronze, expired: rows that bronze has lost, and that silver lacks, by age.
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
    duplicates: int = 0
    expired_bronze: int = 0
    expired: int = 0
    wrong: Mapping[str, GameCounts] = field(default_factory=dict)
    transformed: Mapping[str, GameCounts] = field(default_factory=dict)
    counted_before: int = 0
    readmitted: Mapping[str, int] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        """Bronze rows of the games of `transformed`."""
        return sum(counts.bronze for counts in self.transformed.values())

    @property
    def passed(self) -> bool:
        """Whether every bronze row was found, in all and for each game."""
        kept_out = self.dropped + self.quarantined + self.duplicates + self.expired
        bronze = self.bronze + self.expired_bronze
        return not self.wrong and bronze == self.silver + kept_out + self.unrouted + self.pending + self.taken

    def metadata(self) -> Mapping[str, int | str]:
        """The counts, for display."""
        shown = ("bronze", "silver", "quarantine", "unrouted", "pending", "dropped", "quarantined")
        counts: dict[str, int | str] = {f"{name}_rows": getattr(self, name) for name in shown}
        if self.duplicates:
            counts["duplicate_rows"] = self.duplicates
        if self.expired_bronze or self.expired:
            counts |= {"gone_by_age_bronze_rows": self.expired_bronze, "gone_by_age_silver_rows": self.expired}
        if self.transformed:
            counts["transformed_games"] = _named(self.transformed)
        if self.readmitted:
            counts["rows_left_out_until_now"] = sum(self.readmitted.values())
        if self.wrong:
            counts["games_that_differ"] = _named(self.wrong)
        return counts

    def summary(self) -> str:
        """One sentence."""
        bronze = f"bronze {self.bronze:,}" + (f" + gone by age {self.expired_bronze:,}" if self.expired_bronze else "")
        sums = f"{bronze} = silver {self.silver:,} + unrouted {self.unrouted:,} + pending {self.pending:,}"
        if self.dropped or self.quarantined:
            sums += f" + dropped {self.dropped:,} + quarantined {self.quarantined:,}"
        if self.duplicates:
            sums += f" + duplicates {self.duplicates:,}"
        if self.expired:
            sums += f" + gone by age {self.expired:,}"
        if self.transformed:
            sums += f" + transformed {self.taken:,} (their rows may become any number of rows)"
        if self.readmitted:
            sums += f"; {sum(self.readmitted.values()):,} of them were left out by the settings until now, and wait for a run"
        return sums if self.passed else f"rows are missing or doubled: not {sums}"


def _named(games: Mapping[str, GameCounts]) -> str:
    return ", ".join(f"{game}: {counts}" for game, counts in games.items())


def reconcile(pipeline: Pipeline, changed: Collection[str] | None = None, count: RowCounter = count_rows) -> Reconciliation:
    """Count the rows: bronze by a Spark job (`count`), silver and quarantine by their logs.

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
    result = None
    if changed is not None and state.counted.batch > 0:
        result = _of_later_rows(pipeline, before, state, changed, count)
    if result is None or not result.passed:
        result = _of_all_rows(pipeline, before, state, count)
    return replace(result, readmitted=readmitted_rows(pipeline, before, state)[0])


def _of_later_rows(
    pipeline: Pipeline, before: DeltaTable, state: Progress, changed: Collection[str], count: RowCounter
) -> Reconciliation | None:
    """The counts of games with news, and of those `changed`; all others have what they had.

    None: bronze was replaced, or a table is not what progress says of it.
    """
    identity = BronzeIdentity.of(before)
    earlier = state.counted
    looked_at = _looked_at(state, changed)
    tables = opened(looked_at, pipeline.lakehouse.silver, pipeline.tables.open_to_read)
    # After progress and these tables, so that it has every batch that they have.
    bronze = pipeline.open_bronze()
    if bronze is None or BronzeIdentity.of(bronze) != identity:
        return None
    taken = for_games(tables, lambda game: identity.taken(tables[game]) or 0)
    # Of a game that fails now, too, earlier batches were in silver.
    settled = max(_settled(state, taken), earlier.batch)
    taken |= {game: batch for game, batch in state.games.items() if game not in looked_at}
    decisions = Decisions(pipeline.quarantine, pipeline.open_quarantine(), identity.key)
    counts = count(pipeline, bronze, decisions, taken, settled, earlier.batch)
    waiting = _games_with_pending(counts) - tables.keys()
    tables |= opened(waiting, pipeline.lakehouse.silver, pipeline.tables.open_to_read)
    if any(identity.taken(tables.get(game)) != taken[game] for game in waiting):
        return None
    types = _types_of(pipeline, tables)
    add_earlier(counts, earlier, taken)
    counts.held.update({game: decisions.rejected_rows.get(game, 0) for game in tables})
    unchanged = {game: earlier.games[game] for game in taken.keys() & earlier.games.keys() - tables.keys()}
    result = _compared(pipeline, _Counted(pipeline.lakehouse, bronze, decisions, tables, counts, settled, unchanged, types))
    _publish(pipeline, tables)
    return replace(result, counted_before=earlier.batch)


def _types_of(pipeline: Pipeline, games: Collection[str]) -> Mapping[str, Mapping[str, DeltaTable]]:
    """Game -> what the tables of its message types are called -> handle.

    To be opened after the games' own ones, which say up to where they count.
    """
    names = {game: of_game for game, of_game in pipeline.lakehouse.type_tables().items() if game in games}
    handles = opened(chain.from_iterable(names.values()), pipeline.lakehouse.silver, pipeline.tables.open_to_read)
    return {game: {name: handles[name] for name in of_game if name in handles} for game, of_game in names.items()}


def _publish(pipeline: Pipeline, silver: Mapping[str, DeltaTable]) -> None:
    for game, handle in silver.items():
        pipeline.tables.publish(pipeline.lakehouse.silver(game), handle)


def _looked_at(state: Progress, changed: Collection[str]) -> set[str]:
    """Games whose tables are opened: with news since the earlier check, changed, or failed."""
    with_news = {game for game, batch in state.games.items() if batch > state.counted.batch}
    return with_news | (state.games.keys() & {*changed, *state.failed_in(Layer.SILVER)})


def _games_with_pending(counts: RowCounts) -> set[str]:
    return {game for game, rows in counts.pending.items() if rows and game is not None}


def _of_all_rows(pipeline: Pipeline, before: DeltaTable, state: Progress, count: RowCounter) -> Reconciliation:
    identity = BronzeIdentity.of(before)
    tables = opened(state.games, pipeline.lakehouse.silver)
    types = _types_of(pipeline, tables)
    handle = pipeline.open_bronze() or before
    if BronzeIdentity.of(handle) != identity:
        return reconcile(pipeline, count=count)  # it was replaced meanwhile, and has progress of its own
    decisions = Decisions(pipeline.quarantine, pipeline.open_quarantine(), identity.key)
    taken = for_games(tables, lambda game: identity.taken(tables[game]) or 0)
    settled = _settled(state, taken)
    counts = count(pipeline, handle, decisions, taken, settled, 0)
    _hold_without_bronze(counts, handle, decisions, tables)
    add_expired(counts, handle, tables)
    return _compared(pipeline, _Counted(pipeline.lakehouse, handle, decisions, tables, counts, settled, types=types))


def _hold_without_bronze(counts: RowCounts, bronze: DeltaTable, decisions: Decisions, games: Collection[str]) -> None:
    """Of games of which bronze has lost rows by age, count all rejected rows in quarantine: some have no row of bronze."""
    if expired_rows(bronze):
        counts.held.update(
            {game: decisions.rejected_rows.get(game, 0) - counts.held[game] for game in games if expired_rows(bronze, game)}
        )


def _settled(state: Progress, taken: Mapping[str, int]) -> int:
    """The bronze batch up to which no row is pending."""
    behind = [taken.get(game, 0) for game in state.failed_in(Layer.SILVER)]
    return min([state.floor(Layer.SILVER), *behind])


@dataclass(frozen=True)
class _Counted:
    """What is compared.

    `unchanged`: games that balanced, and have no news. `settled`: batch up to which no row is pending. `types`: game -> the
    tables of its message types, by what they are called.
    """

    lakehouse: Lakehouse
    bronze: DeltaTable
    decisions: Decisions
    tables: Mapping[str, DeltaTable]
    rows: RowCounts
    settled: int
    unchanged: Mapping[str, GameRows] = field(default_factory=dict)
    types: Mapping[str, Mapping[str, DeltaTable]] = field(default_factory=dict)

    def rows_in(self, game: str) -> int:
        """Rows of a game's silver; of its message types those that its own table says are complete."""
        own = self.tables[game]
        upto = BronzeIdentity.of(self.bronze).taken(own) or 0
        types = self.types.get(game, {}).items()
        return row_count(own) + sum(_rows_up_to(self.lakehouse.silver(name), handle, upto) for name, handle in types)

    def kept_out(self, game: str) -> tuple[int, int, int, int]:
        """A game's rows that rules have dropped, and put into quarantine, those sent twice, and those gone by age."""
        tables = (self.tables[game], *self.types.get(game, {}).values())
        dropped, quarantined, duplicates = (sum(counter(table, app) for table in tables) for app in ROW_COUNTERS)
        # Where types have tables, an erasure takes its duplicates off the dropped rows (`governance.commits`).
        expired = sum(expired_rows(table) for table in tables)
        return max(0, dropped), quarantined, duplicates + min(0, dropped), expired

    def rejected_expired(self, game: str) -> int:
        """A game's rejected rows that quarantine has lost by age since silver's rows were last replaced."""
        gone = expired_rows(self.decisions.handle, game)
        return gone - counter(self.tables[game], Txn.REJECTED_EXPIRED) if gone else 0


def _rows_up_to(table: Table, handle: DeltaTable, batch: int) -> int:
    """Rows without those of later batches, which a crash, or a run at this moment, has added.

    Nothing is read but files that may hold rows of both, as after a compaction.
    """
    later = selection(handle, batch)
    if later.exact:
        return row_count(handle) - later.rows
    parts = read_parts(table, pa.schema([OWN_COLUMNS.field("_batch")]), later.paths)
    return row_count(handle) - sum(pc.sum(pc.greater(part.column("_batch"), batch)).as_py() or 0 for part in parts)


def _compared(pipeline: Pipeline, counted: _Counted) -> Reconciliation:
    """The counts of bronze beside those of silver and quarantine, noted for the next check if they add up."""
    result = _added_up(pipeline, counted, _counts_by_game(counted))
    if result.passed:
        _keep(pipeline, counted)
    return result


def _counts_by_game(counted: _Counted) -> dict[str, GameCounts]:
    rows = counted.rows
    games: dict[str, GameCounts] = {}
    for game in sorted(counted.tables):
        dropped, quarantined, duplicates, expired = counted.kept_out(game)
        games[game] = GameCounts(
            rows.rows[game] - rows.pending[game],
            counted.rows_in(game),
            dropped,
            quarantined,
            duplicates,
            rows.held[game],
            expired,
            counted.rejected_expired(game),
        )
    for game, before in counted.unchanged.items():
        silver = before.rows - before.dropped - before.quarantined - before.duplicates - before.expired
        held = counted.decisions.rejected_rows.get(game, 0)
        # Its table is not opened: whether quarantine lacks as many rows as it should is not compared.
        lacking = before.quarantined - held if expired_rows(counted.decisions.handle, game) else 0
        games[game] = GameCounts(before.rows, silver, *before[1:4], held, before.expired, lacking)
    return games


def _added_up(pipeline: Pipeline, counted: _Counted, games: Mapping[str, GameCounts]) -> Reconciliation:
    """The sums over all games; those with a transformation of their own apart."""
    rows = counted.rows
    transformed = {game: counts for game, counts in games.items() if pipeline.extensions.transformed(game)}
    compared = {game: counts for game, counts in games.items() if game not in transformed}
    return Reconciliation(
        bronze=row_count(counted.bronze),
        silver=sum(counts.silver for counts in compared.values()),
        quarantine=row_count(counted.decisions.handle),
        unrouted=rows.rows[None],
        pending=sum(rows.pending.values()),
        dropped=sum(counts.dropped for counts in compared.values()),
        quarantined=sum(counts.quarantined for counts in compared.values()),
        duplicates=sum(counts.duplicates for counts in compared.values()),
        expired_bronze=expired_rows(counted.bronze),
        expired=sum(counts.expired for counts in compared.values()),
        wrong={game: counts for game, counts in compared.items() if not counts.balanced},
        transformed=transformed,
    )


def _keep(pipeline: Pipeline, counted: _Counted) -> None:
    games = dict[str | None, GameRows](counted.unchanged.items())
    for name, rows in counted.rows.settled.items():
        if rows and name not in games:
            has_table = name is not None and name in counted.tables
            games[name] = GameRows(rows, *counted.kept_out(str(name))) if has_table else GameRows(rows)
    noted = CountedRows(counted.settled, games)
    try:
        pipeline.progress.update(counted.decisions.bronze_id, lambda now: replace(now, counted=noted))
    except (GameEventsError, ReadOnlyError, DeltaError, OSError) as error:
        log.warning("counted_rows_not_kept=true the_next_check_counts_all_rows=true cause=%s", type(error).__name__)
