"""Check for changes of bronze's columns since the last check."""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.decoding.core.column_types import type_name
from game_events.errors import first_few
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.system_tables.event_log import read_events
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.steps import CheckResult

DRIFT = "schema_drift"
#: Newest event log files with checks that are searched for the last check: one of each triggered run that changed a table,
#: and one of each continuous run, written at its end.
LOOK_BACK_FILES = 50
#: Changes in a summary.
SHOWN = 20


def schema_drift(pipeline: Pipeline) -> CheckResult:
    """Check that bronze's columns are those of the last check: shows fields that a producer added or changed the type of."""
    handle = pipeline.bronze.open()
    if handle is None:
        return CheckResult(DRIFT, "bronze", True, "there is no bronze table yet")
    version = _last_version(pipeline)
    before = _columns_at(pipeline.bronze, version) if version is not None and version <= handle.version() else None
    now = _columns(handle)
    if before is None:
        why = "the first check" if version is None else f"version {version} of the last check is gone or had no rows"
        summary = f"{why}: later checks compare with these {len(now)} columns"
        return CheckResult(DRIFT, "bronze", True, summary, {"columns": len(now)}, version=handle.version())
    diff = column_changes(before, now)
    counts = {"columns": len(now), "changes": len(diff), "since_version": int(version or 0)}
    summary = first_few(diff, SHOWN) or f"{len(now)} columns, as at version {version}"
    return CheckResult(DRIFT, "bronze", not diff, summary, counts, version=handle.version())


def column_changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Descriptions of the changed columns."""
    changes = []
    for name, kind in now.items():
        base, double, _ = name.rpartition("__")
        if name not in before and double and base in now:
            changes.append(f"{name} ({kind}): {base} ({now[base]}) has another type too")
        elif name not in before:
            changes.append(f"{name} ({kind}): new")
        elif before[name] != kind:
            changes.append(f"{name}: {before[name]} became {kind}")
    return changes + [f"{name} ({kind}): gone" for name, kind in before.items() if name not in now]


def _last_version(pipeline: Pipeline) -> int | None:
    events = read_events(pipeline.lakehouse, newest_files=LOOK_BACK_FILES, kind="check")
    results = events.filter((pc.field("name") == DRIFT) & pc.field("delta_version").is_valid())
    versions = results.sort_by([("time", "descending")]).column("delta_version")
    return int(versions[0].as_py()) if len(versions) else None


def _columns_at(table: Table, version: int) -> dict[str, str] | None:
    """Columns of a version; None: it is gone, or has no rows, as before the first batch, which adds all columns."""
    try:
        handle = DeltaTable(table.uri, version=version, storage_options=table.options)
        return _columns(handle) if row_count(handle) else None
    except (DeltaError, OSError):  # its log was cleaned up
        return None


def _columns(handle: DeltaTable) -> dict[str, str]:
    return {field.name: type_name(field.type) for field in pa.schema(handle.schema())}
