"""Rows of bronze's files that violate rules, as workers get them that read the files (`rule_job` finds them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from game_events.lakehouse.event_columns import BRONZE_ONLY, OWN_COLUMNS
from game_events.pipeline.quality.judging import DISPOSITION, REJECT, RuleColumns, RuleSplit

#: A row's place in its file.
ROW = "_row"


@dataclass(frozen=True)
class Violations:
    """The rows that violate rules; picklable.

    Attributes:
        split: what is done with them.
        files: path of a file below the table's folder -> its violating rows, ascending, as an Arrow stream: `ROW`, and the
            bits of the rules. A file without any is left out.
    """

    split: RuleSplit
    files: Mapping[str, bytes]

    def of_file(self, path: str) -> pa.Table:
        """A file's violating rows."""
        data = self.files.get(path)
        return _read(data) if data is not None else bits_schema(self.split.rules).empty_table()

    def schema(self, columns: pa.Schema, of_file: pa.Table) -> pa.Schema:
        """Columns to read of a file: those of the table, and bronze's own if rows are rejected."""
        rejects = self.split.quarantine is not None and bool((self._dispositions(of_file) == REJECT).any())
        return pa.schema([*columns, *(OWN_COLUMNS.field(name) for name in BRONZE_ONLY)]) if rejects else columns

    def added(self, rows: pa.Table, first: int, of_file: pa.Table) -> pa.Table:
        """The rows, the first of which has the place `first`, with `RuleSplit.columns`: bronze's own of rejected rows only."""
        begin, end = np.searchsorted(of_file.column(ROW).to_numpy(), [first, first + rows.num_rows])
        mine = of_file.slice(begin, end - begin)
        places, dispositions = mine.column(ROW).to_numpy() - first, self._dispositions(mine)
        more = {name: _at(places, mine.column(name).to_numpy(), rows.num_rows) for name in self.split.rules.names}
        if self.split.has_disposition:
            more[DISPOSITION] = _at(places, dispositions, rows.num_rows)
        if self.split.quarantine is not None:
            more |= _only(rows, places[dispositions == REJECT])
        table = {name: rows.column(name) for name in rows.column_names if name not in BRONZE_ONLY}
        return pa.table(table | {name: more[name] for name in self.split.columns})

    def _dispositions(self, violating: pa.Table) -> npt.NDArray[np.int32]:
        rules = self.split.rules
        return rules.dispositions([violating.column(name).to_numpy() for name in rules.names])


def _at(places: npt.NDArray[np.int64], values: npt.NDArray[Any], count: int) -> pa.Array:
    """So many values: these at their places, and zero elsewhere: no rule is violated, and the row is kept."""
    found = np.zeros(count, values.dtype)
    found[places] = values
    return pa.array(found)


def _only(rows: pa.Table, places: npt.NDArray[np.int64]) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Bronze's own columns, with values at these places and NULL elsewhere."""
    if not len(places):
        return {name: pa.nulls(rows.num_rows, OWN_COLUMNS.field(name).type) for name in BRONZE_ONLY}
    taken = rows.select(BRONZE_ONLY).take(pa.array(places)).combine_chunks()
    source = np.full(rows.num_rows, -1)
    source[places] = np.arange(len(places))
    return {name: taken.column(name).take(pa.array(source, mask=source < 0)) for name in BRONZE_ONLY}


def bits_schema(rules: RuleColumns) -> pa.Schema:
    """Columns of a file's violating rows."""
    return pa.schema([(name, pa.int64()) for name in (ROW, *rules.names)])


def _read(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all().combine_chunks()
