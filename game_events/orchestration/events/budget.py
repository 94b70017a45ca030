"""Which of a run's tables get an event of their own: with very many games Dagster's storage would cost more than the run.

An event of a table costs about 8 KB and 8 ms of processor time in SQLite (`benchmarks`, `bookkeeping`).
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster import DagsterEventType, DagsterInstance

from game_events.orchestration.keys import Keys
from game_events.pipeline.reporting.tables import TableReport

#: Events of games' tables that one run logs; past these, only tables that never had one.
EVENTS = 150
#: Games that are named where not each has an event.
GAMES_SHOWN = 50


def with_event(instance: DagsterInstance, entries: Sequence[TableReport], keys: Keys) -> list[TableReport]:
    """The tables that get an event: all of them, or of very many games' those that have waited longest for one.

    Guarantee: bronze, quarantine and unified always have one, and so have tables that never had one.
    """
    of_games = [entry for entry in entries if entry.game is not None]
    if len(of_games) <= EVENTS:
        return list(entries)
    last = {layer: _last_events(instance, keys.layer(layer)) for layer in {entry.layer for entry in of_games}}
    by_age = sorted(of_games, key=lambda entry: last[entry.layer].get(str(entry.game), 0))
    chosen = {id(entry) for n, entry in enumerate(by_age) if n < EVENTS or str(entry.game) not in last[entry.layer]}
    return [entry for entry in entries if entry.game is None or id(entry) in chosen]


def summaries(entries: Sequence[TableReport], chosen: Sequence[TableReport], keys: Keys) -> list[dg.AssetObservation]:
    """One event for each asset with tables that have none: how many, and those with most rows."""
    without: dict[str, list[TableReport]] = {}
    known = set(map(id, chosen))
    for entry in entries:
        if id(entry) not in known:
            without.setdefault(entry.layer, []).append(entry)
    return [_summary(keys.layer(layer), found) for layer, found in without.items()]


def _summary(key: dg.AssetKey, entries: Sequence[TableReport]) -> dg.AssetObservation:
    most = sorted(entries, key=lambda entry: -entry.rows)[:GAMES_SHOWN]
    rows = [dg.TableRecord({"game": str(e.game), "rows_committed": e.rows, "row_count": e.table_rows}) for e in most]
    columns = [dg.TableColumn("game"), dg.TableColumn("rows_committed", type="int"), dg.TableColumn("row_count", type="int")]
    metadata: dict[str, Any] = {
        "games_changed_without_event": len(entries),
        "rows_committed": sum(entry.rows for entry in entries),
        "most_rows": dg.MetadataValue.table(rows, schema=dg.TableSchema(columns)),
    }
    said = f"{len(entries):,} more games have changed; `game-events log --kind table` has all of them"
    return dg.AssetObservation(key, description=said, metadata=metadata)


def _last_events(instance: DagsterInstance, key: dg.AssetKey) -> dict[str, int]:
    """Partition -> storage id of its newest materialization; one query."""
    storage = instance.event_log_storage
    return dict(storage.get_latest_storage_id_by_partition(key, DagsterEventType.ASSET_MATERIALIZATION))
