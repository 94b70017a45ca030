"""Files that may have older rows, by their statistics; and those that a removal of rows takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from game_events.lakehouse.tables import add_actions, files_of, paths_in
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


@dataclass
class Removal:
    """What a dry run would remove, by file.

    Attributes:
        whole: paths of files of which all rows go; `changed`: of those that are written again.
        stays: some rows of these -> those that stay, by some `columns`.
    """

    whole: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    stays: Callable[[pa.Table], pa.Table] | None = None
    columns: tuple[str, ...] = ()


def candidates(handle: DeltaTable, ages: Ages, nulls_of: str = "") -> Iterator[File]:
    """The files that may have older rows, the oldest first; `nulls_of`: as in `File`."""
    actions = add_actions(handle)
    if not actions.num_rows:
        return
    first, last = ages.bounds(actions)
    batches = {file.plain_path: file.highest_batch for file in files_of(handle)}
    paths = paths_in(actions)
    rows = actions.column("num_records").to_pylist()
    sizes = actions.column("size_bytes").to_pylist()
    nulls = nulls_in(actions, nulls_of)
    for number in np.argsort(first, kind="stable").tolist():
        if int(first[number]) >= ages.latest_limit:
            return
        path = paths[number]
        counts = (int(rows[number] or 0), int(sizes[number]), int(last[number]))
        yield File(path, *counts, batches[path], int(nulls[number]))
