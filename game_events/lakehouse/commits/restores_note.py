"""The commit that marks a table's restores as checked: else every run would check them again."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
from deltalake import DeltaTable

from game_events.errors import ConflictError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.restores import RESTORE_CHECKED
from game_events.lakehouse.tables import Table


def acknowledge_restore(table: Table, handle: DeltaTable) -> None:
    """Commit it, without rows or progress. If the table was restored again after `handle`, nothing is committed."""
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
                info={RESTORE_CHECKED: "nothing was lost"},
            )
        )
