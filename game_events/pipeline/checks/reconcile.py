"""Reconciliation: bronze rows = silver rows + dropped + quarantined + unrouted + pending, in all and for each game."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F

from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.commits.parallel import for_games, opened
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.event_columns import COORDINATES, has_decoded_columns
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality.decisions import Decisions


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
        return sums if self.passed else f"rows are missing or doubled: not {sums}"


def _named(games: Mapping[str, GameCounts]) -> str:
    return ", ".join(f"{game}: {counts}" for game, counts in games.items())


def reconcile(pipeline: Pipeline) -> Reconciliation:
    """Count the rows: bronze by one Spark job over games and batches, silver and quarantine by their logs.

    If quarantine has rejected rows, the job joins them with bronze. Correct beside a live writer: silver is opened before
    bronze and quarantine, which therefore have every batch of silver.
    """
    before = pipeline.bronze.open()
    if before is None or not row_count(before):
        return Reconciliation(quarantine=row_count(pipeline.quarantine.open()))
    identity = BronzeIdentity.of(before)
    games = pipeline.progress.read(identity.key).games
    tables = opened(games, pipeline.lakehouse.silver)
    handle = pipeline.bronze.open() or before
    quarantine = pipeline.quarantine.open()
    taken = for_games(tables, lambda game: identity.taken(tables[game]) or 0)
    counted = _count(pipeline, handle, Decisions(pipeline.quarantine, quarantine, identity.key), taken)
    unrouted = counted.pop(None, (0, 0, 0))[0]
    games_counts = for_games(sorted(tables), lambda game: _game_counts(tables[game], *counted.get(game, (0, 0, 0))))
    transformed = {game: found for game, found in games_counts.items() if pipeline.extensions.transformed(game)}
    compared = {game: found for game, found in games_counts.items() if game not in transformed}
    return Reconciliation(
        row_count(handle),
        sum(c.silver for c in compared.values()),
        row_count(quarantine),
        unrouted,
        sum(pending for _, pending, _ in counted.values()),
        sum(c.dropped for c in compared.values()),
        sum(c.quarantined for c in compared.values()),
        {game: found for game, found in compared.items() if not found.balanced},
        transformed,
    )


def _count(
    pipeline: Pipeline, handle: DeltaTable, decisions: Decisions, taken: Mapping[str, int]
) -> dict[str | None, tuple[int, int, int]]:
    """Game (None: no silver table) -> rows of bronze, pending ones of them, and not pending ones in quarantine."""
    entity = pipeline.settings.entity_column
    rows = read_table(pipeline.spark, handle)
    # An idle game's silver has an older batch than others and is complete all the same: only rows above it are pending.
    limits = pipeline.spark.createDataFrame(
        pa.table({"_game": list(taken), "_taken": pa.array(taken.values(), pa.int64())}), "_game string, _taken bigint"
    )
    held = decisions.held_rows(pipeline, decisions.rejected_rows)
    # Without the column no record of a selected message type was read yet.
    name = F.col(entity) if has_decoded_columns(handle) else F.lit(None).cast("string")
    if held is None:
        rows = rows.select(name.alias("_name"), "_batch", F.lit(None).alias("_held"))
    else:
        rows = rows.select(name.alias("_name"), "_batch", *COORDINATES)
        held = held.withColumnRenamed("game", "_name").withColumn("_held", F.lit(True))
        rows = rows.join(held, [*COORDINATES, "_name"], "left")
    pending = F.col("_batch") > F.col("_taken")
    found = (
        rows.join(F.broadcast(limits), F.col("_name") == F.col("_game"), "left")
        .groupBy("_game")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count(F.when(pending, 1)).alias("pending"),
            F.count(F.when(F.col("_held").isNotNull() & ~pending, 1)).alias("held"),
        )
        .collect()
    )
    return {r["_game"]: (int(r["rows"]), int(r["pending"]), int(r["held"])) for r in found}


def _game_counts(silver: DeltaTable, rows: int, pending: int, held: int) -> GameCounts:
    dropped, quarantined = (counter(silver, app) for app in (Txn.ROWS_DROPPED, Txn.ROWS_QUARANTINED))
    return GameCounts(rows - pending, row_count(silver), dropped, quarantined, held)
