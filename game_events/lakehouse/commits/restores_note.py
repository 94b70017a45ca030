"""One commit that says that a table's restores were looked at and nothing is lost: else every run would look again."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
from deltalake import DeltaTable

from game_events.errors import ConflictError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.restores import LOOKED_AT
from game_events.lakehouse.tables import Table


def note_looked_at(table: Table, handle: DeltaTable) -> None:
    """Commit it: no row, no progress. A restore that came after `handle` is not covered by it: then nothing is committed."""
    with suppress(ConflictError):
        commit(
            Commit(
                table,
                pa.schema(handle.schema()),
                [],
                expected={},
                advance={},
                table_id=str(handle.metadata().id),
                seen=handle.version(),
                owns_map=True,
                info={LOOKED_AT: "nothing was lost"},
            )
        )
