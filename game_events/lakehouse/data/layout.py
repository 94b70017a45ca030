"""Rows -> files of one day each (`LAYOUT`), and which files of a version are so.

As rows are written, a day with enough of them gets a file of its own; days with few rows share one, sorted by time, so that an
increment with late rows is a file or two, not thirty. Maintenance divides the shared ones (`lakehouse/maintenance.py`).

A file's day is what its bounds say: in Delta's log for whoever plans, in its footer for whoever reads. Guarantee: a layout
changes no row, only its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.lakehouse.data.staging import ROW_GROUP_BYTES, StagedFile, StagedWriter, buffer_bytes, has_mark
from game_events.lakehouse.tables import Table

#: Day numbers since 1970; of NULL, and of times outside the years 1 to 9999, for which files have no bounds.
Days = npt.NDArray[np.int64]
NO_DAY = np.iinfo(np.int64).max
ODD_DAY = NO_DAY - 1
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
#: Days that 16-bit numbers can tell apart, besides those two.
_MOST_SHORT = 2**16 - 2
#: What the name of a file with these alone says: it has no bounds, as others may have that hold them among other rows.
ODD = "odd"

#: Files of days that are open at a time, for each game: each needs a file handle.
OPEN_DAYS = 8
#: The same in maintenance, which writes one table's files.
MOST_OPEN_DAYS = 128

_UNITS_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def has_days(schema: pa.Schema, column: str | None) -> bool:
    """Whether there is such a column, of times or dates."""
    if column is None or column not in schema.names:
        return False
    kind = schema.field(column).type
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def days_of(column: pa.ChunkedArray) -> Days:
    """The number of the day (UTC) of each time or date."""
    per_day = _UNITS_A_DAY[column.type.unit] if pa.types.is_timestamp(column.type) else 1
    values = column.cast(pa.int32()) if per_day == 1 else column.cast(pa.int64())
    known = pc.fill_null(values, 0).to_numpy().astype(np.int64, copy=False)
    days: Days = known // per_day
    days[(days < _FIRST_DAY) | (days > _LAST_DAY)] = ODD_DAY
    if column.null_count:
        days[pc.is_null(column).to_numpy()] = NO_DAY
    return days


def by_day(days: Days) -> npt.NDArray[np.intp]:
    """The order of rows by day; rows of one day keep theirs."""
    known = days[days < ODD_DAY]
    first = known.min() if len(known) else 0
    if len(known) and known.max() - first >= _MOST_SHORT:
        return np.argsort(days, kind="stable")
    # numpy sorts 16-bit numbers in linear time.
    short = np.where(days < ODD_DAY, np.minimum(days, _LAST_DAY) - first, _MOST_SHORT + (days == NO_DAY))
    return np.argsort(short.astype(np.uint16), kind="stable")


def runs_of(days: Days) -> list[tuple[int, int, int]]:
    """Day, first row and end of each run of rows of one day."""
    starts = np.append(0, 1 + np.flatnonzero(days[1:] != days[:-1]))
    ends = np.append(starts[1:], len(days))
    return list(zip(days[starts].tolist(), starts.tolist(), ends.tolist(), strict=True))


@dataclass
class _Waiting:
    """Rows of one day that have no file yet."""

    parts: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def add(self, rows: pa.Table, size: int) -> None:
        self.parts.append(rows)
        self.rows += rows.num_rows
        self.size += size


class DayWriter:
    """As a `StagedWriter`, into files of one day, and one for the days with few rows."""

    def __init__(
        self, table: Table, schema: pa.Schema, game: str | None = None, folder: str = "", own_rows: int | None = None
    ) -> None:
        """`game`, `folder`: as of a `StagedWriter`. `own_rows`: rows for which a day gets its file; None: those of `sizes`."""
        self._column = str(table.file_layout.day)
        self._new = partial(StagedWriter, table, schema, game, folder=folder)
        self._own_rows = table.sizes.day_rows if own_rows is None else own_rows
        self._most_open = OPEN_DAYS if own_rows is None else MOST_OPEN_DAYS
        #: Rows of fewer are not kept apart from other days' rows before they are sorted.
        self._fewest = self._own_rows // 16
        self._shared = self._new()
        #: Day -> its writer, the one that was written to last at the end.
        self._own: dict[int, StagedWriter] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._few: list[pa.Table] = []
        self._held = 0
        self.schema = self._shared.schema
        self.files: list[StagedFile] = []

    def write_columns(self, columns: Mapping[str, pa.Array | pa.ChunkedArray], count: int) -> None:
        """As of a `StagedWriter`."""
        self.write(self.rows_of(columns, count))

    def rows_of(self, columns: Mapping[str, pa.Array | pa.ChunkedArray], count: int) -> pa.Table:
        """As of a `StagedWriter`."""
        return self._shared.rows_of(columns, count)

    def write(self, rows: pa.Table, size: int | None = None) -> None:
        """Add rows in any order; those in the order of days are not copied."""
        if not rows.num_rows:
            return
        size = buffer_bytes(rows) if size is None else size
        days = days_of(rows.column(self._column))
        if (days[1:] < days[:-1]).any():
            order = by_day(days)
            days = days[order]
            rows = rows.take(pa.array(order))
        few = 0
        for day, begin, end in runs_of(days):
            if day in self._own or day in self._waiting or day == ODD_DAY or end - begin >= self._fewest:
                self._add_few(rows.slice(few, begin - few))
                self._add(day, rows.slice(begin, end - begin), size * (end - begin) // len(days))
                few = end
        self._add_few(rows.slice(few))
        self._held += size
        if self._held >= ROW_GROUP_BYTES:
            self.flush()

    def _add_few(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._few.append(rows)

    def _add(self, day: int, rows: pa.Table, size: int) -> None:
        """Rows of one day: to its file, or to those that wait for more."""
        if day in self._own:
            writer = self._own[day] = self._own.pop(day)
            writer.write(rows, size)
            return
        waiting = self._waiting.setdefault(day, _Waiting())
        waiting.add(rows, size)
        if waiting.rows >= self._own_rows or day == ODD_DAY:
            self._open(day)

    def _open(self, day: int) -> None:
        """Give a day a file, with the rows that wait."""
        waiting = self._waiting.pop(day)
        writer = self._own[day] = self._new(mark=ODD if day == ODD_DAY else "")
        writer.write(pa.concat_tables(waiting.parts), waiting.size)
        if len(self._own) > self._most_open:
            oldest = next(iter(self._own))
            self.files += self._own.pop(oldest).close()

    def flush(self) -> None:
        """Write what is in memory: a row group of each file."""
        self._share()
        self._shared.flush()
        for writer in self._own.values():
            writer.flush()
        self._held = 0

    def _share(self) -> None:
        """Rows of days without a file of their own, in the order of their times, to the shared file."""
        parts = [*self._few, *(rows for waiting in self._waiting.values() for rows in waiting.parts)]
        self._forget()
        if parts:
            rows = pa.concat_tables(parts)
            self._shared.write(rows.take(pc.sort_indices(rows, [(self._column, "ascending")])))

    def _forget(self) -> None:
        self._few = []
        self._waiting = {}

    def close(self) -> list[StagedFile]:
        """Write the rest; returns every file of this writer, each complete."""
        self._share()
        for writer in (self._shared, *self._own.values()):
            self.files += writer.close()
            writer.files = []
        self._own = {}
        return self.files

    def abort(self) -> None:
        """Delete everything that was written; `close` then returns no file."""
        self._forget()
        self._shared.files += self.files
        self.files = []
        for writer in (self._shared, *self._own.values()):
            writer.abort()
        self._own = {}


#: What writes rows to files of one table.
Writer = StagedWriter | DayWriter


def writer_of(table: Table, schema: pa.Schema, game: str | None = None, *, short_lived: bool = False) -> Writer:
    """The writer of a table's new files, in its layout; a table whose rows have no times is written without."""
    if has_days(schema, table.file_layout.day):
        return DayWriter(table, schema, game)
    return StagedWriter(table, schema, game, short_lived=short_lived)


