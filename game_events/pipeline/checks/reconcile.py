"""The books: every bronze row is in its game's silver table, is kept out of it by a rule, or belongs to none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F

from game_events.lakehouse.commits.generations import BronzeIdentity
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.data.snapshot import read_files, row_count, spark_schema
from game_events.lakehouse.event_columns import COORDINATES, has_decoded_columns
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.silver.commit import DROPPED_APP, QUARANTINED_APP


@dataclass(frozen=True)
class Books:
    """One game, up to the bronze batch that its silver table has taken.

    Attributes:
        bronze, silver: rows of the layers.
        dropped, quarantined: rows that rules kept out, as silver's own counters say.
        held: those of them that quarantine really holds.
    """

    bronze: int
    silver: int
    dropped: int = 0
    quarantined: int = 0
    held: int = 0

    @property
    def balance(self) -> bool:
        """Every row is in one place."""
        return self.bronze == self.silver + self.dropped + self.quarantined and self.quarantined == self.held

    def __str__(self) -> str:
        parts = [f"bronze {self.bronze}", f"silver {self.silver}"]
        if self.dropped or self.quarantined or self.held:
            parts += [f"dropped {self.dropped}", f"quarantined {self.quarantined}", f"in quarantine {self.held}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Reconciliation:
    """Row counts of one moment.

    Attributes:
        bronze, silver: rows of the layers; silver without the games of `transformed`.
        quarantine: rows of quarantine: those that are not decodable (some may have been replayed), and rejected ones.
        unrouted: bronze rows whose name has no silver table.
        pending: bronze rows of batches that their game's silver table has not taken yet.
        dropped, quarantined: bronze rows that rules keep out of silver.
        wrong: the games whose rows do not add up.
        transformed: games of which a transformation may add and leave out rows: nothing to compare.
    """

    bronze: int = 0
    silver: int = 0
    quarantine: int = 0
    unrouted: int = 0
    pending: int = 0
    dropped: int = 0
    quarantined: int = 0
    wrong: Mapping[str, Books] = field(default_factory=dict)
    transformed: Mapping[str, Books] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        """Bronze rows that the games of `transformed` have taken."""
        return sum(books.bronze for books in self.transformed.values())

    @property
    def accounted(self) -> int:
        """Rows of bronze that are somewhere."""
        return self.silver + self.dropped + self.quarantined + self.unrouted + self.pending + self.taken

    @property
    def passed(self) -> bool:
        """Every row of bronze is accounted for, in all and for each game."""
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
            counts["transformed_games"] = ", ".join(f"{game}: {books}" for game, books in self.transformed.items())
        if self.wrong:
            counts["games_that_differ"] = ", ".join(f"{game}: {books}" for game, books in self.wrong.items())
        return counts

    def summary(self) -> str:
        """One sentence."""
        sums = f"bronze {self.bronze:,} = silver {self.silver:,} + unrouted {self.unrouted:,} + pending {self.pending:,}"
        if self.dropped or self.quarantined:
            sums += f" + dropped {self.dropped:,} + quarantined {self.quarantined:,}"
        if self.transformed:
            sums += f" + transformed {self.taken:,} (their rows may become any number of rows)"
        return sums if self.passed else f"rows are missing or doubled: not {sums}"


def reconcile(pipeline: Pipeline) -> Reconciliation:
    """Count. One Spark job over bronze's names and batches; silver and quarantine from their logs.

    Where quarantine holds rows that rules reject, the job also looks their coordinates up in bronze. Right beside a live
    writer, too: silver is looked at before bronze and quarantine, so these have every batch that silver has taken.
    """
    before = pipeline.bronze.open()
    if before is None or not row_count(before):
        empty = pipeline.quarantine.open()
        return Reconciliation(quarantine=row_count(empty) if empty is not None else 0)
    identity = BronzeIdentity.of(before)
    games = pipeline.progress.read(identity.key).games
    opened = for_games(games, lambda game: pipeline.lakehouse.silver(game).open())
    tables = {game: table for game, table in opened.items() if table is not None}
    handle = pipeline.bronze.open() or before
    quarantine = pipeline.quarantine.open()
    quarantine_rows = row_count(quarantine) if quarantine is not None else 0
    taken = for_games(tables, lambda game: identity.taken(tables[game]) or 0)
    counted = _count(pipeline, handle, Decisions(pipeline.quarantine, quarantine, identity.key), taken)
    unrouted = counted.pop(None, (0, 0, 0))[0]
    kept_out = for_games(tables, partial(_kept_out, tables))
    books = {}
    for game in sorted(tables):
        rows, pending, held = counted.get(game, (0, 0, 0))
        books[game] = Books(rows - pending, row_count(tables[game]), *kept_out[game], held)
    transformed = {game: found for game, found in books.items() if pipeline.extensions.transformed(game)}
    compared = {game: found for game, found in books.items() if game not in transformed}
    return Reconciliation(
        row_count(handle),
        sum(b.silver for b in compared.values()),
        quarantine_rows,
        unrouted,
        sum(pending for _, pending, _ in counted.values()),
        sum(b.dropped for b in compared.values()),
        sum(b.quarantined for b in compared.values()),
        {game: found for game, found in compared.items() if not found.balance},
        transformed,
    )


def _count(
    pipeline: Pipeline, handle: DeltaTable, decisions: Decisions, taken: Mapping[str, int]
) -> dict[str | None, tuple[int, int, int]]:
    """Game (None: no table) -> rows of bronze, those its table has not taken yet, and taken ones that quarantine holds."""
    entity = pipeline.settings.entity_column
    rows = read_files(pipeline.spark, handle.file_uris(), spark_schema(handle.schema()))
    # A game that is idle stands at an older batch and is complete up to bronze's, so rows above it are what is pending.
    limits = pipeline.spark.createDataFrame(
        pa.table({"_game": list(taken), "_taken": pa.array(taken.values(), pa.int64())}), "_game string, _taken bigint"
    )
    held = decisions.held_rows(pipeline, decisions.rejected_rows)
    # Without the column no record of a selected message type has come yet.
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


def _kept_out(tables: Mapping[str, DeltaTable], game: str) -> tuple[int, int]:
    return _value(tables[game], DROPPED_APP), _value(tables[game], QUARANTINED_APP)


def _value(table: DeltaTable, app: str) -> int:
    return int(table.transaction_version(app) or 0)
