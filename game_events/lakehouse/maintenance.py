"""Maintenance of tables: compaction, renewal of statistics, deletion of files (docs/decisions/0021: why not delta-rs').

Compaction and renewal: same rows in other files, in compare-and-set commits beside which appends go on. `_batch` is unchanged,
and with it all progress.

Compaction merges files by size class, as in a log-structured merge tree: however long a loop runs, a row is rewritten once per
class. Renewed are files by whose statistics readers miss rows (`data/staging.py`): those of earlier releases, and of other
engines. The name of a file says whether it is current, so each is renewed once, after whatever crash, restore, or late commit
of an earlier release.

Deleted are files that no version needs any more (`commits/versions.py`), and orphans of killed runs.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import DeltaTable

from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.commits.transactions import MAINTENANCE_INFO
from game_events.lakehouse.commits.versions import OldVersions
from game_events.lakehouse.data.layout import NO_DAY, ODD_DAY, days_of_files, has_days
from game_events.lakehouse.data.rewriting import Rewriting, columns_in_files, staged_together
from game_events.lakehouse.data.staging import StagedFile, file_system, floating_columns, has_mark, is_current
from game_events.lakehouse.open_table import of_columns
from game_events.lakehouse.table_properties import STATISTICS_OF
from game_events.lakehouse.tables import QUARANTINE, UNIFIED, Table, add_actions, paths, paths_in


@dataclass(frozen=True)
class Goal:
    """When files are worth merging.

    `files`: minimum number of files of one size class. `bytes`: maximum size of a merged file; files larger than half of it are
    left alone.
    """

    files: int
    bytes: int


#: In a loop: a few times a minute and table, each a fraction of a second.
LOOP_GOAL = Goal(files=16, bytes=32 * 1024 * 1024)

#: In maintenance: as few files as possible.
FULL_GOAL = Goal(files=2, bytes=256 * 1024 * 1024)

#: Upper bound of the smallest size class.
SMALLEST_CLASS_BYTES = 64 * 1024

#: How many times larger each next size class is.
CLASS_FACTOR = 8

#: Bytes of a partition's files with rows of several days for which they are divided: readers hardly notice fewer, and each day
#: would get a tiny file with every maintenance.
SPREAD_BYTES = 1024 * 1024

#: Folder of the files with rows that other engines have changed (Delta's change data feed).
CHANGES = "_change_data"

#: Table -> columns with bounds by which readers skip files: files with other bounds are not merged.
KEPT_APART: dict[str, tuple[str, ...]] = {QUARANTINE: ("layer", "game")}


def _same_in_group(table: Table, handle: DeltaTable) -> list[str]:
    """What has the same values in all files of a group, by its name among the files' statistics."""
    bounds = [f"partition.{column}" for column in handle.metadata().partition_columns]
    for column in KEPT_APART.get(table.key, ()):
        bounds += [f"min.{column}", f"max.{column}"]
    return bounds


