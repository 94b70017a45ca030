"""Retention of runs: those of the own lakehouse that ended long ago are deleted from Dagster's storage.

What they did stays in the table `event_log`. A run stays as long as it has the newest event of an asset or of one of its
partitions: without it Dagster would take them for never materialized, and automation would make them again.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dagster import AssetCheckKey, AssetKey, AssetRecordsFilter, DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus

from game_events.orchestration.dagster_private import AssetCheckExecutionsTable, SqlEventLogStorage, SqliteEventLogStorage
from game_events.orchestration.runs.own_runs import OwnRuns

log = logging.getLogger(__name__)
#: Runs deleted at a time: a sensor's tick has to stay short.
AT_ONCE = 25
#: Runs asked for in one query.
PAGE = 250
#: Storage ids asked for in one query.
IDS_AT_ONCE = 500
#: Seconds between two searches, which read the newest event of every asset and partition, where all old runs are needed.
SEARCH_EVERY_S = 3_600.0
#: Key of the time of a lakehouse's last search in Dagster's storage; the command line and the sensor share it.
SEARCHED_AT = "game_events/old_runs_looked_at:{}"
ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


def drop_old_runs(
    instance: DagsterInstance,
    own: OwnRuns,
    keep_h: float,
    checks: Collection[AssetCheckKey] = (),
    *,
    at_once: int = AT_ONCE,
    page: int = PAGE,
    clock: Callable[[], float] = time.time,
) -> int:
    """Delete own runs that ended more than `keep_h` hours ago (0: none), their events and their output, the oldest first.

    Guarantee: no run of another lakehouse, code location or team is deleted; the newest materialization of each asset and
    partition stays, the newest evaluation of each check (of `checks`), and the newest run of each job. Once no old run was
    found that could be deleted, the next search is an hour later (by `clock`, in seconds since 1970).

    Returns:
        how many were deleted, `at_once` at most; they are searched a `page` at a time.
    """
    if not keep_h:
        return 0
    before = datetime.fromtimestamp(clock(), UTC) - timedelta(hours=keep_h)
    needed: set[str] = set()
    dropped: list[str] = []
    # Of thousands of games each may need an old run of its own: these must not hide the runs behind them.
    for runs in _old_runs(instance, own, before, page):
        if not needed:
            if _searched_just_now(instance, own, clock()):
                return 0
            needed = _with_newest_events(instance, checks)
        # Whether continuous mode is on, for one, is read from its newest run.
        jobs = {run.job_name for run in runs}
        needed |= {run.run_id for job in jobs for run in instance.get_runs(own.tagged(job_name=job), limit=1)}
        dropped += [run.run_id for run in runs if run.run_id not in needed]
        if len(dropped) >= at_once:
            break
    else:
        if needed:
            instance.daemon_cursor_storage.set_cursor_values({SEARCHED_AT.format(own.lakehouse): str(clock())})
    del dropped[at_once:]
    _delete_evaluations(instance, dropped)
    for run_id in dropped:
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        instance.delete_run(run_id)
        _delete_file(instance, run_id)
    if dropped:
        log.info("old_runs_deleted=%d before=%s", len(dropped), before.isoformat(timespec="seconds"))
    return len(dropped)


def _searched_just_now(instance: DagsterInstance, own: OwnRuns, now: float) -> bool:
    """Whether all old runs were searched within the hour, and the unneeded ones deleted."""
    key = SEARCHED_AT.format(own.lakehouse)
    at = instance.daemon_cursor_storage.get_cursor_values({key}).get(key)
    return at is not None and 0 <= now - float(at) < SEARCH_EVERY_S


def _old_runs(instance: DagsterInstance, own: OwnRuns, before: datetime, page: int) -> Iterator[Sequence[DagsterRun]]:
    """Runs that ended before then, the oldest first, a page at a time."""
    wanted = own.tagged(statuses=ENDED, updated_before=before)
    found = instance.get_runs(wanted, limit=page, ascending=True)
    while found:
        yield found
        found = instance.get_runs(wanted, cursor=found[-1].run_id, limit=page, ascending=True)


def _with_newest_events(instance: DagsterInstance, checks: Collection[AssetCheckKey]) -> set[str]:
    """Runs with the newest materialization of an asset or a partition, or evaluation of a check."""
    storage = instance.event_log_storage
    found = {record.run_id for record in storage.get_latest_asset_check_execution_by_key(list(checks)).values()}
    for record in instance.get_asset_records():
        newest = record.asset_entry.last_materialization_record
        if newest is not None:
            found.add(newest.run_id)
        key = record.asset_entry.asset_key
        ids = list(storage.get_latest_storage_id_by_partition(key, DagsterEventType.ASSET_MATERIALIZATION).values())
        for start in range(0, len(ids), IDS_AT_ONCE):
            wanted = AssetRecordsFilter(key, storage_ids=ids[start : start + IDS_AT_ONCE])
            found.update(r.run_id for r in instance.fetch_materializations(wanted, limit=IDS_AT_ONCE).records)
    return found


def _delete_evaluations(instance: DagsterInstance, run_ids: Collection[str]) -> None:
    """Delete the runs' evaluations of checks, but each check's newest; Dagster 1.13 deletes a run's events without them."""
    storage, table = instance.event_log_storage, AssetCheckExecutionsTable
    if not run_ids or not isinstance(storage, SqlEventLogStorage):
        return
    columns = table.c.id, table.c.asset_key, table.c.check_name
    with storage.index_connection() as connection:
        rows = connection.execute(table.select().with_only_columns(*columns).where(table.c.run_id.in_(run_ids))).all()
    keys = {(asset, name) for _, asset, name in rows}
    found = [AssetCheckKey(key, name) for asset, name in keys if (key := AssetKey.from_db_string(asset)) is not None]
    newest = {record.id for record in storage.get_latest_asset_check_execution_by_key(found).values()}
    with storage.index_connection() as connection:
        connection.execute(table.delete().where(table.c.id.in_([number for number, _, _ in rows if number not in newest])))


def _delete_file(instance: DagsterInstance, run_id: str) -> None:
    """With SQLite each run has a file of its own, which Dagster empties and does not delete."""
    storage = instance.event_log_storage
    if isinstance(storage, SqliteEventLogStorage):
        for suffix in ("", "-wal", "-shm"):
            Path(storage.path_for_shard(run_id) + suffix).unlink(missing_ok=True)
