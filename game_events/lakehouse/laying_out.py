"""Files that are not as the table's layout says (`LAYOUT`, `STATISTICS_COLUMNS`) -> the same rows in files that are.

An old table is changed in steps, beside readers and runs: each step replaces some files in a compare-and-set commit, as
compaction does. Which files are left is asked of the table each time, so a killed step is made again by the next maintenance.
A row is moved once: a file of one day, or of a range of values (its name says so), stays.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Landed
from game_events.lakehouse.data.layout import DayWriter, RangeWriter, cut, days_of_files
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.data.rewriting import BATCH_ROWS, Rewriting, columns_in_files, folder_of, staged_together
from game_events.lakehouse.data.staging import StagedFile, has_mark
from game_events.lakehouse.maintenance import (
    CLASS_FACTOR,
    GROUP_BYTES,
    LOOP_GOAL,
    SMALLEST_CLASS_BYTES,
    SPREAD_BYTES,
    OutdatedFile,
    day_column,
    first_groups,
    replace_files,
)
from game_events.lakehouse.table_properties import STATISTICS_OF
from game_events.lakehouse.tables import Table, add_actions, paths_in

#: Bytes of files that are cut into ranges of values together at least, and of each such file, about.
CLUSTERED_BYTES, RANGE_BYTES = GROUP_BYTES // 2, 32 * 1024 * 1024

#: In a loop files of several days are divided that have so many bytes together, and each: smaller ones are merged first.
LOOP_BYTES, LOOP_LEAST_BYTES = LOOP_GOAL.bytes // 4, SMALLEST_CLASS_BYTES * CLASS_FACTOR

#: One of so many values decides where they are cut.
SAMPLED = 16


def not_laid_out(table: Table, handle: DeltaTable, *, few: bool = False) -> list[list[OutdatedFile]]:
    """Files that are to be divided, with rows of several days, or of any values: for one commit each, the oldest first.

    `few`: also those of several days that have few bytes (`SPREAD_BYTES`).
    """
    layout = table.file_layout
    day = day_column(table, handle)
    if day is not None:
        least = 0 if few else SPREAD_BYTES
        by_folder = _by_folder(_of_several_days(handle, day))
        worth_it = [files for files in by_folder if sum(file.size for file in files) >= least]
        return list(first_groups(list(chain.from_iterable(worth_it)), math.inf))
    if layout.cluster and can_be_sorted(columns_in_files(handle), layout.cluster):
        return list(_unclustered(handle, layout.mark))
    return []


def count(groups: Iterable[Sequence[OutdatedFile]]) -> int:
    """The number of files."""
    return sum(map(len, groups))


def first_of(groups: Sequence[list[OutdatedFile]], most_bytes: float) -> list[list[OutdatedFile]]:
    """The first groups of at most so many bytes together, but at least one."""
    ends = accumulate(sum(file.size for file in group) for group in groups)
    return [group for number, (group, end) in enumerate(zip(groups, ends, strict=True)) if not number or end <= most_bytes]


def can_be_sorted(schema: pa.Schema, columns: Sequence[str]) -> bool:
    """Whether there are these columns, and values of each have an order."""
    return all(name in schema.names and not pa.types.is_nested(schema.field(name).type) for name in columns)


def _of_several_days(handle: DeltaTable, column: str) -> list[OutdatedFile]:
    actions = add_actions(handle).sort_by("modification_time")
    days = days_of_files(actions, column)
    return [file for file, day in zip(_files(actions), days, strict=True) if day is None]


def _files(actions: pa.Table) -> list[OutdatedFile]:
    return list(map(OutdatedFile, paths_in(actions), actions.column("size_bytes").to_pylist()))


def _unclustered(handle: DeltaTable, mark: str) -> Iterator[list[OutdatedFile]]:
    """Groups of files of one partition without the mark, large enough to be cut."""
    actions = add_actions(handle).sort_by("modification_time")
    for files in _by_folder(file for file in _files(actions) if not has_mark(file.path, mark)):
        groups = first_groups(files, math.inf)
        yield from (group for group in groups if sum(file.size for file in group) >= CLUSTERED_BYTES)


def _by_folder(files: Iterable[OutdatedFile]) -> Iterable[list[OutdatedFile]]:
    by_folder = defaultdict[str, list[OutdatedFile]](list)
    for file in files:
        by_folder[folder_of(file.path)].append(file)
    return by_folder.values()


def due_in_loop(table: Table, handle: DeltaTable) -> list[list[OutdatedFile]]:
    """Of a table by days: small files of several days, if they are worth it; as many as are divided between two cycles."""
    day = day_column(table, handle)
    if day is None:
        return []
    spread = _of_several_days(handle, day)
    merged = [file for file in spread if LOOP_LEAST_BYTES <= file.size <= LOOP_GOAL.bytes // 2]
    if sum(file.size for file in merged) < LOOP_BYTES:
        return []
    return list(first_groups(merged, LOOP_GOAL.bytes))


def lay_out(table: Table, handle: DeltaTable, group: Iterable[OutdatedFile], order: Sequence[str] = ()) -> Landed:
    """Write the rows of some files as the layout says, and replace the files.

    `order`: columns by which the rows of a day are sorted.

    Raises as `commit`, and LostFileError if a file cannot be read: nothing is changed.
    """
    replaced = list(group)
    again = Rewriting(table, handle)
    divided = _by_range if table.file_layout.cluster else partial(_by_day, order=order)
    files = staged_together(table, (divided(again, files) for files in _by_folder(replaced)))
    failpoints.reach("laid_out_staged", table.name)
    landed = replace_files(table, handle, [file.path for file in replaced], files, "layout")
    failpoints.reach("laid_out_committed", table.name)
    return landed


def _by_day(again: Rewriting, files: Sequence[OutdatedFile], order: Sequence[str]) -> list[StagedFile]:
    def make(table: Table, schema: pa.Schema, folder: str) -> DayWriter:
        return DayWriter(table, schema, folder=folder, own_rows=1)

    return again.together([file.path for file in files], order, make)


def _by_range(again: Rewriting, files: Sequence[OutdatedFile]) -> list[StagedFile]:
    columns = again.table.file_layout.cluster
    paths = [file.path for file in files]
    of_first = pa.schema([columns_in_files(again.handle).field(columns[0])])
    read = (rows.column(0) for rows in read_parts(again.table, of_first, paths, BATCH_ROWS))
    sample = [values.take(pa.array(range(0, len(values), SAMPLED))) for values in read]
    values = pa.chunked_array(sample, of_first.field(0).type).combine_chunks()
    bounds = cut(values, max(1, sum(file.size for file in files) // RANGE_BYTES))

    def make(table: Table, schema: pa.Schema, folder: str) -> RangeWriter:
        return RangeWriter(table, schema, folder, columns[0], bounds)

    return again.together(paths, columns, make)


def without_statistics(table: Table, handle: DeltaTable) -> list[OutdatedFile]:
    """Files without statistics of columns that shall have them, the oldest first: those from before the settings said so."""
    schema = columns_in_files(handle)
    wanted = [n for n in table.file_layout.with_statistics if n in schema.names and can_be_sorted(schema, [n])]
    wanted = [] if STATISTICS_OF in handle.metadata().configuration else wanted
    actions = add_actions(handle).sort_by("modification_time") if wanted else None
    if actions is None:
        return []
    lacks = pa.repeat(False, actions.num_rows)
    for name in wanted:
        counts = f"null_count.{name}"
        has_none = pc.is_null(actions.column(counts)) if counts in actions.column_names else pa.repeat(True, actions.num_rows)
        lacks = pc.or_(lacks, has_none)
    return _files(actions.filter(lacks))
