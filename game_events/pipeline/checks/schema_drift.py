"""What bronze's columns are against what they were when somebody looked last."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.decoding.core.column_map import type_name
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.system_tables.event_log import read_events
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.check_result import CheckResult

DRIFT = "schema_drift"
#: Files of the event log with checks in which the last look is searched; a triggered run that changed something leaves one,
#: and continuous mode only at its end: its file of each minute has none.
LOOK_BACK_FILES = 50
SHOWN = 20


def schema_drift(pipeline: Pipeline) -> CheckResult:
    """Columns that bronze has now and had not when this check was last in the event log."""
    handle = pipeline.bronze.open()
    if handle is None:
        return CheckResult(DRIFT, "bronze", True, "there is no bronze table yet")
    version = _last_look(pipeline)
    before = _columns_at(pipeline.bronze, version) if version is not None and version <= handle.version() else None
    now = _columns(handle)
    if before is None:
        why = "the first look" if version is None else f"version {version}, last looked at, is gone or had no rows"
        summary = f"{why}: {len(now)} columns are what is compared with from now on"
        return CheckResult(DRIFT, "bronze", True, summary, {"columns": len(now)}, version=handle.version())
    diff = column_changes(before, now)
    counts = {"columns": len(now), "changes": len(diff), "since_version": int(version or 0)}
    more = f"; and {len(diff) - SHOWN} more" if len(diff) > SHOWN else ""
    summary = "; ".join(diff[:SHOWN]) + more if diff else f"{len(now)} columns, as at version {version}"
    return CheckResult(DRIFT, "bronze", not diff, summary, counts, version=handle.version())


def column_changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What happened to the columns, in words."""
    changes = []
    for name, kind in now.items():
        base, double, _ = name.rpartition("__")
        if name not in before and double and base in now:
            changes.append(f"{name} ({kind}): {base} ({now[base]}) comes with another kind")
        elif name not in before:
            changes.append(f"{name} ({kind}): new")
        elif before[name] != kind:
            changes.append(f"{name}: {before[name]} became {kind}")
    return changes + [f"{name} ({kind}): gone" for name, kind in before.items() if name not in now]


def _last_look(pipeline: Pipeline) -> int | None:
    events = read_events(pipeline.lakehouse, newest_files=LOOK_BACK_FILES, kind="check")
    looks = events.filter(pc.equal(events.column("name"), DRIFT))
    looks = looks.filter(pc.is_valid(looks.column("delta_version"))).sort_by([("time", "descending")])
    return int(looks.column("delta_version")[0].as_py()) if looks.num_rows else None


def _columns_at(table: Table, version: int) -> dict[str, str] | None:
    """None where there is nothing to compare with: bronze's first rows bring all of its columns, and nothing has drifted."""
    try:
        handle = DeltaTable(table.uri, version=version, storage_options=table.options)
        return _columns(handle) if row_count(handle) else None
    except (DeltaError, OSError):  # its log was cleaned up
        return None


def _columns(handle: DeltaTable) -> dict[str, str]:
    return {field.name: type_name(field.type) for field in pa.schema(handle.schema())}