def small_files(table: Table, handle: DeltaTable, goal: Goal) -> list[list[str]]:
    """Groups of paths that are worth merging, each into about one file, oldest batches first.

    In a table with a layout those of one day, and none of a range of values that others have not.
    """
    actions = add_actions(handle)
    order = "min._batch" if "min._batch" in actions.column_names else "modification_time"
    actions = actions.sort_by([(order, "ascending")])
    bounds = [name for name in _same_in_group(table, handle) if name in actions.column_names]
    layout = table.file_layout
    column = day_column(table, handle)
    days = days_of_files(actions, column) if column is not None else [NO_DAY] * actions.num_rows
    classes: dict[tuple[object, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, file, day in zip(paths_in(actions), actions.select(["size_bytes", *bounds]).to_pylist(), days, strict=True):
        # Those of several days are merged until they are worth to be divided.
        is_apart = day == ODD_DAY or (day is None and _is_full(goal) and file["size_bytes"] >= SPREAD_BYTES)
        is_apart = is_apart or (bool(layout.cluster) and has_mark(path, layout.mark))
        if file["size_bytes"] * 2 <= goal.bytes and not is_apart:
            size_class = 0 if _is_full(goal) and column is None else size_class_of(file["size_bytes"])
            classes[size_class, day, *(file[name] for name in bounds)].append((path, file["size_bytes"]))
    return [group for members in classes.values() for group in _groups(members, goal)]


def day_column(table: Table, handle: DeltaTable) -> str | None:
    """The column by whose days a table's files are; None: by none, or readers do not see its bounds."""
    column = table.file_layout.day
    if column is None or not has_days(columns_in_files(handle), column):
        return None
    others = handle.metadata().configuration.get(STATISTICS_OF)
    return column if others is None or column in map(_unquoted, others.split(",")) else None


def _unquoted(name: str) -> str:
    return name.strip().strip("`")


def _groups(files: list[tuple[str, int]], goal: Goal) -> Iterator[list[str]]:
    """Consecutive files (path, bytes) of at most `goal.bytes` together, where they are enough."""
    group: list[str] = []
    size = 0
    for path, length in [*files, ("", goal.bytes)]:
        if size + length > goal.bytes:
            if len(group) >= goal.files:
                yield group
            group = []
            size = 0
        group.append(path)
        size += length


def _is_full(goal: Goal) -> bool:
    """Whether files of all sizes are merged, once; else those of one size class.

    Not those of a day, which gets late rows for weeks: its large file is not written again for them.
    """
    return goal.files <= CLASS_FACTOR


def size_class_of(size: int) -> int:
    """The number of a file's size class."""
    number = 0
    while size >= SMALLEST_CLASS_BYTES * CLASS_FACTOR**number:
        number += 1
    return number


def join_files(table: Table, handle: DeltaTable, group: list[str], order: Sequence[str] = ()) -> Landed:
    """Write a group of files, of one partition, as one, and replace them by it. Raises as `commit`.

    `order`: columns by which rows are sorted, `SORTED_BYTES` at a time: who reads some of their values reads fewer row groups.
    """
    return join_groups(table, handle, [group], order)


def join_groups(table: Table, handle: DeltaTable, groups: Iterable[list[str]], order: Sequence[str] = ()) -> Landed:
    """As `join_files`, of several groups in one commit."""
    together = list(groups)
    again = Rewriting(table, handle)
    files = staged_together(table, (again.together(group, order) for group in together))
    failpoints.reach("joined_staged", table.name)
    landed = replace_files(table, handle, chain.from_iterable(together), files, "compaction")
    failpoints.reach("joined_committed", table.name)
    return landed


def replace_files(table: Table, handle: DeltaTable, paths: Iterable[str], files: list[StagedFile], kind: str) -> Landed:
    """Commit files that hold the same rows as those of these paths, in their place."""
    return commit(
        Commit(
            table,
            # No column is added, and the columns' metadata (bronze's column map) is not touched.
            pa.schema([]),
            files,
            expect_transactions={},
            set_transactions={},
            table_id=str(handle.metadata().id),
            rewritten=frozenset(paths),
            same_rows=True,
            info={MAINTENANCE_INFO: kind},
        )
    )


#: Bytes of files that one maintenance renews in a table, but for a single larger one: the rest is left for the next one.
MOST_BYTES = 1024 * 1024 * 1024

#: Files, and their bytes, of one commit at most.
GROUP_FILES, GROUP_BYTES = 500, 256 * 1024 * 1024

#: Characters that delta-rs reads wrongly where they are escaped, or reads in their place.
_BEYOND_16_BITS = r"[\x{10000}-\x{10FFFF}]"


@dataclass(frozen=True)
class OutdatedFile:
    """A file to renew: its path below the table's folder, and its bytes."""

    path: str
    size: int


def outdated_files(handle: DeltaTable) -> list[OutdatedFile]:
    """Files of a version by whose statistics readers may miss rows, the oldest first.

    All of earlier releases in a table with floating-point columns; in another one those with bounds that have a character which
    such a release may have escaped.
    """
    if all(map(is_current, paths(handle))):
        return []
    actions = add_actions(handle).sort_by("modification_time")
    names = paths_in(actions)
    old = [not is_current(name) for name in names]
    if not of_columns(handle, _has_floating):
        old = [is_old and is_wrong for is_old, is_wrong in zip(old, _escaped(actions), strict=True)]
    sizes = actions.column("size_bytes").to_pylist()
    return [OutdatedFile(name, size) for name, size, is_old in zip(names, sizes, old, strict=True) if is_old]


def _has_floating(handle: DeltaTable) -> bool:
    return bool(floating_columns(pa.schema(handle.schema())))


def _escaped(actions: pa.Table) -> list[bool]:
    """Whether a bound of each file has a character beyond 16 bits."""
    is_beyond = pa.repeat(False, actions.num_rows)
    text_types = (pa.string(), pa.large_string(), pa.string_view())
    for name in actions.column_names:
        column = actions.column(name)
        if name.startswith(("min.", "max.")) and column.type in text_types:
            texts = column.cast(pa.string())
            is_beyond = pc.or_(is_beyond, pc.fill_null(pc.match_substring_regex(texts, _BEYOND_16_BITS), False))
    flags: list[bool] = is_beyond.to_pylist()
    return flags


def first_groups(files: Sequence[OutdatedFile], most_bytes: float | None = None) -> Iterator[list[OutdatedFile]]:
    """Files for one commit each, the first ones of at most so many bytes together (None: `MOST_BYTES`), but at least one."""
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    group: list[OutdatedFile] = []
    size = total = 0
    for file in files:
        if total and total + file.size > most_bytes:
            break
        if group and (size + file.size > GROUP_BYTES or len(group) == GROUP_FILES):
            yield group
            group = []
            size = 0
        group.append(file)
        size += file.size
        total += file.size
    if group:
        yield group


def renew(table: Table, handle: DeltaTable, group: Iterable[OutdatedFile]) -> Landed:
    """Write files again, one by one, with the same rows and current statistics.

    Raises as `commit`, and LostFileError if a file cannot be read: nothing is changed.
    """
    paths = [file.path for file in group]
    files = Rewriting(table, handle).one_by_one(paths)
    failpoints.reach("renewed_staged", table.name)
    landed = replace_files(table, handle, paths, files, "renewal")
    failpoints.reach("renewed_committed", table.name)
    return landed


def orphans(table: Table, older_than_s: float, versions: OldVersions, keep: Collection[str] = ()) -> dict[str, int]:
    """Parquet files that no version names: path -> bytes.

    `keep`: names that stay: listed for a commit to come.
    """
    system, prefix = file_system(table)
    # First the listing, then the version: what is committed in between is in the version.
    partitioned = table.key == UNIFIED or table.by is not None
    listed = system.get_file_info(pafs.FileSelector(prefix.rstrip("/"), recursive=partitioned, allow_not_found=True))
    if not partitioned:
        listed += system.get_file_info(pafs.FileSelector(f"{prefix}{CHANGES}", recursive=True, allow_not_found=True))
    handle = table.open()
    if handle is None:
        return {}
    before = time.time() - older_than_s
    old = {
        path: info.size
        for info in listed
        if info.type == pafs.FileType.File
        and (path := info.path.removeprefix(prefix)).endswith(".parquet")
        and not path.startswith("_delta_log/")
        and info.mtime is not None
        and info.mtime.timestamp() < before
    }
    unnamed = old.keys() - set(paths(handle)) - set(keep)
    # The older versions are looked at only for files that the newest one does not have.
    unnamed -= versions.named(handle) if unnamed else set()
    return {path: size for path, size in old.items() if path in unnamed}
