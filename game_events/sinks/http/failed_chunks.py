"""Failed chunks, in the table `rest_dead_letters`, and their replay under the same keys.

Guarantee: a failed chunk is sent again once for each replay, also beside a concurrent replay. It waits for a replay if the
newest entry of its key in the delivery log is "dead", and the outbox does not have it.
"""

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.data.snapshot import read_arrow
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.duckdb_connection import connect, records
from game_events.pipeline.context import Pipeline
from game_events.sinks.http.plan import ATTEMPTS, commit_slice, next_slice
from game_events.sinks.http.tables import DELIVERED, FAILED, ExportTables, failed_chunks_schema, outbox_schema

#: The newest entry of each key is what holds; a chunk in the outbox is about to be sent.
_WAITING = """
WITH newest AS (SELECT key, max(slice) AS slice FROM entries GROUP BY key)
SELECT e.* FROM entries e JOIN newest USING (key, slice)
WHERE e.outcome = 'dead' AND e.key NOT IN (SELECT key FROM outbox)
"""


def failed_chunks(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Counts of the failed chunks that wait, by source, game and status, with reason and times; without rows."""
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    with connect(**_views(tables)) as connection:
        return records(
            # The join leaves out chunks with only erased rows.
            connection.execute(
                f"SELECT w.source, w.game, w.status, any_value(f.reason) AS reason, any_value(f.answer) AS answer, "  # noqa: S608
                "count(DISTINCT w.key) AS chunks, count(DISTINCT (w.key, f.number)) AS rows, "
                "min(w.at) AS first, max(w.at) AS last "
                f"FROM ({_WAITING}) w JOIN failed f USING (key, slice) GROUP BY ALL ORDER BY rows DESC, source, status"
            )
        )


@retry_on_conflict(ATTEMPTS)
def replay_failed_chunks(pipeline: Pipeline, statuses: Collection[int] = ()) -> tuple[int, int]:
    """Put failed chunks (with some HTTP statuses; empty: all) back into the outbox, from which they are sent under their keys.

    Returns:
        (chunks, rows) of the outbox.

    Raises:
        ConflictError: concurrent writers won every attempt.
    """
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    outbox = tables.outbox.open()
    rows = _waiting(tables, statuses, next_slice(tables, outbox))
    if not rows.num_rows:
        return 0, 0
    commit_slice(tables, outbox, staged(tables.outbox, rows), {}, {})
    return pc.count_distinct(rows.column("chunk")).as_py(), rows.num_rows


def _waiting(tables: ExportTables, statuses: Collection[int], number: int) -> pa.Table:
    """Rows of the failed chunks that wait, as a slice of the outbox."""
    schema = outbox_schema(tables.person)
    numbered = {"slice": "$slice AS slice", "chunk": "dense_rank() OVER (ORDER BY key) AS chunk"}
    names = ", ".join(numbered.get(name, f'f."{name}"') for name in schema.names)
    with connect(**_views(tables)) as connection:
        # A run that was killed before the entry in the delivery log has written the chunk twice.
        found = connection.sql(
            f"WITH w AS ({_WAITING}), "  # noqa: S608
            "once AS (SELECT *, row_number() OVER (PARTITION BY key, number) AS copy FROM failed JOIN (SELECT key, slice "
            "FROM w WHERE len($statuses) = 0 OR list_contains($statuses, status)) USING (key, slice)) "
            f"SELECT {names} FROM once f WHERE copy = 1 ORDER BY chunk, number",
            params={"statuses": [int(s) for s in statuses], "slice": number},
        ).to_arrow_table()
    return found.cast(schema)


def export_status(pipeline: Pipeline) -> dict[str, Any]:
    """Counts of waiting, delivered and failed chunks and rows."""
    tables = ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column)
    outbox, deliveries = tables.outbox.open(), tables.deliveries.open()
    waiting = tables.waiting(outbox, deliveries)
    settled = tables.settled(deliveries, 0, ["rows", "outcome"])
    delivered = settled.filter(pc.equal(settled.column("outcome"), DELIVERED))
    failed = failed_chunks(pipeline)
    return {
        "waiting": {"chunks": waiting.num_rows, "rows": pc.sum(waiting.column("rows")).as_py() or 0},
        "delivered": {"chunks": delivered.num_rows, "rows": pc.sum(delivered.column("rows")).as_py() or 0},
        FAILED: {"chunks": sum(e["chunks"] for e in failed), "rows": sum(e["rows"] for e in failed)},
        "dead_letters": failed,
    }


def _views(tables: ExportTables) -> dict[str, pa.Table]:
    failed = tables.failed_chunks.open()
    empty = failed_chunks_schema(tables.person).empty_table()
    return {
        "failed": empty if failed is None else read_arrow(tables.failed_chunks, failed),
        "entries": tables.settled(tables.deliveries.open(), 0),
        "outbox": tables.chunks(tables.outbox.open()),
    }
