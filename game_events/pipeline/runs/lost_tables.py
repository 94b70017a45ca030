"""Detection of silver and gold tables that were deleted or restored since the last run.

Costs one listing of the root and a small file of each table's log: about a second for 2,000 tables. Triggered runs search each
time, continuous mode every ten minutes. Their games are noted in `progress`, and retried as after a failure.
"""

import logging
from collections.abc import Iterable
from functools import partial

from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.commits.restores import restored_lately
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.progress import Progress
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline, note
from game_events.pipeline.fanout.routing import Routing
from game_events.pipeline.reporting.report import RunReport

log = logging.getLogger(__name__)
#: Tables that a notice names.
SHOWN = 5


def find_lost_tables(pipeline: Pipeline, report: RunReport) -> None:
    """Note in `progress` the games with deleted or restored silver or gold tables, and warn of them."""
    bronze = pipeline.bronze.open()
    if bronze is None:
        return
    key = BronzeIdentity.of(bronze).key
    state = pipeline.progress.read(key)
    routing = Routing(frozenset(pipeline.settings.games))
    # Tables of games that are not allowed any more are not rebuilt.
    games = sorted(game for game in state.games if routing.refusal(game) is None)
    there = set(pipeline.lakehouse.names())
    silver = _lost(games, there, {game: pipeline.lakehouse.silver(game) for game in games})
    made = _made(state, Layer.GOLD, games)
    gold = _lost(made, there, {game: pipeline.lakehouse.gold(game) for game in made})
    own: dict[str, dict[str, str]] = {}
    for aggregate in pipeline.extensions.aggregates:
        mine = [game for game in _made(state, aggregate.layer, games) if aggregate.applies_to(game)]
        own[aggregate.layer] = _lost(mine, there, {game: pipeline.lakehouse.gold(game, aggregate.name) for game in mine})
    found = [silver, gold, *own.values()]
    if not any(found):
        return
    names = sorted(what for layer in found for what in layer.values())
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    report.warn(f"made whole again: {', '.join(names[:SHOWN])}{more}")
    log.info("lost_tables=%d first=%r", len(names), names[0])
    why = note(pipeline, "its table was deleted or restored")

    def noted(now: Progress) -> Progress:
        after = now.pending(Layer.SILVER, silver, why).pending_downstream(silver, why)
        after = after.pending(Layer.GOLD, gold, why).pending(Layer.UNIFIED, gold, why)
        for layer, lost in own.items():
            after = after.pending(layer, lost, why)
        return after

    pipeline.progress.update(key, noted)


def _made(state: Progress, layer: str, games: Iterable[str]) -> list[str]:
    """Games with a table in this layer. Tables of pending or failed games are opened by the layer anyway."""
    floor, failed = state.floor(layer), state.failed_in(layer)
    return [game for game in games if state.games[game] <= floor and game not in failed]


def _lost(games: Iterable[str], there: set[str], tables: dict[str, Table]) -> dict[str, str]:
    """Game -> name of its deleted or restored table, with what happened."""
    return {game: what for game, what in for_games(games, partial(_what, there, tables)).items() if what}


def _what(there: set[str], tables: dict[str, Table], game: str) -> str:
    table = tables[game]
    if table.key not in there:
        return f"{table.name} (deleted)"
    try:
        return f"{table.name} (restored)" if restored_lately(table) else ""
    except (OSError, ValueError):
        return ""  # a log that cannot be read is an error of the layer that opens the table