def days_of_files(actions: pa.Table, column: str) -> list[int | None]:
    """The day of each file (`add_actions`), by its bounds; NO_DAY: its rows have none; None: several days, or nobody knows."""
    unknown: list[int | None] = [None] * actions.num_rows
    if f"null_count.{column}" not in actions.column_names:
        return unknown
    has_bounds = f"min.{column}" in actions.column_names
    bounds = [days_of(actions.column(f"{end}.{column}")).tolist() if has_bounds else unknown for end in ("min", "max")]
    others = (actions.column(name).to_pylist() for name in ("path", "num_records", f"null_count.{column}"))
    return [_day_of_file(*file) for file in zip(*others, *bounds, strict=True)]


def _day_of_file(path: str, rows: int | None, nulls: int | None, first: int | None, last: int | None) -> int | None:
    if nulls is None or rows is None:
        return None
    if first in (None, NO_DAY):
        return NO_DAY if nulls == rows else ODD_DAY if has_mark(path, ODD) else None
    return first if first == last and not nulls else None


class RangeWriter:
    """Rows in the order of their values of a column -> files of a range of values each."""

    def __init__(self, table: Table, schema: pa.Schema, folder: str, column: str, bounds: pa.Array) -> None:
        """`bounds`: the last value of each file but the last one, in their order."""
        self._column = column
        self._bounds = bounds
        mark = table.file_layout.mark
        self._writers = [StagedWriter(table, schema, folder=folder, mark=mark) for _ in range(len(bounds) + 1)]
        self._held = 0

    def write(self, rows: pa.Table, size: int) -> None:
        """Add rows; NULLs are the last ones."""
        values = rows.column(self._column)
        ends = [pc.sum(pc.less_equal(values, bound)).as_py() or 0 for bound in self._bounds]
        begin = 0
        for writer, end in zip(self._writers, [*ends, rows.num_rows], strict=True):
            if end > begin:
                writer.write(rows.slice(begin, end - begin), size * (end - begin) // rows.num_rows)
                begin = end
        self._held += size
        if self._held >= ROW_GROUP_BYTES:
            self._held = 0
            for writer in self._writers:
                writer.flush()

    def close(self) -> list[StagedFile]:
        """Write the rest; returns every file of this writer, each complete."""
        return [file for writer in self._writers for file in writer.close()]

    def abort(self) -> None:
        """Delete everything that was written."""
        for writer in self._writers:
            writer.abort()


def cut(values: pa.Array, parts: int) -> pa.Array:
    """The values, of some rows, at which all rows are cut into so many ranges; fewer, where a value is that frequent."""
    known = values.drop_null()
    ordered = known.take(pc.sort_indices(known))
    places = [len(ordered) * part // parts for part in range(1, parts)] if len(ordered) else []
    return pc.unique(ordered.take(pa.array(places, pa.int64())))
