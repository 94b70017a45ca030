"""What older versions of the tables still hold of forgotten gamers: files that no version of today names, and log entries.

Exactly the files with rows of theirs are removed. A reader that is still at an older version of a table, and needs one of them,
fails and has to read again.

Guarantee: killed at any point, the same `game-events forget --vacuum` finishes it: bronze's old files lead to those of other
tables, so they go last. Runs and maintenance beside it may write and delete files as they like.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileType

from game_events.lakehouse.commits.commit import paths
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.maintenance.unreferenced_files import delete_files
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Table, game_of_silver, has_persons, is_person
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.scan import EraseTask, ScannedFile, look_at
from game_events.pipeline.erasure.subjects import Wanted
from game_events.pipeline.reporting.erasure_result import Erasure

#: A file that no log names may be one that a run is about to commit: younger ones stay.
STAGED_S = 3_600
#: Digits of a version in the name of a log file.
_DIGITS = 20


def remove_old_files(pipeline: Pipeline, account: Erasure, wanted: Wanted) -> None:
    """Remove files of older versions (or of no version) with rows of theirs, and log entries that name them, of every table."""
    lakehouse = pipeline.lakehouse
    handles = {name: handle for name in lakehouse.names() if (handle := lakehouse.table(name).open()) is not None}
    pipeline.on_progress(f"erasure: older files of {len(handles)} tables")
    # Bronze's rows lead to those of quarantine, and of silver that has another id.
    bronze = {name: handle for name, handle in handles.items() if name == BRONZE}
    in_bronze = _search(pipeline, wanted, bronze)
    wanted = wanted.with_records(found.records for found in in_bronze)
    searched = {
        name: handle
        for name, handle in handles.items()
        if name != BRONZE and (name == QUARANTINE or game_of_silver(name) or has_persons(handle, wanted.person))
    }
    _remove(pipeline, account, searched, _search(pipeline, wanted, searched))
    _remove(pipeline, account, bronze, in_bronze)
    for name, handle in handles.items():
        if _clean_log(lakehouse.table(name), handle, wanted):
            account.cleaned_logs.append(lakehouse.table(name).name)
    account.vacuumed = True


def old_files(table: Table, handle: DeltaTable) -> list[str]:
    """Paths of the table's Parquet files that this version does not name."""
    system, prefix = file_system(table)
    here = set(paths(handle))
    listed = system.get_file_info(FileSelector(prefix.rstrip("/") or "", recursive=True))
    found = (f.path.removeprefix(prefix) for f in listed if f.type == FileType.File and f.path.endswith(".parquet"))
    return sorted(path for path in found if not path.startswith("_delta_log/") and path not in here)


def replaced_files(table: Table, handle: DeltaTable) -> list[str]:
    """Those of them that a commit has taken out of the table, as far as its log remembers (`RETENTION_H`).

    The others are staged for a commit to come, or left by a run that was killed: no version ever had their rows.
    """
    removed = set(handle.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False))
    return [path for path in old_files(table, handle) if path in removed]


def _search(pipeline: Pipeline, wanted: Wanted, handles: Mapping[str, DeltaTable]) -> list[ScannedFile]:
    """Old files with rows of theirs, and those that cannot be read."""
    tables = {name: pipeline.lakehouse.table(name) for name in handles}
    files = [(name, path) for name, handle in handles.items() for path in old_files(tables[name], handle)]
    task = EraseTask(tables, wanted, rewrite=False, old=True)
    return [found for found in look_at(pipeline, task, files) if found.anything or found.unreadable]


def _remove(pipeline: Pipeline, account: Erasure, handles: Mapping[str, DeltaTable], hits: Sequence[ScannedFile]) -> None:
    """Delete what was found, but for files that a run may be about to commit."""
    for name in sorted({found.table for found in hits}):
        table = pipeline.lakehouse.table(name)
        system, prefix = file_system(table)
        # Named by an older version: nobody is about to commit it.
        replaced = set(replaced_files(table, handles[name]))
        for found in (f for f in hits if f.table == name):
            info = system.get_file_info(prefix + found.path)
            if info.type == FileType.NotFound:
                continue  # maintenance has deleted it
            age = time.time() - (info.mtime.timestamp() if info.mtime is not None else time.time())
            if found.path in replaced or age >= STAGED_S:
                account.removed_files[table.name] += delete_files(table, [found.path])
            else:
                account.kept_files[table.name] += 1


def _clean_log(table: Table, handle: DeltaTable, wanted: Wanted) -> bool:
    """Remove log entries before this version if one of them names a gamer in a file's bounds; whether any did.

    Tables of this version of the project have no such bounds; older ones may, and so may files that another writer made.
    """
    system, prefix = file_system(table)
    log = f"{prefix}_delta_log"
    listed = [f for f in system.get_file_info(FileSelector(log)) if f.type == FileType.File]
    names = {f.base_name: f.path for f in listed if f.base_name[:_DIGITS].isdigit()}
    if not any(_bounds_name(wanted, bounds) for path in names.values() for bounds in _bounds(system, path)):
        return False
    handle.create_checkpoint()
    for name, path in names.items():
        if int(name[:_DIGITS]) < handle.version():
            with suppress(FileNotFoundError):  # a run that made a checkpoint has deleted it
                system.delete_file(path)
    return True


def _bounds(system: Any, path: str) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401 - any of Arrow's file systems
    """Lowest and highest values of the files that a log file adds; none if maintenance has deleted it."""
    added: list[Mapping[str, Any]] = []
    with suppress(FileNotFoundError):
        if path.endswith(".json"):
            with system.open_input_file(path) as source:
                actions = [json.loads(line) for line in source.read().splitlines() if line.strip()]
            added = [action["add"] for action in actions if action.get("add")]
        elif path.endswith(".parquet"):
            with system.open_input_file(path) as source:
                file = pq.ParquetFile(source)
                rows = file.read(["add"]).column("add").to_pylist() if "add" in file.schema_arrow.names else []
            added = [add for add in rows if add]
    for add in added:
        for stats in (json.loads(add.get("stats") or "{}"), add.get("stats_parsed") or {}):
            yield stats.get("minValues") or {}
            yield stats.get("maxValues") or {}


def _bounds_name(wanted: Wanted, bounds: Mapping[str, Any]) -> bool:
    return any(str(value) in wanted.ids for column, value in bounds.items() if is_person(column, wanted.person))
