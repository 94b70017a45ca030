"""An erasure's commits: files of a table give way to others without some gamers' rows, progress stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from deltalake import DeltaTable

from game_events.lakehouse.commits.commit import Commit, commit, paths
from game_events.lakehouse.commits.generations import erasures
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.event_columns import RECORD
from game_events.lakehouse.tables import QUARANTINE, Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.erasure.scan import EraseTask, ScannedFile, look_at
from game_events.pipeline.erasure.subjects import RECORDS, Wanted
from game_events.pipeline.state.commit_info import ERASED_ROWS

ATTEMPTS = 20


def without(
    table: Table,
    handle: DeltaTable,
    hits: Sequence[ScannedFile],
    run_id: str,
    *,
    expected: Mapping[str, int | None] | None = None,
    advance: Mapping[str, int] | None = None,
    info: Mapping[str, str] | None = None,
) -> Commit:
    """The commit that takes out these files' rows; it counts itself (`erasures`).

    Args:
        table: the table.
        handle: its version.
        hits: files with rows that go, and what stands for them.
        run_id: who does it.
        expected: `txn` -> value it must still have, besides that count.
        advance: `txn` -> value it gets.
        info: more for the commit's own information.
    """
    rows = sum(found.rows for found in hits)
    return Commit(
        table,
        pa.schema([]),  # no file has a column that the table lacks
        [file for found in hits for file in found.files],
        expected={Txn.ERASURES: handle.transaction_version(Txn.ERASURES), **(expected or {})},
        advance={Txn.ERASURES: erasures(handle) + 1, **(advance or {})},
        table_id=str(handle.metadata().id),
        rewritten=frozenset(found.path for found in hits),
        info={"erasure": "rows of forgotten gamers", ERASED_ROWS: str(rows), "run_id": run_id, **(info or {})},
    )


def erase_from_quarantine(pipeline: Pipeline, records: Sequence[tuple[str, int, int, int]]) -> int:
    """Take records out of quarantine of which it became known that they are forgotten gamers'.

    Args:
        pipeline: the parts.
        records: (topic id, partition, offset, batch) of each.

    Returns:
        rows that went.

    Raises:
        ConflictError: rivals won every attempt; nothing else was done.
    """
    if not records:
        return 0
    columns = dict(zip(RECORD, zip(*records, strict=True), strict=True))
    arrays = [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(len(records), f.type) for f in RECORDS]
    settings = pipeline.settings
    wanted = Wanted(settings.key_column, settings.entity_column, frozenset(), pa.Table.from_arrays(arrays, schema=RECORDS))
    task = EraseTask({QUARANTINE: pipeline.quarantine}, wanted, rewrite=True)

    @retry_on_conflict(ATTEMPTS)
    def erased() -> int:
        handle = pipeline.quarantine.open()
        files = [(QUARANTINE, path) for path in paths(handle)] if handle is not None else []
        hits = [found for found in look_at(pipeline, task, files) if found.rows]
        if handle is None or not hits:
            return 0
        commit(without(pipeline.quarantine, handle, hits, pipeline.run_id))
        return sum(found.rows for found in hits)

    return erased()
