"""Compaction of an append-only table: same rows, fewer files, in compare-and-set commits beside which appends go on.

Files are merged by size class, as in a log-structured merge tree: however long a loop runs, a row is rewritten once per class.
`_batch` is unchanged, and with it all progress. Why not delta-rs': docs/decisions/0021-own-compaction-and-deletion.md.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.commits.restores import MAINTENANCE_INFO
from game_events.lakehouse.data.snapshot import read_parts
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.tables import QUARANTINE, Table, add_actions

#: Rows in memory at a time, besides the writer's row group.
BATCH_ROWS = 16_384


@dataclass(frozen=True)
class Goal:
    """When files are worth merging.

    `files`: minimum number of files of one size class. `bytes`: maximum size of a merged file; files larger than half of it are
    left alone. `smallest`: upper bound of the smallest size class in bytes; each next one is `factor` times larger.
    """

    files: int
    bytes: int
    smallest: int = 64 * 1024
    factor: int = 8


#: In a loop: a few times a minute and table, each a fraction of a second.
LOOP_GOAL = Goal(files=16, bytes=32 * 1024 * 1024)
#: In maintenance: as few files as possible.
FULL_GOAL = Goal(files=2, bytes=256 * 1024 * 1024)
#: Table -> columns with bounds by which readers skip files: files with other bounds are not merged.
KEPT_APART: dict[str, tuple[str, ...]] = {QUARANTINE: ("layer", "game")}


def small_files(table: Table, handle: DeltaTable, goal: Goal) -> list[list[str]]:
    """Groups of paths that are worth merging, each into about one file, oldest batches first."""
    actions = add_actions(handle)
    bounds = [f"partition.{column}" for column in handle.metadata().partition_columns]
    order = [("min._batch", "ascending")] if "min._batch" in actions.column_names else [("modification_time", "ascending")]
    bounds += [f"{end}.{column}" for column in KEPT_APART.get(table.key, ()) for end in ("min", "max")]
    bounds = [name for name in bounds if name in actions.column_names]
    classes: dict[tuple[object, ...], list[tuple[str, int]]] = defaultdict(list)
    for file in actions.sort_by(order).select(["path", "size_bytes", *bounds]).to_pylist():
        if file["size_bytes"] * 2 <= goal.bytes:
            key = (_size_class(file["size_bytes"], goal), *(file[name] for name in bounds))
            classes[key].append((file["path"], file["size_bytes"]))
    return [group for members in classes.values() for group in _groups(members, goal)]


def _groups(files: list[tuple[str, int]], goal: Goal) -> Iterator[list[str]]:
    """Consecutive files (path, bytes) of at most `goal.bytes` together, where they are enough."""
    group: list[str] = []
    size = 0
    for path, length in [*files, ("", goal.bytes)]:
        if size + length > goal.bytes:
            if len(group) >= goal.files:
                yield group
            group, size = [], 0
        group.append(path)
        size += length


def _size_class(size: int, goal: Goal) -> int:
    if goal.files <= goal.factor:
        return 0  # once: all sizes together
    number = 0
    while size >= goal.smallest * goal.factor**number:
        number += 1
    return number


def join_files(table: Table, handle: DeltaTable, group: list[str]) -> Landed:
    """Write a group of files, of one partition, as one, and replace them by it.

    Raises:
        ConflictError: a concurrent writer replaced one of them; nothing is changed.
        TransientError: the outcome of the commit is unknown; the table is right either way.
    """
    partition = handle.metadata().partition_columns
    schema = pa.schema([field for field in pa.schema(handle.schema()) if field.name not in partition])
    writer = StagedWriter(table, schema, folder=group[0][: group[0].rfind("/") + 1])
    try:
        for rows in read_parts(table, schema, group, BATCH_ROWS):
            writer.write(rows)
        files = writer.close()
    except BaseException:
        writer.abort()
        raise
    failpoints.reach("joined_staged", table.name)
    landed = commit(
        Commit(
            table,
            # No column is added, and the columns' metadata (bronze's column map) is not touched.
            pa.schema([]),
            files,
            expected={},
            advance={},
            table_id=str(handle.metadata().id),
            rewritten=frozenset(group),
            same_rows=True,
            info={MAINTENANCE_INFO: "compaction"},
        )
    )
    failpoints.reach("joined_committed", table.name)
    return landed
