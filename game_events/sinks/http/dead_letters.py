"""Dead letters: chunks that were given up, and their replay under the same keys.

Guarantee: a dead letter is sent again once for each replay, also beside a concurrent replay. A dead letter waits if the newest
entry of its key in the delivery log is "dead", and the outbox does not have it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.data.snapshot import read_arrow
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.duckdb_connection import connect, records
from game_events.pipeline.context import Pipeline
from game_events.sinks.http.plan import commit_slice, next_slice
from game_events.sinks.http.tables import DEAD, DELIVERED, ExportTables, dead_letters_schema, outbox_schema

ATTEMPTS = 5

#: The newest entry of each key is what holds; a chunk in the outbox is about to be sent.
_WAITING = """
WITH newest AS (SELECT key, max(slice) AS slice FROM entries GROUP BY key)
SELECT e.* FROM entries e JOIN newest USING (key, slice)
WHERE e.outcome = 'dead' AND e.key NOT IN (SELECT key FROM outbox)
"""


def dead_letters(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Counts of the dead letters that wait, by source, game and status, with reason and times; without rows."""
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    with connect(**_views(tables)) as connection:
        return records(
            # The join leaves out chunks with only erased rows.
            connection.execute(
                f"SELECT w.source, w.game, w.status, any_value(d.reason) AS reason, any_value(d.answer) AS answer, "  # noqa: S608
                "count(DISTINCT w.key) AS chunks, count(DISTINCT (w.key, d.number)) AS rows, "
                "min(w.at) AS first, max(w.at) AS last "
                f"FROM ({_WAITING}) w JOIN dead d USING (key, slice) GROUP BY ALL ORDER BY rows DESC, source, status"
            )
        )


@retry_on_conflict(ATTEMPTS)
def replay_dead_letters(pipeline: Pipeline, statuses: Collection[int] = ()) -> tuple[int, int]:
    """Put dead letters back into the outbox, from which the export sends them under their keys.

    Args:
        pipeline: the pipeline.
        statuses: HTTP statuses of the dead letters; empty: all.

    Returns:
        (chunks, rows) of the outbox.

    Raises:
        ConflictError: concurrent writers won every attempt.
    """
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    schema = outbox_schema(tables.person)
    outbox = tables.outbox.open()
    found = _waiting(tables, schema, statuses)
    if not found.num_rows:
        return 0, 0
    number = pa.repeat(pa.scalar(next_slice(tables, outbox), pa.int64()), found.num_rows)
    rows = pa.Table.from_arrays(
        [pa.chunked_array([number]) if f.name == "slice" else found.column(f.name).cast(f.type) for f in schema],
        schema=schema,
    )
    writer = StagedWriter(tables.outbox, schema)
    writer.write(rows)
    commit_slice(tables, outbox, writer.close(), ({}, {}))
    return pc.count_distinct(rows.column("chunk")).as_py(), rows.num_rows


def _waiting(tables: ExportTables, schema: pa.Schema, statuses: Collection[int]) -> pa.Table:
    """Rows of the dead letters that wait, with the outbox's columns except `slice`."""
    names = ", ".join(f'd."{f.name}"' for f in schema if f.name not in ("slice", "chunk"))
    with connect(**_views(tables)) as connection:
        # A run that was killed between the dead letter and the delivery log has written the dead letter twice.
        return connection.sql(
            f"WITH w AS ({_WAITING}), "  # noqa: S608
            "once AS (SELECT *, row_number() OVER (PARTITION BY key, number) AS copy FROM dead JOIN (SELECT key, slice "
            "FROM w WHERE len($statuses) = 0 OR list_contains($statuses, status)) USING (key, slice)) "
            f"SELECT {names}, dense_rank() OVER (ORDER BY key) AS chunk FROM once d WHERE copy = 1 ORDER BY chunk, number",
            params={"statuses": [int(s) for s in statuses]},
        ).to_arrow_table()


def export_status(pipeline: Pipeline) -> dict[str, Any]:
    """Counts of waiting, delivered and dead chunks and rows."""
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    outbox, deliveries = tables.outbox.open(), tables.deliveries.open()
    waiting = tables.waiting(outbox, deliveries)
    settled = tables.settled(deliveries, 0, ["rows", "outcome"])
    delivered = settled.filter(pc.equal(settled.column("outcome"), DELIVERED))
    dead = dead_letters(pipeline)
    return {
        "waiting": {"chunks": waiting.num_rows, "rows": pc.sum(waiting.column("rows")).as_py() or 0},
        "delivered": {"chunks": delivered.num_rows, "rows": pc.sum(delivered.column("rows")).as_py() or 0},
        DEAD: {"chunks": sum(e["chunks"] for e in dead), "rows": sum(e["rows"] for e in dead)},
        "dead_letters": dead,
    }


def _views(tables: ExportTables) -> dict[str, pa.Table]:
    dead = tables.dead_letters.open()
    return {
        "dead": read_arrow(tables.dead_letters, dead) if dead is not None else dead_letters_schema(tables.person).empty_table(),
        "entries": tables.settled(tables.deliveries.open(), 0),
        "outbox": tables.chunks(tables.outbox.open()),
    }
