"""Checks against the past, as the event log has it: bronze's columns, and how many rows the games send a day."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.decoding.core.column_types import type_name
from game_events.errors import first_few
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.duckdb_connection import query
from game_events.lakehouse.system_tables.event_log import read_events
from game_events.lakehouse.tables import Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.steps import CheckResult

DRIFT = "schema_drift"
#: Newest event log files with checks that are searched for the last check: one of each triggered run that changed a table,
#: and one of each continuous run, written at its end.
LOOK_BACK_FILES = 50
#: Changed columns, and unusual games, in a summary.
CHANGES_SHOWN, GAMES_SHOWN = 20, 10

VOLUME = "volume"
#: Days of 24 hours before now; the last one is compared with the others.
HISTORY_DAYS = 28
#: Days before the last one that a game must have to be compared.
MIN_DAYS = 7
#: Distance from the median that is unusual, in standard deviations (MAD times 1.4826) and as a share of the median, as the
#: deviation is 0 for a game that sends the same number every day.
DEVIATIONS, SHARE = 5.0, 0.5
_MAD_TO_SIGMA = 1.4826

_READ = ("time", "kind", "layer", "game", "table_rows")
#: Rows of a game's table at the end of each day, so that a full refresh, which writes all rows again, adds nothing.
_DAYS = """
SELECT game, (date_diff('second', time, $now) // 86400)::BIGINT AS back, arg_max(table_rows, time) AS total
FROM events WHERE kind = 'table' AND layer = 'silver' AND game IS NOT NULL AND table_rows IS NOT NULL AND time <= $now
GROUP BY ALL ORDER BY game, back DESC
"""


def schema_drift(pipeline: Pipeline) -> CheckResult:
    """Check that bronze's columns are those of the last check: shows fields that a producer added or changed the type of."""
    handle = pipeline.open_bronze()
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
    summary = first_few(diff, CHANGES_SHOWN) or f"{len(now)} columns, as at version {version}"
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


@dataclass(frozen=True)
class Unusual:
    """A game with an unusual last day."""

    game: str
    rows: int
    usual: float

    def __str__(self) -> str:
        what = "fell silent" if not self.rows else f"{self.rows:,} rows"
        return f"{self.game}: {what} (usual: {self.usual:,.0f} a day)"


def volume(pipeline: Pipeline, now: datetime | None = None) -> CheckResult:
    """Check that each game's rows of the last 24 hours are near the median of its days before."""
    now = now or datetime.now(UTC)
    events = read_events(pipeline.lakehouse, now - timedelta(days=HISTORY_DAYS + 1), columns=_READ)
    totals: dict[str, dict[int, int]] = {}
    for row in query(events, _DAYS, now=now):
        totals.setdefault(row["game"], {})[row["back"]] = row["total"]
    compared, unusual = 0, []
    for game, by_day in totals.items():
        last, history = daily_rows(by_day)
        if len(history) < MIN_DAYS:
            continue
        compared += 1
        if is_unusual(last, history):
            unusual.append(Unusual(game, last, median(history)))
    unusual.sort(key=lambda u: (u.rows > 0, -u.usual))
    counts = {
        "games_compared": compared,
        "games_with_too_short_a_history": len(totals) - compared,
        "unusual_games": len(unusual),
        "silent_games": sum(not u.rows for u in unusual),
    }
    if unusual:
        summary = f"the last 24 hours are unusual for {first_few(unusual, GAMES_SHOWN)}"
    elif compared:
        summary = f"{compared:,} games sent as much as usual"
    else:
        summary = f"no game has a history of {MIN_DAYS} days yet"
    return CheckResult(VOLUME, "silver", not unusual, summary, counts, games=tuple(u.game for u in unusual))


def daily_rows(totals: dict[int, int]) -> tuple[int, list[int]]:
    """Rows of the last day, and of the days before it, from the totals at the end of some days.

    `totals`: days back -> rows of the table at the end of that day; the first one is the starting value.
    """
    oldest = max(totals)
    rows, before = [], totals[oldest]
    for back in range(oldest - 1, -1, -1):
        now = totals.get(back, before)
        rows.append(max(0, now - before))
        before = now
    return (rows[-1], rows[:-1]) if rows else (0, [])


def is_unusual(last: int, history: list[int]) -> bool:
    """Whether the last day is far from the median of the history."""
    usual = median(history)
    spread = _MAD_TO_SIGMA * median(abs(rows - usual) for rows in history)
    return abs(last - usual) > max(DEVIATIONS * spread, SHARE * usual)
