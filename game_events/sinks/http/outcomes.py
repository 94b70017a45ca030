"""Outcomes of chunks: their rows in the delivery log and among the failed chunks, and the commits that append them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from game_events.errors import ConflictError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import txns
from game_events.lakehouse.data.staging import StagedFile, staged
from game_events.lakehouse.tables import Table, table_id
from game_events.sinks.http.delivery import ChunkOutcome
from game_events.sinks.http.tables import DELIVERED, FAILED, OUTCOME

APPEND_ATTEMPTS = 20
DELIVERY_LOG = "Outcome of each chunk of exported rows"


@dataclass
class ChunkResult:
    """A chunk of the outbox, and its outcome at a time."""

    chunk: pa.Table
    outcome: ChunkOutcome
    at: datetime

    def columns(self, run_id: str) -> dict[str, Any]:
        """Values of a row about the chunk, in the delivery log or among the failed chunks."""
        known = {"outcome": DELIVERED if self.outcome.taken else FAILED, "at": self.at, "run_id": run_id}
        return known | {name: getattr(self.outcome, name) for name in ("status", "attempts", "reason", "answer")}


def about(results: Sequence[ChunkResult], run_id: str, schema: pa.Schema, count: int | None = None) -> pa.Table:
    """The first `count` rows (None: all) of each chunk, with the columns of its outcome."""
    parts = [result.chunk.slice(0, count) for result in results]
    more = pa.Table.from_pylist([result.columns(run_id) for result in results], schema=OUTCOME)
    more = more.take(np.repeat(np.arange(len(results)), [part.num_rows for part in parts]))
    whole = {name: table.column(name) for table in (pa.concat_tables(parts), more) for name in table.column_names}
    return pa.Table.from_pydict(whole, schema=schema)


def append(table: Table, rows: pa.Table, expected: dict[str, int | None], description: str) -> None:
    """Append rows, again after a conflict with another append.

    Raises:
        ConflictError: another run has taken over, or every attempt was lost to concurrent writers.
    """
    for left in reversed(range(APPEND_ATTEMPTS)):
        try:
            add(table, rows.schema, staged(table, rows), expected, description)
            return
        except ConflictError:
            if not left or _taken_over(table, expected):
                raise


def add(
    table: Table, schema: pa.Schema, files: Sequence[StagedFile], expected: dict[str, int | None], description: str
) -> None:
    """Append files; they are deleted after a conflict, for which ConflictError is raised."""
    try:
        commit(Commit(table, schema, files, expected, {}, table_id(table.open()), description=description))
    except ConflictError as error:
        if _taken_over(table, expected):
            raise ConflictError("another run of the export has taken over: this one stops") from error
        raise


def _taken_over(table: Table, expected: dict[str, int | None]) -> bool:
    now = table.open()
    return now is not None and txns(now, expected) != expected
