"""Data of `game-events report`: SQL over the event log."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from game_events.lakehouse.duckdb_connection import query

Rows = list[dict[str, Any]]
#: Games with an own line; the others are one line, as more colours cannot be distinguished.
GAMES_SHOWN = 8
OTHERS = "others"
TABLES_SHOWN, ERRORS_SHOWN = 200, 20

_HEAD = """
SELECT count(*) FILTER (kind = 'run' AND name NOT LIKE 'check %') AS runs,
  count(*) FILTER (kind = 'run' AND status = 'failed') AS failed_runs,
  coalesce(sum(rows) FILTER (kind = 'table' AND layer = 'bronze'), 0)::BIGINT AS bronze_rows,
  coalesce(sum(rows) FILTER (kind = 'rejected'), 0)::BIGINT AS rejected_rows,
  coalesce(sum(rows) FILTER (kind = 'rule'), 0)::BIGINT AS rule_rows,
  arg_max(lag, time) FILTER (kind = 'run' AND lag IS NOT NULL) AS lag,
  min(time) AS first, max(time) AS last, count(DISTINCT game) AS games
FROM events
"""
_RUNS = """
SELECT time_bucket($bucket::INTERVAL, time) AS begins, layer, sum(rows)::BIGINT AS rows, sum(seconds) AS seconds,
  CASE WHEN sum(seconds) > 0 THEN sum(rows) / sum(seconds) END AS rate
FROM events WHERE kind = 'layer' GROUP BY ALL ORDER BY begins, layer
"""
_LAG = """
SELECT time_bucket($bucket::INTERVAL, time) AS begins, max(lag)::BIGINT AS lag
FROM events WHERE kind = 'run' AND lag IS NOT NULL GROUP BY ALL ORDER BY begins
"""
#: Rows of a series; those with few rows are one series.
_SERIES = """
WITH chosen AS ({}),
top AS (SELECT series FROM chosen GROUP BY series ORDER BY sum(rows) DESC, series LIMIT $games)
SELECT time_bucket($bucket::INTERVAL, time) AS begins, CASE WHEN series IN (FROM top) THEN series ELSE $others END AS series,
  sum(rows)::BIGINT AS rows
FROM chosen GROUP BY ALL ORDER BY begins, series
"""
_BY_GAME = _SERIES.format("""
  SELECT time, game AS series, rows FROM events WHERE kind = 'table' AND layer = 'silver' AND game IS NOT NULL AND rows > 0
""")
_RULES = _SERIES.format("""
  SELECT time, coalesce(game, layer, '-') || ': ' || name AS series, rows FROM events WHERE kind = 'rule' AND rows > 0
""")
_REJECTED = """
SELECT time_bucket($bucket::INTERVAL, time) AS begins,
  CASE kind WHEN 'unrouted' THEN 'unrouted: ' ELSE '' END || name AS series, sum(rows)::BIGINT AS rows
FROM events WHERE kind IN ('rejected', 'unrouted') GROUP BY ALL ORDER BY begins, series
"""
_TABLES = """
SELECT "table", arg_max(table_rows, time) AS rows, arg_max(table_bytes, time) AS bytes, arg_max(delta_version, time) AS version,
  arg_max(batch, time) AS batch, max(time) AS changed
FROM events WHERE kind = 'table' AND table_rows IS NOT NULL GROUP BY ALL ORDER BY bytes DESC, "table" LIMIT $tables
"""
_CHECKS = """
SELECT name, layer, arg_max(status, time) AS status, max(time) AS looked,
  arg_max(json_extract_string(detail, '$.summary'), time) AS summary, count(*) FILTER (status <> 'passed') AS failures
FROM events WHERE kind = 'check' GROUP BY ALL ORDER BY name
"""
_ERRORS = """
SELECT time, run_id, coalesce("table", name) AS what,
  coalesce(json_extract_string(detail, '$.error.class') || ': ', '') ||
  coalesce(json_extract_string(detail, '$.error.text'), json_extract_string(detail, '$.error'), '') AS error
FROM events WHERE kind IN ('run', 'table') AND status = 'failed' ORDER BY time DESC, what LIMIT $errors
"""


@dataclass(frozen=True)
class ReportData:
    """Everything on the page; `head`: figures at the top, `bucket`: interval of a point or bar."""

    head: dict[str, Any]
    bucket: str
    layers: Rows = field(default_factory=list)
    lag: Rows = field(default_factory=list)
    games: Rows = field(default_factory=list)
    rejected: Rows = field(default_factory=list)
    rules: Rows = field(default_factory=list)
    tables: Rows = field(default_factory=list)
    checks: Rows = field(default_factory=list)
    errors: Rows = field(default_factory=list)


def report_data(events: pa.Table) -> ReportData:
    """Query the event log; without events the report is empty."""
    head = query(events, _HEAD)[0]
    bucket = bucket_of(head["first"], head["last"])
    top = {"games": GAMES_SHOWN, "others": OTHERS}
    return ReportData(
        head,
        bucket,
        layers=query(events, _RUNS, bucket=bucket),
        lag=query(events, _LAG, bucket=bucket),
        games=query(events, _BY_GAME, bucket=bucket, **top),
        rejected=query(events, _REJECTED, bucket=bucket),
        rules=query(events, _RULES, bucket=bucket, **top),
        tables=query(events, _TABLES, tables=TABLES_SHOWN),
        checks=query(events, _CHECKS),
        errors=query(events, _ERRORS, errors=ERRORS_SHOWN),
    )


def bucket_of(first: datetime | None, last: datetime | None) -> str:
    """Interval of one bar, so that a chart has at most about 170."""
    seconds = (last - first).total_seconds() if first and last else 0.0
    for name, length in (("10 seconds", 10), ("1 minute", 60), ("10 minutes", 600), ("1 hour", 3600), ("6 hours", 21600)):
        if seconds <= 170 * length:
            return name
    return "1 day"
