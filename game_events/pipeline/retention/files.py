"""Files that may have older rows, and the same rows in other files but for what goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, discard
from game_events.lakehouse.maintenance import BATCH_ROWS
from game_events.lakehouse.tables import Table, add_actions, files_of
from game_events.pipeline.retention.ages import Ages, nulls_in


@dataclass(frozen=True)
class File:
    """A file that may have older rows, by its statistics.

    `last_us`: no row is after that time. `nulls`: NULLs of a column that was asked for; -1: not known.
    """

    path: str
    rows: int
    size: int
    last_us: int
    highest_batch: int | None
    nulls: int = -1


def candidates(handle: DeltaTable, ages: Ages, nulls_of: str = "") -> Iterator[File]:
    """The files that may have older rows, the oldest first; `nulls_of`: as in `File`."""
    actions = add_actions(handle)
    if not actions.num_rows:
        return
    first, last = ages.bounds(actions)
    batches = {unquote(file.path): file.highest_batch for file in files_of(handle)}
    paths = [unquote(path) for path in actions.column("path").to_pylist()]
    rows = actions.column("num_records").to_pylist()
    sizes = actions.column("size_bytes").to_pylist()
    nulls = nulls_in(actions, nulls_of)
    for number in np.argsort(first, kind="stable").tolist():
        if int(first[number]) >= ages.latest_limit:
            return
        path = paths[number]
        counts = (int(rows[number] or 0), int(sizes[number]), int(last[number]))
        yield File(path, *counts, batches[path], int(nulls[number]))


def rewritten(
    table: Table, handle: DeltaTable, paths: Iterable[str], change: Callable[[pa.Table], pa.Table]
) -> list[StagedFile]:
    """The rows of files, changed, in their order, in new files of their partitions; after an error there are none."""
    files: list[StagedFile] = []
    try:
        for path in paths:
            files += _rewritten(table, handle, path, change)
    except BaseException:
        discard(table, files)
        raise
    return files


def _rewritten(table: Table, handle: DeltaTable, path: str, change: Callable[[pa.Table], pa.Table]) -> list[StagedFile]:
    partition = handle.metadata().partition_columns
    schema = pa.schema([item for item in pa.schema(handle.schema()) if item.name not in partition])
    writer = StagedWriter(table, schema, folder=path[: path.rfind("/") + 1])
    try:
        for rows in read_parts(table, schema, [path], BATCH_ROWS):
            writer.write(change(rows))
        return writer.close()
    except BaseException:
        writer.abort()
        raise
