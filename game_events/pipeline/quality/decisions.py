"""Which rows of silver are rejected: decided by one commit to `quarantine_events`, before silver's own.

Guarantee: a bronze row up to the batch that quarantine has decided for its game is kept out of silver if quarantine holds it
for that game (layer `silver`, no `replayed_batch`), and only then, whatever rules are in force by now. So neither a crash
between this commit and silver's, nor a rival, nor a rule that changed in between puts a row into both tables or into neither.
And what quarantine holds for a game that is decided are rows of this bronze, each once: others get a note (`readmissions`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import read_arrow, read_files, spark_schema
from game_events.lakehouse.data.staging import StagedFile, discard
from game_events.lakehouse.event_columns import COORDINATES, QUARANTINE_COLUMNS, QUARANTINE_DESCRIPTION
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quarantine.lost import refuse_restored_quarantine

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decisions:
    """What one version of quarantine has decided about silver's rows.

    Attributes:
        table: quarantine; `handle` is its version, None if there is none.
        bronze_id: which bronze's batches are meant (`BronzeIdentity.key`).
    """

    table: Table
    handle: DeltaTable | None
    bronze_id: str

    @classmethod
    def read(cls, pipeline: Pipeline, bronze_id: str) -> Decisions:
        """The newest.

        Raises:
            DataError: quarantine was restored: decisions that its rows belong to are gone.
        """
        handle = pipeline.quarantine.open()
        refuse_restored_quarantine(pipeline, handle)
        return cls(pipeline.quarantine, handle, bronze_id)

    @cached_property
    def in_force(self) -> bool:
        """Whether there is any decision on rows of this bronze."""
        return self._value(Txn.DECIDED_BATCH) is not None

    @cached_property
    def made_anew(self) -> int:
        """How many commits decided anew, each for silver tables that are replaced."""
        return self._value(Txn.DECIDED_INCARNATION) or 0

    def batch(self, game: str) -> int | None:
        """Bronze batch up to which a game's rows are decided; None: there never was a decision."""
        return self._value(Txn.DECIDED_BATCH, game) if self.in_force else None

    def generation(self, game: str) -> int | None:
        """Generation of the silver table that the decisions on a game's rows were made anew for; None: they never were."""
        return self._value(Txn.DECIDED_INCARNATION, game) if self.made_anew else None

    @cached_property
    def rejected_rows(self) -> Counter[str]:
        """Game -> rows in quarantine that are kept out of its silver: from the log, but for files of several games."""
        found: Counter[str] = Counter()
        if self.handle is None:
            return found
        mixed: list[str] = []
        for file in pa.table(self.handle.get_add_actions(flatten=True)).to_pylist():
            if file.get("max.layer", Layer.SILVER) == Layer.BRONZE or file.get("null_count.replayed_batch") == 0:
                continue
            game = file.get("min.game")
            whole = file.get("null_count.game") == 0 and file.get("null_count.replayed_batch") == file["num_records"]
            if whole and game is not None and game == file.get("max.game"):
                found[game] += int(file["num_records"])
            else:
                mixed.append(file["path"])
        if mixed:
            rows = read_arrow(self.table, self.handle, ["layer", "game", "replayed_batch"], mixed)
            if "game" in rows.column_names:
                held = pc.and_(pc.equal(rows["layer"], Layer.SILVER), pc.is_null(rows["replayed_batch"]))
                found.update(rows.filter(held)["game"].drop_null().to_pylist())
        return found

    def held_rows(self, pipeline: Pipeline, games: Iterable[str]) -> DataFrame | None:
        """Coordinates and game of these games' rows that are kept out of silver; None if there are none."""
        wanted = sorted(self.rejected_rows.keys() & set(games))
        if self.handle is None or not wanted:
            return None
        rows = read_files(pipeline.spark, self.handle.file_uris(), spark_schema(self.handle.schema()))
        rows = rows.where((F.col("layer") == Layer.SILVER) & F.col("replayed_batch").isNull() & F.col("game").isin(*wanted))
        return rows.select(*COORDINATES, "game").distinct()

    def _value(self, txn: Txn, *game: str) -> int | None:
        if self.handle is None:
            return None
        found = self.handle.transaction_version(txn.of(self.bronze_id, *game))
        return int(found) if found is not None else None


@dataclass(frozen=True)
class Verdict:
    """What is to be decided about one game.

    Attributes:
        batch: its rows of bronze up to this batch are decided.
        files: rows that are rejected, and were not before.
        generation: if all its rows are decided anew: the generation that its silver table is to have.
    """

    batch: int
    files: Sequence[StagedFile] = ()
    generation: int | None = None


