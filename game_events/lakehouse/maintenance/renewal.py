"""Renewal of files by whose statistics readers miss rows (`file_statistics`): files of earlier releases, and of other engines.

The name of a file says whether it is current, so each is renewed once, after whatever crash, restore, or late commit of an
earlier release. Same rows, in compare-and-set commits beside which appends go on, as in a compaction.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.errors import LostFileError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.commits.restores import MAINTENANCE_INFO
from game_events.lakehouse.data.file_copies import copy_file
from game_events.lakehouse.data.file_statistics import floating_columns, is_current, new_name
from game_events.lakehouse.data.snapshot import read_parts
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, discard
from game_events.lakehouse.handle import of_columns
from game_events.lakehouse.tables import Lakehouse, Table, add_actions, files_of

#: Bytes of files that one maintenance renews in a table, but for a single larger one: the rest is left for the next one.
MOST_BYTES = 1024 * 1024 * 1024
#: Files, and their bytes, of one commit at most.
GROUP_FILES, GROUP_BYTES = 500, 256 * 1024 * 1024
#: Rows in memory at a time, besides the writer's row group.
BATCH_ROWS = 16_384
#: Characters that delta-rs reads wrongly where they are escaped, or reads in their place.
_BEYOND_16_BITS = r"[\x{10000}-\x{10FFFF}]"
_CODEC = re.compile(r"\.(\w+)\.parquet$")


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
    if all(is_current(unquote(file.path)) for file in files_of(handle)):
        return []
    actions = add_actions(handle).sort_by("modification_time")
    names = [unquote(path) for path in actions.column("path").to_pylist()]
    old = [not is_current(name) for name in names]
    if not of_columns(handle, _floating).names:
        old = [is_old and is_wrong for is_old, is_wrong in zip(old, _escaped(actions), strict=True)]
    sizes = actions.column("size_bytes").to_pylist()
    return [OutdatedFile(name, size) for name, size, is_old in zip(names, sizes, old, strict=True) if is_old]


def _floating(handle: DeltaTable) -> pa.Schema:
    """The columns with floating-point numbers, nested ones, too."""
    return pa.schema([field for field in pa.schema(handle.schema()) if floating_columns(pa.schema([field]))])


def _escaped(actions: pa.Table) -> list[bool]:
    """Whether a bound of each file has a character beyond 16 bits."""
    found = pa.repeat(False, actions.num_rows)
    for name in actions.column_names:
        column = actions.column(name)
        if name.startswith(("min.", "max.")) and _is_text(column.type):
            texts = column.cast(pa.string())
            found = pc.or_(found, pc.fill_null(pc.match_substring_regex(texts, _BEYOND_16_BITS), False))
    flags: list[bool] = found.to_pylist()
    return flags


def _is_text(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def first_groups(files: Sequence[OutdatedFile], most_bytes: int = MOST_BYTES) -> Iterator[list[OutdatedFile]]:
    """Files for one commit each, the first ones of at most so many bytes together, but at least one."""
    group: list[OutdatedFile] = []
    size = total = 0
    for file in files:
        if total and total + file.size > most_bytes:
            break
        if group and (size + file.size > GROUP_BYTES or len(group) == GROUP_FILES):
            yield group
            group, size = [], 0
        group.append(file)
        size, total = size + file.size, total + file.size
    if group:
        yield group


def renew(lakehouse: Lakehouse, table: Table, handle: DeltaTable, group: Iterable[OutdatedFile]) -> Landed:
    """Replace files by files with the same rows and current statistics, one by one.

    A file without NaN and -0.0 is copied under another name (on a local disk: linked), others are written again.

    Raises:
        ConflictError: a concurrent writer replaced one of them; nothing is changed.
        LostFileError: one cannot be read; nothing is changed.
        TransientError: the outcome of the commit is unknown; the table is right either way.
    """
    paths, files = [file.path for file in group], list[StagedFile]()
    columns = of_columns(handle, _floating)
    try:
        for path in paths:
            if _is_misleading(table, columns, path):
                files += _rewritten(table, handle, path)
            else:
                files.append(_renamed(lakehouse, table, path))
    except BaseException:
        discard(table, files)
        raise
    failpoints.reach("renewed_staged", table.name)
    landed = commit(
        Commit(
            table,
            pa.schema([]),
            files,
            expected={},
            advance={},
            table_id=str(handle.metadata().id),
            rewritten=frozenset(paths),
            same_rows=True,
            info={MAINTENANCE_INFO: "renewal"},
        )
    )
    failpoints.reach("renewed_committed", table.name)
    return landed


def _is_misleading(table: Table, columns: pa.Schema, path: str) -> bool:
    """Whether a file holds a NaN or a -0.0 in one of these columns; no others are read."""
    for rows in read_parts(table, columns, [path], BATCH_ROWS) if columns.names else ():
        arrays = (chunk for column in rows.columns for chunk in column.chunks)
        if any(_holds(numbers) for array in arrays for numbers in _numbers(array)):
            return True
    return False


def _numbers(array: pa.Array) -> Iterator[pa.Array]:
    """The floating-point arrays in an array."""
    if pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _numbers(array.field(index))
    elif pa.types.is_map(array.type):
        yield from _numbers(array.keys)
        yield from _numbers(array.items)
    elif pa.types.is_nested(array.type):
        yield from _numbers(array.flatten())
    elif pa.types.is_floating(array.type):
        yield array


def _holds(numbers: pa.Array) -> bool:
    values = numbers.drop_null().to_numpy(zero_copy_only=False)
    return bool((np.isnan(values) | ((values == 0) & np.signbit(values))).any())


def _rewritten(table: Table, handle: DeltaTable, path: str) -> list[StagedFile]:
    """A file's rows in a new file of the same partition."""
    partition = handle.metadata().partition_columns
    schema = pa.schema([field for field in pa.schema(handle.schema()) if field.name not in partition])
    writer = StagedWriter(table, schema, folder=path[: path.rfind("/") + 1])
    try:
        for rows in read_parts(table, schema, [path], BATCH_ROWS):
            writer.write(rows)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _renamed(lakehouse: Lakehouse, table: Table, path: str) -> StagedFile:
    """A copy of a file in the same partition, with a current name."""
    codec = _CODEC.search(path)
    name = str(PurePosixPath(path).with_name(new_name(codec[1] if codec else "copied")))
    try:
        return copy_file(lakehouse, table, path, table, name)
    except FileNotFoundError:
        raise LostFileError(f"{table.uri}/{path} is gone, though the table's log lists it") from None
    except pa.ArrowInvalid as error:
        raise LostFileError(f"{table.uri}/{path} cannot be read: {error}") from error
