"""Erases data subjects from older versions of the tables: unreferenced files with their rows, and log entries with their ids.

Only files with such rows are deleted. A reader of an older version that needs one of them fails and has to read again.

Guarantee: killed or cut off from power at any point, the same `game-events forget --vacuum` finishes it: bronze's old files, by
which those of other tables are found, are deleted last, and no file before the commit that replaces it is on the disk.
Concurrent runs and maintenance may write and delete files.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileSystem, FileType

from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.maintenance.unreferenced_files import delete_files
from game_events.lakehouse.storage.durability import write_out
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Table, has_persons, is_person, is_silver, paths
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.scan import ScannedFile, scan_files
from game_events.pipeline.erasure.subjects import DataSubjects
from game_events.pipeline.reporting.steps import Erasure

#: Age of an uncommitted file, in seconds, from which on no run is about to commit it.
STAGED_S = 3_600
#: Digits of the version in a log file's name.
_DIGITS = 20


def remove_old_files(pipeline: Pipeline, result: Erasure, subjects: DataSubjects) -> None:
    """Delete every table's unreferenced files with rows of data subjects, and log entries with their ids."""
    lakehouse = pipeline.lakehouse
    handles = {name: handle for name in lakehouse.names() if (handle := lakehouse.table(name).open_to_read()) is not None}
    pipeline.on_progress(f"erasure: older files of {len(handles)} tables")
    # Bronze first: its rows lead to those of quarantine, and of silver with another id.
    bronze = {BRONZE: handles[BRONZE]} if BRONZE in handles else {}
    in_bronze = _search(pipeline, subjects, bronze)
    subjects = subjects.with_records(found.records for found in in_bronze)
    others = {
        name: handle
        for name, handle in handles.items()
        if name != BRONZE and (name == QUARANTINE or is_silver(name) or has_persons(handle, subjects.key))
    }
    _remove(pipeline, result, others, _search(pipeline, subjects, others))
    _remove(pipeline, result, bronze, in_bronze)
    for name, handle in handles.items():
        if _clean_log(lakehouse.table(name), handle, subjects):
            result.cleaned_logs.append(lakehouse.table(name).name)
    result.vacuumed = True


def old_files(table: Table, handle: DeltaTable) -> list[str]:
    """Paths of the Parquet files that are not in this version of the table."""
    system, prefix = file_system(table)
    here = set(paths(handle))
    listed = system.get_file_info(FileSelector(prefix.rstrip("/") or "", recursive=True))
    found = (f.path.removeprefix(prefix) for f in listed if f.type == FileType.File and f.path.endswith(".parquet"))
    return sorted(path for path in found if not path.startswith("_delta_log/") and path not in here)


def replaced_files(table: Table, handle: DeltaTable) -> list[str]:
    """Those of `old_files` that a commit has removed from the table, as far back as the log reaches (`RETENTION_H`).

    The others are not committed yet, or were left by a killed run.
    """
    removed = set(handle.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False))
    return [path for path in old_files(table, handle) if path in removed]


def _search(pipeline: Pipeline, subjects: DataSubjects, handles: Mapping[str, DeltaTable]) -> list[ScannedFile]:
    """Old files with matches, and unreadable ones."""
    table = pipeline.lakehouse.table
    files = [(name, path) for name, handle in handles.items() for path in old_files(table(name), handle)]
    return [found for found in scan_files(pipeline, subjects, files, old=True) if found.matches or found.unreadable]


def _remove(pipeline: Pipeline, result: Erasure, handles: Mapping[str, DeltaTable], hits: Sequence[ScannedFile]) -> None:
    """Delete files, except those that a run may be about to commit."""
    for name in sorted({found.table for found in hits}):
        table = pipeline.lakehouse.table(name)
        system, prefix = file_system(table)
        replaced = set(replaced_files(table, handles[name]))
        removed = []
        for found in (f for f in hits if f.table == name):
            info = system.get_file_info(prefix + found.path)
            if info.type == FileType.NotFound:
                continue  # maintenance has deleted it
            age = time.time() - info.mtime.timestamp() if info.mtime is not None else 0.0
            if found.path in replaced or age >= STAGED_S:
                removed.append(found.path)
            else:
                result.kept_files[table.name] += 1
        # The erasure's own commits, of a moment ago, have removed them.
        result.removed_files[table.name] += delete_files(table, removed, 0.0)


def _clean_log(table: Table, handle: DeltaTable, subjects: DataSubjects) -> bool:
    """Delete the log entries before this version if one has an id in a file's statistics; returns whether one has.

    Files that this version of the project writes have no such statistics; those of earlier versions and other writers may.
    """
    system, prefix = file_system(table)
    log = f"{prefix}_delta_log"
    listed = [f for f in system.get_file_info(FileSelector(log)) if f.type == FileType.File]
    names = {f.base_name: f.path for f in listed if f.base_name[:_DIGITS].isdigit()}
    bounds = (bound for path in names.values() for bound in _bounds(system, path))
    if not any(str(value) in subjects.ids for column, value in bounds if is_person(column, subjects.key)):
        return False
    handle.create_checkpoint()
    write_out(table.uri)
    for name, path in sorted(names.items()):
        if int(name[:_DIGITS]) < handle.version():
            with suppress(FileNotFoundError):  # a run that wrote a checkpoint has deleted it
                system.delete_file(path)
    return True


def _bounds(system: FileSystem, path: str) -> Iterator[tuple[str, Any]]:
    """(column, minimum or maximum) of the files that a log file adds; empty if maintenance has deleted it."""
    with suppress(FileNotFoundError):
        for add in _added(system, path):
            for stats in (json.loads(add.get("stats") or "{}"), add.get("stats_parsed") or {}):
                yield from (stats.get("minValues") or {}).items()
                yield from (stats.get("maxValues") or {}).items()


def _added(system: FileSystem, path: str) -> list[Mapping[str, Any]]:
    """The `add` actions of a log file or checkpoint."""
    if not path.endswith((".json", ".parquet")):
        return []
    with system.open_input_file(path) as source:
        if path.endswith(".json"):
            found = [json.loads(line).get("add") for line in source.read().splitlines() if line.strip()]
        else:
            file = pq.ParquetFile(source)
            found = file.read(["add"]).column("add").to_pylist() if "add" in file.schema_arrow.names else []
    return [add for add in found if add]
