"""The books: every bronze row is in its game's silver table, or is counted as belonging to none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import functions as F

from game_events.lakehouse.reading import read_files, row_count, spark_schema
from game_events.pipeline.context import Pipeline
from game_events.pipeline.silver import bronze_app


@dataclass(frozen=True)
class Reconciliation:
    """Row counts of one moment.

    Attributes:
        bronze, silver, quarantine: rows of the layers; silver without the games of `transformed`.
        unrouted: bronze rows whose name has no silver table.
        pending: bronze rows of batches that their game's silver table has not taken yet.
        transformed: game -> the same two numbers, where a transformation may add and leave out rows: nothing to compare.
        wrong: game -> (rows in bronze up to the batch silver has taken, rows in silver), where they differ.
    """

    bronze: int = 0
    silver: int = 0
    quarantine: int = 0
    unrouted: int = 0
    pending: int = 0
    wrong: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    transformed: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        """Bronze rows that the games of `transformed` have taken."""
        return sum(bronze for bronze, _ in self.transformed.values())

    @property
    def passed(self) -> bool:
        """Bronze = silver + unrouted + pending (+ what transformed games have taken), and so for each game."""
        return not self.wrong and self.bronze == self.silver + self.unrouted + self.pending + self.taken

    def metadata(self) -> Mapping[str, int | str]:
        """The counts, for display."""
        counts: dict[str, int | str] = {
            "bronze_rows": self.bronze,
            "silver_rows": self.silver,
            "quarantine_rows": self.quarantine,
            "unrouted_rows": self.unrouted,
            "pending_rows": self.pending,
        }
        if self.transformed:
            counts["transformed_games"] = ", ".join(f"{g}: bronze {b}, silver {s}" for g, (b, s) in self.transformed.items())
        if self.wrong:
            counts["games_that_differ"] = ", ".join(f"{g}: bronze {b}, silver {s}" for g, (b, s) in self.wrong.items())
        return counts

    def summary(self) -> str:
        """One sentence."""
        sums = f"bronze {self.bronze:,} = silver {self.silver:,} + unrouted {self.unrouted:,} + pending {self.pending:,}"
        if self.transformed:
            sums += f" + transformed {self.taken:,} (their rows may become any number of rows)"
        return sums if self.passed else f"rows are missing or doubled: not {sums}"


def reconcile(pipeline: Pipeline) -> Reconciliation:
    """Count. One Spark job over two columns of bronze; silver and quarantine from their logs alone.

    Right beside a live writer, too: silver is looked at before bronze, so bronze has every batch that silver has taken.
    """
    before = pipeline.bronze.open()
    quarantine = pipeline.quarantine.open()
    held = row_count(quarantine) if quarantine is not None else 0
    if before is None or not row_count(before):
        return Reconciliation(quarantine=held)
    entity = pipeline.settings.entity_column
    bronze_id = str(before.metadata().id)
    games = pipeline.progress.read(bronze_id).games
    tables = {game: pipeline.lakehouse.silver(game).open() for game in games}
    handle = pipeline.bronze.open() or before
    rows = read_files(pipeline.spark, handle.file_uris(), spark_schema(handle.schema()))
    taken = {g: t.transaction_version(bronze_app(bronze_id)) or 0 for g, t in tables.items() if t is not None}
    # A game that is idle stands at an older batch and is complete up to bronze's, so rows above it are what is pending.
    limits = pipeline.spark.createDataFrame(
        pa.table({"_game": list(taken), "_taken": pa.array(taken.values(), pa.int64())}), "_game string, _taken bigint"
    )
    counted = (
        rows.select(F.col(entity).alias("_name"), "_batch")
        .join(F.broadcast(limits), F.col("_name") == F.col("_game"), "left")
        .groupBy("_game")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count(F.when(F.col("_batch") > F.col("_taken"), 1)).alias("pending"),
        )
        .collect()
    )
    by_game = {r["_game"]: (int(r["rows"]), int(r["pending"])) for r in counted}
    unrouted = by_game.pop(None, (0, 0))[0]
    silver = {g: row_count(t) for g, t in tables.items() if t is not None}
    expected = {g: by_game.get(g, (0, 0))[0] - by_game.get(g, (0, 0))[1] for g in silver}
    both = {g: (expected[g], silver[g]) for g in sorted(silver)}
    transformed = {g: counts for g, counts in both.items() if pipeline.extensions.transformed(g)}
    wrong = {g: counts for g, counts in both.items() if counts[0] != counts[1] and g not in transformed}
    pending = sum(p for _, p in by_game.values())
    held_in_silver = sum(rows for game, rows in silver.items() if game not in transformed)
    return Reconciliation(row_count(handle), held_in_silver, held, unrouted, pending, wrong, transformed)
