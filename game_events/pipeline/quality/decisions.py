"""Commits to quarantine which rows are rejected, before silver's own commit.

Guarantee: of the bronze rows up to the batch that is decided for a game, silver lacks those that quarantine holds for the game
(layer `silver`, no `replayed_batch`), and only those, whatever rules are in force by now. So neither a crash between the two
commits, nor a concurrent run, nor a changed rule puts a row into both tables or into neither. And the rows that quarantine
holds for a decided game are of this bronze, each once: others are marked as replayed (`silver.commit.noted`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit, refuse_restored
from game_events.lakehouse.commits.group import for_games
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, txn
from game_events.lakehouse.data.columns import COORDINATES, QUARANTINE_COLUMNS, QUARANTINE_DESCRIPTION
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.data.staging import StagedFile, discard
from game_events.lakehouse.tables import Layer, Table, add_actions, table_id, version_of
from game_events.pipeline.context import Pipeline

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decisions:
    """The decisions on silver's rows in one version of quarantine.

    `handle`: its version; None: there is no table. `bronze_id`: the bronze that batches refer to (`BronzeIdentity.key`).
    """

    table: Table
    handle: DeltaTable | None
    bronze_id: str

    @classmethod
    def read(cls, pipeline: Pipeline, bronze_id: str) -> Decisions:
        """The decisions in quarantine's latest version.

        Raises:
            DataError: quarantine was restored: rows of committed decisions are gone.
        """
        handle = pipeline.open_quarantine()
        if handle is not None:
            handle = refuse_restored(pipeline.quarantine, handle)
        return cls(pipeline.quarantine, handle, bronze_id)

    @cached_property
    def in_force(self) -> bool:
        """Whether there is any decision on rows of this bronze."""
        return self._value(Txn.DECIDED_BATCH) is not None

    @cached_property
    def redecisions(self) -> int:
        """Number of commits that decided again on all rows of games, each for silver tables that are replaced."""
        return self._value(Txn.DECIDED_INCARNATION) or 0

    def batch(self, game: str) -> int | None:
        """Last bronze batch for which a game's rows are decided; None: there never was a decision."""
        return self._value(Txn.DECIDED_BATCH, game) if self.in_force else None

    def incarnation(self, game: str) -> int:
        """Incarnation of the silver table that a game's rows were decided again for; 0: they never were."""
        return (self._value(Txn.DECIDED_INCARNATION, game) or 0) if self.redecisions else 0

    @cached_property
    def rejected_rows(self) -> Counter[str]:
        """Game -> its rejected rows in quarantine: from the log's statistics, except files of several games, which are read."""
        rejected: Counter[str] = Counter()
        if self.handle is None:
            return rejected
        mixed: list[str] = []
        for file in add_actions(self.handle).to_pylist():
            if file.get("max.layer", Layer.SILVER) == Layer.BRONZE or file.get("null_count.replayed_batch") == 0:
                continue
            game = _only_game(file)
            if game is not None:
                rejected[game] += int(file["num_records"])
            else:
                mixed.append(file["path"])
        if mixed:
            rows = read_arrow(self.table, self.handle, ["layer", "game", "replayed_batch"], mixed)
            if "game" in rows.column_names:
                is_held = pc.and_(pc.equal(rows["layer"], Layer.SILVER), pc.is_null(rows["replayed_batch"]))
                rejected.update(rows.filter(is_held)["game"].drop_null().to_pylist())
        return rejected

    def held_rows(self, pipeline: Pipeline, games: Iterable[str]) -> DataFrame | None:
        """Coordinates and game of these games' rejected rows; None: there are none."""
        wanted = sorted(self.rejected_rows.keys() & set(games))
        if self.handle is None or not wanted:
            return None
        rows = read_table(pipeline.spark, self.handle)
        rows = rows.where((F.col("layer") == Layer.SILVER) & F.col("replayed_batch").isNull() & F.col("game").isin(*wanted))
        return rows.select(*COORDINATES, "game").distinct()

    def _value(self, app: Txn, *game: str) -> int | None:
        return txn(self.handle, app.of(self.bronze_id, *game))


def _only_game(file: Mapping[str, Any]) -> str | None:
    """The game of all rows of a file, none of which was replayed, by its statistics; None: they do not say so."""
    game: str | None = file.get("min.game")
    whole = file.get("null_count.game") == 0 and file.get("null_count.replayed_batch") == file["num_records"]
    return game if whole and game == file.get("max.game") else None