@dataclass(frozen=True)
class Rewritten:
    """Files of quarantine whose rows get a note, and the paths of the files they stand for."""

    files: Sequence[StagedFile] = ()
    paths: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DecisionOutcome:
    """What a decision came to: what landed, and the games that a rival has decided on meanwhile."""

    landed: Landed | None = None
    moved: frozenset[str] = field(default_factory=frozenset)


def decide(
    pipeline: Pipeline, planned_from: Decisions, verdicts: Mapping[str, Verdict], rewritten: Rewritten = Rewritten()
) -> DecisionOutcome:
    """Commit what is decided about some games, all of them at once.

    Games that a rival has decided on since `planned_from` was read are left out, their files deleted: they have to be planned
    again. A game with no rejected row is decided like any other, or a rival with other rules could decide otherwise.

    Raises:
        TransientError: the outcome is not known. Nothing of silver may be committed; the next run finds out.
    """
    now = Decisions.read(pipeline, planned_from.bronze_id)
    same = _table_id(now.handle) == _table_id(planned_from.handle)
    moved = {
        game
        for game, unchanged in for_games(verdicts, partial(_unchanged, planned_from, now)).items()
        if not (same and unchanged)
    }
    if moved and rewritten.paths:  # the notes are of all games together
        moved = set(verdicts)
        discard(pipeline.quarantine, list(rewritten.files))
    for game in moved:
        discard(pipeline.quarantine, list(verdicts[game].files))
    due = {g: v for g, v in verdicts.items() if g not in moved and _is_news(planned_from, g, v)}
    if not due:
        return DecisionOutcome(None, frozenset(moved))
    expected, advance = _progress(planned_from, now, due)
    files = [f for v in due.values() for f in v.files]
    plan = Commit(
        pipeline.quarantine,
        QUARANTINE_COLUMNS,
        [*files, *rewritten.files],
        expected=expected,
        advance=advance,
        table_id=_table_id(now.handle),
        seen=planned_from.handle.version() if planned_from.handle is not None else None,
        rewritten=rewritten.paths,
        info={"rejected_rows": str(sum(f.rows for f in files)), "run_id": pipeline.run_id},
        description=QUARANTINE_DESCRIPTION,
    )
    try:
        landed = commit(plan)
    except ConflictError as error:
        log.info("rejections_conflict=%r planned_again=%d", str(error), len(verdicts))
        return DecisionOutcome(None, frozenset(verdicts))
    failpoints.reach("rejections_decided")
    return DecisionOutcome(landed, frozenset(moved))


def _progress(before: Decisions, now: Decisions, due: Mapping[str, Verdict]) -> tuple[dict[str, int | None], dict[str, int]]:
    """The `txn` that the commit compares, and those that it gives."""
    bronze_id = now.bronze_id
    # A full refresh of bronze came to quarantine since: these are rows of a bronze that is gone.
    reset = Txn.FULL_REFRESH.of(bronze_id.partition("@")[0])
    expected: dict[str, int | None] = {reset: before.handle.transaction_version(reset) if before.handle is not None else None}
    advance: dict[str, int] = {}
    for game, verdict in due.items():
        app = Txn.DECIDED_BATCH.of(bronze_id, game)
        expected[app] = before.batch(game)
        advance[app] = max(verdict.batch, expected[app] or 0)
        if verdict.generation is not None:
            app = Txn.DECIDED_INCARNATION.of(bronze_id, game)
            expected[app], advance[app] = before.generation(game), verdict.generation
    if not now.in_force:
        advance[Txn.DECIDED_BATCH.of(bronze_id)] = 1
    if any(verdict.generation is not None for verdict in due.values()):
        app = Txn.DECIDED_INCARNATION.of(bronze_id)
        expected[app], advance[app] = now.made_anew or None, now.made_anew + 1
    return expected, advance


def _unchanged(before: Decisions, now: Decisions, game: str) -> bool:
    return (before.batch(game), before.generation(game)) == (now.batch(game), now.generation(game))


def _is_news(before: Decisions, game: str, verdict: Verdict) -> bool:
    return bool(verdict.files) or verdict.generation is not None or (before.batch(game) or 0) < verdict.batch


def _table_id(handle: DeltaTable | None) -> str | None:
    return str(handle.metadata().id) if handle is not None else None
