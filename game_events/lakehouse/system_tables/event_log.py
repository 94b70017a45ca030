"""The table `event_log`: what every run did, one row per fact; append-only, small, without a value of any event.

Guarantee: the events of a run's part are in the table once, also with concurrent writers and repeated calls.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.system_tables.system_table import SystemTable, schema_of
from game_events.lakehouse.tables import EVENT_LOG, Lakehouse, add_actions

#: Maximum age of the rows that may be the same part: it is written again within minutes, or never.
AGAIN = timedelta(hours=1)

SCHEMA = schema_of(
    time=(pa.timestamp("us", tz="UTC"), "When that part of the run ended (UTC)"),
    run_id=(pa.string(), "Run"),
    part=(pa.string(), "Which of the run's commits to this table"),
    kind=(pa.string(), "What the row says (docs/observability.md)"),
    layer=(pa.string(), "Layer"),
    table=(pa.string(), "Table"),
    game=(pa.string(), "Game"),
    name=(pa.string(), "Topic, check, rule, reason, column or job that the row is about"),
    rows=(pa.int64(), "Rows of this run"),
    table_rows=(pa.int64(), "Rows of the table after it"),
    table_bytes=(pa.int64(), "Bytes of the table's files after it"),
    delta_version=(pa.int64(), "Version of the table after it"),
    batch=(pa.int64(), "Highest batch of bronze_events in the table"),
    lag=(pa.int64(), "Records left behind in the topic"),
    seconds=(pa.float64(), "Seconds"),
    status=(pa.string(), "How it ended"),
    detail=(pa.string(), "More, as JSON"),
)

#: Kinds of rows besides those of counters (docs/observability.md describes all of them).
KINDS = ("run", "layer", "read", "table", "gap", "erased", "exported", "schema", "rule", "check", "upkeep")

EventRow = Mapping[str, Any]


def event_log_table(lakehouse: Lakehouse) -> SystemTable:
    """The table of a lakehouse, existing or not."""
    description = "What every run did: tables, offsets, rejections, checks, schema changes, who ran it; append-only"
    return SystemTable(lakehouse.table(EVENT_LOG), SCHEMA, description)


@retry_on_conflict()
def append_events(lakehouse: Lakehouse, events: Sequence[EventRow], run_id: str, part: str) -> bool:
    """Append a run's events in one commit.

    `run_id` and `part` (step and attempt of the run, or minute of a continuous run) are filled in. Returns False if the part is
    in the table already: nothing was written. ConflictError: concurrent writers won every attempt.
    """
    log = event_log_table(lakehouse)
    handle = log.table.open()
    if handle is not None and _holds(log, handle, run_id, part, min(event["time"] for event in events) - AGAIN):
        return False
    log.commit(handle, pa.Table.from_pylist([{**event, "run_id": run_id, "part": part} for event in events], schema=SCHEMA))
    return True


def _holds(log: SystemTable, handle: DeltaTable, run_id: str, part: str, since: datetime) -> bool:
    """Whether a part of a run is in the table; only files with recent rows are read."""
    actions = add_actions(handle)
    mine = pc.and_kleene(
        pc.less_equal(actions.column("min.run_id"), run_id), pc.greater_equal(actions.column("max.run_id"), run_id)
    )
    newest = actions.column("max.time")
    mine = pc.and_kleene(mine, pc.greater_equal(newest, pa.scalar(since, newest.type)))
    paths = actions.filter(pc.fill_null(mine, True)).column("path").to_pylist()
    rows = log.read(handle, ["run_id", "part"], paths)
    return bool(pc.any(pc.and_(pc.equal(rows.column("run_id"), run_id), pc.equal(rows.column("part"), part))).as_py())


def read_events(
    lakehouse: Lakehouse,
    since: datetime | None = None,
    newest_files: int | None = None,
    kind: str | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Rows of `SCHEMA`, or some of its columns, unsorted; none without the table.

    Args:
        lakehouse: lakehouse of the table.
        since: only rows of that time or later; files without any are not opened.
        newest_files: only so many files, those with the newest rows: a run is one file until compaction.
        kind: only rows of this kind; files without any, by their statistics, are not opened, and not counted as newest.
        columns: only these, `time` and `kind` among them.
    """
    log = event_log_table(lakehouse)
    handle = log.table.open_to_read()
    actions = add_actions(handle) if handle is not None else None
    if actions is None or not actions.num_rows:
        return log.read(None, columns)
    actions = actions.sort_by([("max.time", "descending")])
    if since is not None:
        newest = actions.column("max.time")
        actions = actions.filter(pc.fill_null(pc.greater_equal(newest, pa.scalar(since, newest.type)), True))
    paths = actions.column("path").to_pylist()
    if kind is not None:
        ranges = zip(paths, actions.column("min.kind").to_pylist(), actions.column("max.kind").to_pylist(), strict=True)
        paths = [path for path, low, high in ranges if low is None or high is None or low <= kind <= high]
    rows = log.read(handle, columns, paths[:newest_files])
    if kind is not None:
        # No `==`: to make a literal of a Python value Arrow imports pandas, a quarter of a short command's time.
        rows = rows.filter(pc.match_substring_regex(rows.column("kind"), f"^{re.escape(kind)}$"))
    if since is not None:
        rows = rows.filter(pc.field("time") >= pa.scalar(since, SCHEMA.field("time").type))
    return rows