@dataclass(frozen=True)
class RejectionDecision:
    """A decision on one game's rows.

    `batch`: rows up to this bronze batch are decided. `files`: staged rows that are rejected now. `incarnation`: if all rows
    are decided again: the incarnation of the silver table that replaces them.
    """

    batch: int
    files: Sequence[StagedFile] = ()
    incarnation: int | None = None

    def says_more_than(self, batch: int | None) -> bool:
        """Whether it has to be committed after a decision up to a batch."""
        return bool(self.files) or self.incarnation is not None or self.batch > (batch or 0)


@dataclass(frozen=True)
class Rewritten:
    """Staged files with the rows of quarantine that are marked as replayed, and the paths of the files that they replace."""

    files: Sequence[StagedFile] = ()
    paths: frozenset[str] = frozenset()


def decide(
    pipeline: Pipeline, before: Decisions, planned: Mapping[str, RejectionDecision], rewritten: Rewritten = Rewritten()
) -> tuple[Landed | None, set[str]]:
    """Commit the decisions on some games, all at once, planned from the decisions `before`.

    A game without rejected rows is decided, too: a concurrent run with other rules could decide otherwise.

    Returns:
        the commit, if there was one; and the games that a concurrent run has decided on meanwhile, whose files are deleted.

    Raises:
        TransientError: the outcome is not known: silver must not be committed; the next run reads the outcome.
    """
    now = Decisions.read(pipeline, before.bronze_id)
    moved = _decided_meanwhile(before, now, planned)
    if moved and rewritten.paths:  # these files have rows of all games
        moved = set(planned)
        discard(pipeline.quarantine, list(rewritten.files))
    for game in moved:
        discard(pipeline.quarantine, list(planned[game].files))
    left = {game: decision for game, decision in planned.items() if game not in moved}
    due = {game: decision for game, decision in left.items() if decision.says_more_than(before.batch(game))}
    if not due:
        return None, moved
    try:
        landed = commit(_commit_plan(pipeline, before, now, due, rewritten))
    except ConflictError as error:
        log.info("rejections_conflict=%r planned_again=%d", str(error), len(planned))
        return None, set(planned)
    pipeline.tables.publish(pipeline.quarantine, landed.handle)
    failpoints.reach("rejections_decided")
    return landed, moved


def _decided_meanwhile(before: Decisions, now: Decisions, games: Iterable[str]) -> set[str]:
    """Games that a concurrent run has decided on between two versions of quarantine; all if it is another table."""
    games = list(games)
    if table_id(now.handle) != table_id(before.handle):
        return set(games)
    same = for_games(games, lambda g: before.batch(g) == now.batch(g) and before.incarnation(g) == now.incarnation(g))
    return {game for game, is_same in same.items() if not is_same}


def _commit_plan(
    pipeline: Pipeline, before: Decisions, now: Decisions, due: Mapping[str, RejectionDecision], rewritten: Rewritten
) -> Commit:
    expected, advance = _transactions(before, now, due)
    files = [file for decision in due.values() for file in decision.files]
    return Commit(
        pipeline.quarantine,
        QUARANTINE_COLUMNS,
        [*files, *rewritten.files],
        expect_transactions=expected,
        set_transactions=advance,
        table_id=table_id(now.handle),
        from_version=version_of(before.handle),
        rewritten=rewritten.paths,
        info={"rejected_rows": str(sum(file.rows for file in files)), "run_id": pipeline.run_id},
        description=QUARANTINE_DESCRIPTION,
    )


def _transactions(
    before: Decisions, now: Decisions, due: Mapping[str, RejectionDecision]
) -> tuple[dict[str, int | None], dict[str, int]]:
    """The `txn` that quarantine must have, and those that the commit sets."""
    bronze_id = now.bronze_id
    # A full refresh of bronze that has reached quarantine meanwhile: the rows are of a bronze that is gone.
    refreshed = Txn.FULL_REFRESH.of(BronzeIdentity.of_key(bronze_id).table_id)
    expected: dict[str, int | None] = {refreshed: txn(before.handle, refreshed)}
    advance: dict[str, int] = {}
    for game, decision in due.items():
        app = Txn.DECIDED_BATCH.of(bronze_id, game)
        expected[app] = before.batch(game)
        advance[app] = max(decision.batch, expected[app] or 0)
        if decision.incarnation is not None:
            app = Txn.DECIDED_INCARNATION.of(bronze_id, game)
            expected[app] = before.incarnation(game) or None
            advance[app] = decision.incarnation
    if not now.in_force:
        advance[Txn.DECIDED_BATCH.of(bronze_id)] = 1
    if any(decision.incarnation is not None for decision in due.values()):
        app = Txn.DECIDED_INCARNATION.of(bronze_id)
        expected[app] = now.redecisions or None
        advance[app] = now.redecisions + 1
    return expected, advance
