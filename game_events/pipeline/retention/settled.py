"""Which rows no layer needs any more: of bronze those that silver has, of silver those that gold has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.config.retention import RetentionDays
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, incarnation, restored, silver_app, txn
from game_events.lakehouse.data.columns import MESSAGE_TYPE
from game_events.lakehouse.parts import PartedTable
from game_events.lakehouse.tables import (
    BRONZE,
    EVENT_LOG,
    QUARANTINE,
    Layer,
    Table,
    called_in_silver,
    game_of_silver,
    is_game,
    names_of,
)
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.plan import is_current, player_agg
from game_events.pipeline.quality import Decisions
from game_events.pipeline.quarantine import is_finished, is_noted
from game_events.pipeline.retention.ages import Ages, Mask, Settled, coded
from game_events.pipeline.retention.files import File, candidates
from game_events.plugin import parts

ARRIVAL = "_kafka_timestamp"
#: No row may go.
NOTHING = -1


@dataclass(frozen=True)
class Plan:
    """What decides which rows of one table (or game's part) go.

    Attributes:
        files: those that may have older rows, the oldest first.
        counts_rows: the rows that go are counted by game and batch, so files are read even if all of their rows go.
        counted: columns by which they are counted.
        compared: further transaction ids that the commit compares.
    """

    table: Table
    handle: DeltaTable
    ages: Ages
    files: Sequence[File]
    settled: Settled
    counts_rows: bool = False
    counted: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()

    def goes(self, rows: pa.Table) -> Mask:
        """Of each row whether it goes."""
        time_us, limit_us = self.ages.time_and_limit(rows)
        return (time_us < limit_us) & self.settled.mask(rows)

    def without_old(self, rows: pa.Table) -> pa.Table:
        """The rows that stay."""
        return rows.filter(pa.array(~self.goes(rows)))

    def games_of(self, rows: pa.Table, which: Mask) -> Counter[str]:
        """Game -> rows, of bronze; of quarantine only of rows that rules keep out of silver."""
        if self.table.key == QUARANTINE:
            which = which & ~undecodable_or_replayed(rows)
        names, numbers = coded(rows, self.settled.game_column)
        counts = np.bincount(numbers[which], minlength=len(names))
        return Counter({str(name): int(n) for name, n in zip(names, counts.tolist(), strict=True) if n and is_game(name)})


def ages_of(pipeline: Pipeline, days: RetentionDays, table: Table, handle: DeltaTable, now_us: int) -> Ages | None:
    """The ages of the rows of a table, or of a game's part of one; None: none of its rows has a limit."""
    ages = None
    game = game_of_silver(table.key)
    if table.key == BRONZE:
        entity = pipeline.settings.entity_column
        ages = Ages("bronze", days, now_us, (ARRIVAL,), game_column=entity, type_column=MESSAGE_TYPE)
    elif table.key == QUARANTINE:
        ages = Ages("quarantine", days, now_us, (ARRIVAL,))
    elif table.key == EVENT_LOG:
        ages = Ages("event_log", days, now_us, ("time",))
    elif game is not None:
        names = names_of(handle)
        times = tuple(name for name in (pipeline.lakehouse.time, ARRIVAL) if name in names and _is_time(handle, name))
        ages = Ages("silver", days, now_us, times, game, type_column=MESSAGE_TYPE if MESSAGE_TYPE in names else None)
    return ages if ages is not None and days.has(ages.layer) else None


def plan_of(pipeline: Pipeline, days: RetentionDays, table: Table, handle: DeltaTable, now_us: int) -> Plan | None:
    """The plan for a table, or for a game's part of one; None: no file may have older rows, or others are at work on it.

    Other tables are opened only where there are such files.
    """
    ages = ages_of(pipeline, days, table, handle, now_us)
    files = list(candidates(handle, ages)) if ages is not None else []
    if ages is None or not files:
        return None
    if ages.layer == "bronze":
        entity = pipeline.settings.entity_column
        settled = Settled(_in_silver(pipeline, handle), game_column=entity)
        return Plan(table, handle, ages, files, settled, counts_rows=True, counted=(entity, "_batch"))
    if ages.layer == "quarantine":
        return _of_quarantine(pipeline, table, handle, ages, files)
    if ages.layer == "event_log":
        return Plan(table, handle, ages, files, Settled(), compared=(Txn.COMMITS,))
    return Plan(table, handle, ages, files, Settled(_in_all(pipeline, table, handle), ages.game))


def plans_of_parts(pipeline: Pipeline, days: RetentionDays, whole: PartedTable, now_us: int) -> list[Plan]:
    """The plans for the games of a table of silver that they share."""
    parts = ((game, whole.part(game)) for game in whole.games())
    return [
        plan
        for game, part in parts
        if part is not None and (plan := plan_of(pipeline, days, pipeline.lakehouse.silver(game), part, now_us)) is not None
    ]


def _in_silver(pipeline: Pipeline, bronze: DeltaTable) -> Callable[[object], int]:
    """Name -> the last bronze batch that its silver has; of a name that can be no game the last one that silver has read.

    Rows of a name that is no game yet stay: other settings may let it in.
    """
    identity = BronzeIdentity.of(bronze)
    floor = pipeline.progress.read(identity.key).floor(Layer.SILVER)

    @cache
    def upto(name: object) -> int:
        if not is_game(name):
            return floor or NOTHING
        silver = pipeline.tables.peek(pipeline.lakehouse.silver(str(name)))
        taken = identity.taken(silver)
        return NOTHING if silver is None or taken is None or restored(silver) else taken

    return upto


def undecodable_or_replayed(rows: pa.Table) -> Mask:
    """Of each row of quarantine whether silver does not count it."""
    undecodable = pc.fill_null(pc.equal(rows.column("layer"), Layer.BRONZE), False)
    replayed = pc.is_valid(rows.column("replayed_batch"))
    return np.asarray(pc.or_(undecodable, replayed).to_numpy())


def _of_quarantine(pipeline: Pipeline, table: Table, handle: DeltaTable, ages: Ages, files: Sequence[File]) -> Plan | None:
    bronze = pipeline.tables.open_to_read(pipeline.bronze)
    if bronze is None or not (is_finished(bronze, handle) and is_noted(bronze, handle)):
        return None
    in_silver = _in_silver(pipeline, bronze)
    decisions = Decisions(table, handle, BronzeIdentity.of(bronze).key)

    @cache
    def upto(name: object) -> int:
        # A table that is to be replaced by what was decided again needs these decisions.
        silver = pipeline.tables.peek(pipeline.lakehouse.silver(str(name))) if is_game(name) else None
        is_due = silver is None or decisions.incarnation(str(name)) > incarnation(silver)
        return NOTHING if is_due else in_silver(name)

    settled = Settled(upto, game_column="game", free=("layer", "replayed_batch"), is_free=undecodable_or_replayed)
    return Plan(table, handle, ages, files, settled, counts_rows=True, counted=("game", "layer", "replayed_batch"))


def _is_time(handle: DeltaTable, name: str) -> bool:
    return bool(pa.types.is_timestamp(pa.schema(handle.schema()).field(name).type))


def _in_all(pipeline: Pipeline, table: Table, handle: DeltaTable) -> Callable[[object], int]:
    """The game of a table of silver -> the last bronze batch of the table that each aggregate, and each plug-in, has."""
    called = str(called_in_silver(table.key))

    @cache
    def upto(name: object) -> int:
        game = str(name)
        own = handle if called == game else pipeline.tables.peek(pipeline.lakehouse.silver(game))
        if own is None:
            return NOTHING
        of_plugins: Iterable[int | None] = (taken(pipeline, called, handle) for taken in parts("silver_taken"))
        return min(chain(_batches_in_gold(pipeline, game, silver_app(own)), (n for n in of_plugins if n is not None)))

    return upto


def _batches_in_gold(pipeline: Pipeline, game: str, app: str) -> Iterator[int]:
    for aggregate in (player_agg(pipeline.settings), *pipeline.extensions.aggregates):
        if aggregate.applies_to(game):
            gold = pipeline.tables.peek(pipeline.lakehouse.gold(game, aggregate.name))
            taken = txn(gold, app)
            is_behind = gold is None or taken is None or not is_current(gold, aggregate) or restored(gold)
            yield NOTHING if is_behind or taken is None else taken
