"""The table `event_log`: what every run did, one row for each fact; append-only, small, without a value of any event.

Guarantee: the events of a run's part are in the table once, whoever else writes it and however often they are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.system_tables.system_table import SystemTable
from game_events.lakehouse.tables import EVENT_LOG, Lakehouse

#: A part is written again within minutes, or never.
AGAIN = timedelta(hours=1)

SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("run_id", pa.string()),
        pa.field("part", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("layer", pa.string()),
        pa.field("table", pa.string()),
        pa.field("game", pa.string()),
        pa.field("name", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("table_rows", pa.int64()),
        pa.field("table_bytes", pa.int64()),
        pa.field("delta_version", pa.int64()),
        pa.field("batch", pa.int64()),
        pa.field("lag", pa.int64()),
        pa.field("seconds", pa.float64()),
        pa.field("status", pa.string()),
        pa.field("detail", pa.string()),
    ]
)

#: kind -> what such a row says (docs/observability.md has the columns of each).
KINDS = {
    "run": "a run began, ended, and how; who started it with which settings",
    "layer": "rows and seconds of one layer",
    "read": "offsets read from the topic, and what was left",
    "table": "a table changed, or could not be changed",
    "rejected": "records that came to quarantine, by reason or rule",
    "other_types": "records of message types that are not selected, which are in bronze undecoded, by type",
    "unrouted": "rows of bronze that belong to no game, by why",
    "replayed": "rows that came from quarantine to bronze, or to silver",
    "gap": "offsets of a partition that were gone before they were read",
    "expired": "rows that a full refresh of bronze has lost, as Kafka does not have their records any more",
    "suppressed": "records that are in no table, as their gamers were forgotten",
    "erased": "rows of forgotten gamers that went from a table",
    "exported": "rows that were sent to an HTTP receiver, calls, dead letters",
    "schema": "a column or a schema that was not there before",
    "rule": "rows of a game that violated a rule, its action, the rows it looked at",
    "check": "result of a check",
    "upkeep": "files of a table that maintenance joined or deleted, and those that wait for it",
}

EventRow = Mapping[str, Any]


def _event_log(lakehouse: Lakehouse) -> SystemTable:
    description = "What every run did: tables, offsets, rejections, checks, schema changes, who ran it; append-only"
    return SystemTable(lakehouse.table(EVENT_LOG), SCHEMA, description)


@retry_on_conflict()
def append_events(lakehouse: Lakehouse, events: Sequence[EventRow], run_id: str, part: str) -> bool:
    """Append a run's events in one commit.

    Args:
        lakehouse: where the table is; it is made if there is none.
        events: rows of `SCHEMA`; `run_id` and `part` are filled in.
        run_id: who writes.
        part: which of the run's commits this is: a run has several steps, steps have attempts, a continuous run has minutes.

    Returns:
        False: this part of this run is in the table already, nothing was written.

    Raises:
        ConflictError: rivals won every attempt.
    """
    log = _event_log(lakehouse)
    handle = log.table.open()
    if handle is not None and _holds(log, handle, run_id, part, min(event["time"] for event in events) - AGAIN):
        return False
    log.commit(handle, pa.Table.from_pylist([{**event, "run_id": run_id, "part": part} for event in events], schema=SCHEMA))
    return True


def _holds(log: SystemTable, handle: DeltaTable, run_id: str, part: str, since: datetime) -> bool:
    """Whether this part of this run is there. Only files with lately written rows can have it: the others are not read."""
    actions = pa.table(handle.get_add_actions(flatten=True))
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
    """Rows of `SCHEMA`, or some of its columns, unsorted; no rows if there is no such table.

    Args:
        lakehouse: where the table is.
        since: only rows of that time or later; files that have none are not opened.
        newest_files: only so many files, those with the newest rows: a run is one file until maintenance joins them.
        kind: only rows of this kind; files that by their statistics have none are not opened, and are no newest ones.
        columns: only these are read, `time` and `kind` among them.
    """
    log = _event_log(lakehouse)
    handle = log.table.open()
    actions = pa.table(handle.get_add_actions(flatten=True)) if handle is not None else None
    if actions is None or not actions.num_rows:
        return log.read(None, columns)
    actions = actions.sort_by([("max.time", "descending")])
    if since is not None:
        newest = actions.column("max.time")
        actions = actions.filter(pc.fill_null(pc.greater_equal(newest, pa.scalar(since, newest.type)), True))
    if kind is not None:
        may_have = pc.and_kleene(
            pc.less_equal(actions.column("min.kind"), kind), pc.greater_equal(actions.column("max.kind"), kind)
        )
        actions = actions.filter(pc.fill_null(may_have, True))
    rows = log.read(handle, columns, actions.column("path").to_pylist()[:newest_files])
    if kind is not None:
        rows = rows.filter(pc.field("kind") == kind)
    if since is not None:
        rows = rows.filter(pc.field("time") >= pa.scalar(since, SCHEMA.field("time").type))
    return rows
