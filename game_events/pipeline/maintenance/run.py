"""Maintenance of all tables, beside any run: compaction, deletion of old files, shorter logs.

Guarantee: no row and no progress changes; a version that a reader opened less than the retention ago stays readable; staged
files stay. What a concurrent writer prevents is done the next time.
"""

import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from deltalake import DeltaTable

from game_events.errors import ConfigurationError, ConflictError
from game_events.extending import PLAYER_AGG
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.delta_log import TableLog
from game_events.lakehouse.commits.restores import unchecked_restore
from game_events.lakehouse.maintenance.compaction import FULL_GOAL
from game_events.lakehouse.maintenance.unreferenced_files import ReplacedFiles, delete_files, orphans
from game_events.lakehouse.tables import OWN_TABLES, QUARANTINE, UNIFIED, Table, game_of_gold, game_of_silver, is_game, paths
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance.incremental import delete_replaced, groups_of, join_small_files
from game_events.pipeline.quarantine.full_refresh import listed_files
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.steps import TableMaintenance

#: Tables at a time; each holds a row group in memory.
TABLES_AT_ONCE = 4
#: A log with more entries gets a checkpoint, so that older entries can be deleted.
LOG_ENTRIES = 10


def maintain(pipeline: Pipeline, report: RunReport, only: Collection[str] = (), *, dry_run: bool = False) -> None:
    """Maintain the tables, several at a time; no Spark job.

    `only`: names of tables; empty: all of this project. `dry_run`: only count what would be done.

    Raises:
        ConfigurationError: a name in `only` has no table.
    """
    began = time.monotonic()
    names = pipeline.lakehouse.names()
    chosen = {name: pipeline.lakehouse.key(name) for name in only}
    unknown = sorted(name for name, key in chosen.items() if key not in names)
    if unknown:
        raise ConfigurationError(
            f"no table {', '.join(unknown)} below {pipeline.lakehouse.root}: `game-events tables` names those that are there"
        )
    wanted = [name for name in names if (name in chosen.values() if only else is_ours(pipeline, name))]
    pipeline.on_progress(f"maintenance: {len(wanted)} tables")
    with ThreadPoolExecutor(TABLES_AT_ONCE) as pool:
        report.add_maintenance(pool.map(lambda name: _maintain(pipeline, name, dry_run=dry_run), wanted))
    report.add_seconds("maintenance", time.monotonic() - began)


def _maintain(pipeline: Pipeline, name: str, *, dry_run: bool) -> TableMaintenance:
    table = pipeline.lakehouse.table(name)
    done = TableMaintenance(table.name)
    try:
        handle = table.open()
        if handle is not None:
            _refuse_partitioned(table, handle)
            done.skipped = unchecked_restore(table, handle)
            if not done.skipped:
                (_count if dry_run else _work)(pipeline, table, handle, done)
    except ConflictError as error:
        done.skipped = str(error)
    except Exception as error:  # noqa: BLE001 - an error of one table is reported, and the others are maintained
        done.error = str(error)
    return done


def is_ours(pipeline: Pipeline, name: str) -> bool:
    """Whether a table is one of this project's, by its key: other tables below the root are never touched."""
    aggregates = (PLAYER_AGG, *(aggregate.name for aggregate in pipeline.extensions.aggregates))
    games = (game_of_silver(name), *(game_of_gold(name, aggregate) for aggregate in aggregates))
    return name in OWN_TABLES or any(is_game(game) for game in games)


def _refuse_partitioned(table: Table, handle: DeltaTable) -> None:
    """Refuse a partitioned table: its files do not hold all columns. This project's only one is never compacted."""
    columns = handle.metadata().partition_columns
    if columns and table.key != UNIFIED:
        raise ConflictError(f"{table.name} is partitioned by {', '.join(columns)}: not a table of this project")


def _work(pipeline: Pipeline, table: Table, handle: DeltaTable, done: TableMaintenance) -> None:
    if pipeline.retention.apply(table.key, handle):
        handle = table.open() or handle
    handle = join_small_files(table, handle, FULL_GOAL, done)
    known = ReplacedFiles(table)
    delete_replaced(known, handle, pipeline.retention.seconds(table.key), done)
    found = _orphans(pipeline, table, known, dry_run=False)
    done.orphan_bytes += sum(found.values())
    done.orphans += delete_files(table, sorted(found))
    # Writers make checkpoints as they go; a table that is seldom written has log entries that no checkpoint covers.
    if known.entries > LOG_ENTRIES:
        handle.create_checkpoint()
        failpoints.reach("checkpoint_written", table.name)
    TableLog(table).delete_expired(pipeline.retention.seconds(table.key))


def _count(pipeline: Pipeline, table: Table, handle: DeltaTable, done: TableMaintenance) -> None:
    """Count what `_work` would do now."""
    groups = groups_of(table, handle, FULL_GOAL)
    done.joined, done.into = sum(len(group) for group in groups), len(groups)
    known = ReplacedFiles(table)
    known.read_log(handle)
    done.replaced = len(known.due(pipeline.retention.seconds(table.key)))
    done.waiting, done.files = len(known.waiting) - done.replaced, len(paths(handle))
    found = _orphans(pipeline, table, known, dry_run=True)
    done.orphans, done.orphan_bytes = len(found), sum(found.values())


def _orphans(pipeline: Pipeline, table: Table, known: ReplacedFiles, *, dry_run: bool) -> dict[str, int]:
    age = pipeline.settings.orphan_retention_h * 3600
    keep = listed_files(pipeline, age, dry_run=dry_run) if table.key == QUARANTINE else ()
    return orphans(table, age, known, keep)
