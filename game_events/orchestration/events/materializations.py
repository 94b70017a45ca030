"""A run's report as Dagster events: one materialization for each table that changed.

With very many games not each table has an event of its own, which costs about 8 KB and 8 ms of processor time in SQLite
(`benchmarks`, `bookkeeping`): Dagster's storage would cost more than the run.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dagster as dg
from dagster import DagsterEventType, DagsterInstance

from game_events.lakehouse.tables import is_game
from game_events.orchestration.events.metadata import table_metadata
from game_events.orchestration.events.planned import plan_failed, without_result
from game_events.orchestration.keys import DEFAULT, REPORT, Keys
from game_events.pipeline.reporting.result import RunResult
from game_events.pipeline.reporting.tables import TableReport

#: Games that a message names.
NAMED = 20
#: Events of games' tables that one run logs (`with_event`).
EVENTS = 150
#: Games that are named where not each has an event.
GAMES_SHOWN = 50

AssetEvent = dg.MaterializeResult[None] | dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


def add_games(instance: DagsterInstance, report: RunResult, keys: Keys = DEFAULT) -> list[str]:
    """Make partitions of the report's games that are none yet, failed ones included; returns the new ones."""
    games = sorted({t.game for t in report.tables if t.game and (t.error is None or is_game(t.game))})
    known = set(instance.get_dynamic_partitions(str(keys.partitions.name))) if games else set()
    new = [g for g in games if g not in known]
    if new:
        instance.add_dynamic_partitions(str(keys.partitions.name), new)
    return new


def report_events(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, report: RunResult, keys: Keys = DEFAULT, *, every: bool = False
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """What a whole run did, for the assets and partitions that changed and no others (`every`: all, however many games).

    Tables that failed have no event here: their failure is planned, by which Dagster shows them as failed (`plan_failed`).

    An op has to yield these: what it logs instead (`log_event`) is kept back until it ends, and lost if it fails.
    """
    new = add_games(context.instance, report, keys)
    if new:
        context.log.info("new_games=%s", ",".join(new))
    for notice in report.notices:
        context.log.warning(notice)
    changed = [entry for entry in report.tables if entry.error is None]
    chosen = changed if every else with_event(context.instance, changed, keys)
    # An asset's page shows what its newest event has.
    newest = {entry.layer: entry for entry in chosen}
    for entry in chosen:
        metadata = table_metadata(entry, report, keys, whole=entry is newest[entry.layer])
        yield dg.AssetMaterialization(keys.layer(entry.layer), partition=entry.game, metadata=metadata)
    yield from summaries(changed, chosen, keys)
    plan_failed(context, report, keys)
    if report.replayed:
        # The table holds the same rows as before, and says of these that they are in bronze now.
        yield dg.AssetObservation(keys.quarantine, metadata={"replayed_rows": report.replayed})


def partition_events(
    context: dg.AssetExecutionContext,
    report: RunResult,
    unchanged: Iterable[TableReport | None],
    key: dg.AssetKey,
    layer: str,
    keys: Keys = DEFAULT,
) -> Iterator[AssetEvent]:
    """Each requested game's own event, with what its table holds; a failed game has none and fails the run at the end.

    So a backfill counts exactly the failed games as failed, and the UI offers exactly them for a retry.

    `unchanged`: tables of games without news; None: a game without a table.
    """
    add_games(context.instance, report, keys)
    changed = [t for t in report.of(layer) if t.error is None]
    found = [t for t in (*changed, *unchanged) if t is not None]
    done = {t.game: table_metadata(t, report, keys) for t in found if t.game is not None}
    failed = [t for t in report.of(layer) if t.error is not None]
    absent = set(context.partition_keys) - done.keys() - {t.game for t in failed}
    if absent:
        context.log.warning(f"no table, as no rows of it are there: {', '.join(sorted(absent)[:NAMED])}")
        done |= {game: {"dagster/row_count": 0, "note": "no table: no rows of it are there"} for game in absent}
    if not failed:
        for game, metadata in done.items():
            context.add_asset_metadata(metadata, key, partition_key=game)
        numbers = {"games_changed": len(changed), "games_requested": len(context.partition_keys)}
        yield dg.MaterializeResult(key, metadata=numbers)
        return
    # The one output of a run over several games would mark all of them.
    for game in sorted(set(context.partition_keys) - {t.game for t in failed}):
        yield dg.AssetMaterialization(key, partition=game, metadata=done.get(game, {}))
    fail_for(failed)


def fail_for(failed: list[TableReport]) -> None:
    """Fail the step with the names of the failed tables, if there are any.

    Raises:
        Failure: without a retry, as other runs would wait for it.
    """
    if failed:
        named = "; ".join(f"{t.game or t.table}: {t.error}" for t in failed[:10])
        # By this an alert names the tables, and leaves out the errors' words.
        errors = [{"table": t.table, "game": t.game, "error": t.error} for t in failed]
        whole = {REPORT: dg.MetadataValue.json({"errors": errors, "rows": {}})}
        raise dg.Failure(f"{len(failed)} tables failed: {named}", metadata=whole, allow_retries=False)


def with_event(instance: DagsterInstance, entries: Sequence[TableReport], keys: Keys, most: int = EVENTS) -> list[TableReport]:
    """The tables that get an event: all of them, or of very many games' those that have waited longest for one.

    `most`: events of games' tables; past these, only tables that never had one, or that may be shown as failed until now.

    Guarantee: bronze, quarantine and unified always have one, and so have the tables that count past `most`.
    """
    of_games = [entry for entry in entries if entry.game is not None]
    if len(of_games) <= most:
        return list(entries)
    newest, kind = instance.event_log_storage.get_latest_storage_id_by_partition, DagsterEventType.ASSET_MATERIALIZATION
    last = {layer: newest(keys.layer(layer), kind) for layer in {entry.layer for entry in of_games}}
    failed = {layer: without_result(instance, keys.layer(layer)) for layer in last}
    by_age = sorted(of_games, key=lambda entry: last[entry.layer].get(str(entry.game), 0))

    def waits(entry: TableReport) -> bool:
        return str(entry.game) not in last[entry.layer] or entry.game in failed[entry.layer]

    chosen = {id(entry) for n, entry in enumerate(by_age) if n < most or waits(entry)}
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
