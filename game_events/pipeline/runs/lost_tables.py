"""Detection of silver and gold tables that were deleted or restored since the last run.

On a local disk it costs one look at the folder of each table's log, and a small file of those that have changed since the last
search; in an object store one listing of the root and a small file of each. Triggered runs search each time, continuous mode
every ten minutes. Their games are noted in `progress`, and retried as after a failure.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256

from deltalake.exceptions import DeltaError

from game_events.errors import GameEventsError
from game_events.lakehouse.commits.group import for_games
from game_events.lakehouse.commits.log import FOLDER
from game_events.lakehouse.commits.transactions import BronzeIdentity, restored, restored_lately
from game_events.lakehouse.parts import PartedTable
from game_events.lakehouse.storage import is_remote
from game_events.lakehouse.system_tables import Progress, Search
from game_events.lakehouse.tables import Layer, Table, gold_name, silver_name
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.reporting.report import RunReport
from game_events.workers.fanout import Routing

log = logging.getLogger(__name__)
#: Tables that a notice names.
SHOWN = 5
#: Logs that are read in each search (`find_lost_tables`).
FEW = 100


def find_lost_tables(pipeline: Pipeline, report: RunReport, *, few: int = FEW) -> None:
    """Note in `progress` the games with deleted or restored silver or gold tables, and warn of them.

    `few`: with more logs read than this, the next search reads only those that have changed since.
    """
    bronze = pipeline.open_bronze()
    if bronze is None:
        return
    key = BronzeIdentity.of(bronze).key
    scope = _scope(pipeline)
    began = _changed_s(pipeline.progress.declaration.table.uri)
    state = pipeline.progress.read(key)
    search = _Search(pipeline, state.searched.at_s if state.searched.scope == scope else 0)
    lost = _lost_by_layer(pipeline, state, search)
    is_complete = bool(began) and not search.unreadable
    if any(lost.values()):
        _say(report, lost)
    elif search.read <= few or pipeline.read_only or not is_complete:
        return
    why = note(pipeline, "its table was deleted or restored")

    def noted(now: Progress) -> Progress:
        after = now.pending_downstream(lost[Layer.SILVER], why).pending(Layer.UNIFIED, lost[Layer.GOLD], why)
        for layer, tables in lost.items():
            after = after.pending(layer, tables, why)
        return replace(after, searched=Search(int(began or 0), scope)) if is_complete else after

    pipeline.progress.update(key, noted)


def _scope(pipeline: Pipeline) -> str:
    """What decides which tables are searched: tables that come back were not looked at meanwhile."""
    aggregates = sorted((aggregate.layer, *sorted(aggregate.games)) for aggregate in pipeline.extensions.aggregates)
    return sha256(json.dumps([sorted(pipeline.settings.games), aggregates]).encode()).hexdigest()[:16]


def _say(report: RunReport, lost: Mapping[str, Mapping[str, str]]) -> None:
    names = sorted(what for tables in lost.values() for what in tables.values())
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    report.warn(f"made whole again: {', '.join(names[:SHOWN])}{more}")
    log.info("lost_tables=%d first=%r", len(names), names[0])


def _made(state: Progress, layer: str, games: Iterable[str]) -> list[str]:
    """Games with a table in this layer. Tables of pending or failed games are opened by the layer anyway."""
    floor = state.floor(layer)
    failed = state.failed_in(layer)
    return [game for game in games if state.games[game] <= floor and game not in failed]


class _Search:
    """A search for deleted and restored tables; `read`: logs that were read; `unreadable`: those that could not be.

    A restore adds an entry to the table's log, and so changes the folder of the log: a folder that has not changed since the
    last search needs no second look. Both times are of the tables' file system, whatever the clocks of the machines show: the
    time of a search is that of the last commit to `progress` before it.
    """

    def __init__(self, pipeline: Pipeline, since_s: float) -> None:
        self._pipeline = pipeline
        self._since_s = since_s
        self.read = self.unreadable = 0

    def lost(self, games: Sequence[str], table: Callable[[str], Table], key: Callable[[str], str]) -> dict[str, str]:
        """Game -> name of its deleted or restored table, with what happened; `table`, `key`: those of a game."""
        if games and self._pipeline.lakehouse.is_partitioned:
            return self._lost_parts(games, table(games[0]).whole)
        return self._lost({game: key(game) for game in games})

    def _lost_parts(self, games: Sequence[str], table: Table) -> dict[str, str]:
        """Likewise, of games that share a table."""
        try:
            whole = self._pipeline.tables.peek(table)
        except (GameEventsError, DeltaError, OSError):  # an error of the layer, which opens the table, too
            self.unreadable += 1
            return {}
        if not isinstance(whole, PartedTable):
            return dict.fromkeys(games, f"{table.name} (deleted)")
        if restored(whole):
            return dict.fromkeys(games, f"{table.name} (restored)")
        parts = {game: whole.part(game) for game in games}
        lost = {game: f"{game} in {table.name} (deleted)" for game, part in parts.items() if part is None}
        return lost | {g: f"{table.name} (restored)" for g, part in parts.items() if part is not None and restored(part)}

    def _lost(self, keys: Mapping[str, str]) -> dict[str, str]:
        lakehouse = self._pipeline.lakehouse
        ages = {game: self._changed_s(key) for game, key in keys.items()}
        changed = {
            game: lakehouse.table(keys[game]) for game, at_s in ages.items() if at_s is not None and at_s >= self._since_s
        }
        self.read += len(changed)
        answers = for_games(changed, lambda game: _restored(changed[game]))
        self.unreadable += sum(restored is None for restored in answers.values())
        lost = {game: f"{lakehouse.called.name_of(keys[game])} (deleted)" for game, at_s in ages.items() if at_s is None}
        return lost | {game: f"{changed[game].name} (restored)" for game, restored in answers.items() if restored}

    def _changed_s(self, key: str) -> float | None:
        """As `_changed_s`; infinity for a table in an object store, as it is not known there."""
        lakehouse = self._pipeline.lakehouse
        if is_remote(lakehouse.root):
            return float("inf") if key in self._there else None
        # No `Table` for each of them: most have not changed.
        return _changed_s(f"{lakehouse.root}/{lakehouse.called.name_of(key)}")

    @cached_property
    def _there(self) -> set[str]:
        return set(self._pipeline.lakehouse.names())


def _changed_s(uri: str) -> float | None:
    """When the folder of a local table's log has changed, in seconds since 1970; None: there is no local table."""
    try:
        return os.stat(f"{uri}/{FOLDER}").st_mtime  # noqa: PTH116 - a `Path` for each table takes longer
    except (FileNotFoundError, NotADirectoryError):
        return None


def _restored(table: Table) -> bool | None:
    """Whether a table was restored; None: its log cannot be read, which is an error of the layer that opens the table."""
    try:
        return restored_lately(table)
    except (OSError, ValueError):
        return None


def _lost_by_layer(pipeline: Pipeline, state: Progress, search: _Search) -> dict[str, dict[str, str]]:
    """Layer -> its lost tables."""
    routing = Routing(frozenset(pipeline.settings.games))
    # Tables of games that are not allowed any more are not rebuilt.
    games = sorted(game for game in state.games if routing.refusal(game) is None)
    lost: dict[str, dict[str, str]] = {
        Layer.SILVER: search.lost(games, pipeline.lakehouse.silver, silver_name),
        Layer.GOLD: search.lost(_made(state, Layer.GOLD, games), pipeline.lakehouse.gold, gold_name),
    }
    for aggregate in pipeline.extensions.aggregates:
        mine = [game for game in _made(state, aggregate.layer, games) if aggregate.applies_to(game)]
        table = partial(pipeline.lakehouse.gold, aggregate=aggregate.name)
        lost[aggregate.layer] = search.lost(mine, table, partial(gold_name, aggregate=aggregate.name))
    return lost
