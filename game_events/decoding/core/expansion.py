"""What records expand to when they are decoded: an empty element of a list has two bytes, and can be thousands of values.

Counted are cells: the eight bytes that each fixed part of a value takes in a row of Spark (org.apache.spark.sql.catalyst,
UnsafeRow). Texts and bytes come on top, and are no more than the record has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from game_events.decoding.core.reasons import DamageError, Reason
from game_events.decoding.core.wire_format import NO_ROWS, Rows

#: Bytes of a cell.
CELL_BYTES = 8
#: Cells of a record at most.
MAX_RECORD_CELLS = 8 * 1024**2
#: Cells that a worker decodes at a time, but for a single record.
MAX_BATCH_CELLS = 32 * 1024**2
#: Bytes of a text that one byte of a payload may stand for (an enum's value, a decimal's zeros): a batch's fit into 2 GiB.
MAX_SHORT_TEXT = 160
TOO_MANY = f"more than {MAX_RECORD_CELLS:,} values once decoded: NULLs and defaults of the elements of lists count"
#: A position, and what is there (a text: its end up to a multiple of eight).
_CELLS = (
    (pa.types.is_map, 4),
    (pa.types.is_decimal, 3),
    *((is_a, 2) for is_a in (pa.types.is_list, pa.types.is_string, pa.types.is_binary)),
)


def cells_of(kind: pa.DataType) -> int:
    """Cells of one value, without those of the elements of lists and maps in it."""
    if pa.types.is_struct(kind):
        return 2 + sum(cells_of(f.type) for f in kind)
    return next((cells for is_a, cells in _CELLS if is_a(kind)), 1)


def cells_of_element(kind: pa.DataType) -> int:
    """Cells of one element of a list, or of one entry of a map."""
    return cells_of(kind.key_type) + cells_of(kind.item_type) if pa.types.is_map(kind) else cells_of(kind.value_type)


def is_many(kind: pa.DataType) -> bool:
    """Whether it is a list or a map."""
    return bool(pa.types.is_list(kind) or pa.types.is_map(kind))


def elements_of(array: pa.Array) -> pa.Array:
    """All elements of lists, or values of maps, whole even where the array is a slice."""
    return array.items if pa.types.is_map(array.type) else array.values


@dataclass(frozen=True)
class Shape:
    """How many cells values have.

    Attributes:
        cells: of one value, without those of elements.
        lists: of the lists and maps in no other one: the members (of structs) that lead to it, and the shape of its elements.
    """

    cells: int
    lists: tuple[tuple[tuple[int | str, ...], Shape], ...] = ()

    @classmethod
    def of(cls, kinds: Iterable[pa.DataType]) -> Shape:
        """Of rows with columns of these types."""
        types = list(kinds)
        lists = [((index, *steps), inner) for index, kind in enumerate(types) for steps, inner in _lists(kind)]
        return cls(sum(map(cells_of, types)), tuple(lists))

    @cached_property
    def widest(self) -> int:
        """Most cells of one element of any list or map."""
        return max((max(inner.cells, inner.widest) for _, inner in self.lists), default=0)

    def in_lists(self, values: pa.RecordBatch | pa.Array) -> Rows:
        """Cells of the elements of each value, shape (n,)."""
        total = np.zeros(len(values), dtype=np.int64)
        for (first, *steps), inner in self.lists:
            held = values.column(first) if isinstance(values, pa.RecordBatch) else values.field(first)
            for step in steps:
                held = held.field(step)
            total += _in_elements(held, inner)
        return total


def _in_elements(held: pa.Array, inner: Shape) -> Rows:
    """Cells of the elements of each list."""
    if not len(held):
        return NO_ROWS  # the JVM sends no lists without any offset: to read it would end the process
    offsets = held.offsets.to_numpy().astype(np.int64)
    counts: Rows = np.diff(offsets)
    if not inner.lists:
        return counts * inner.cells
    elements = elements_of(held).slice(offsets[0], offsets[-1] - offsets[0])
    # The elements of lists of lists are lists themselves.
    each = _in_elements(elements, inner.lists[0][1]) if inner.lists[0][0] == () else inner.in_lists(elements)
    sums, places = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)]), offsets - offsets[0]
    total: Rows = counts * inner.cells + sums[places[1:]] - sums[places[:-1]]
    return total


def _lists(kind: pa.DataType) -> Iterator[tuple[tuple[int | str, ...], Shape]]:
    if is_many(kind):
        inside = kind.item_type if pa.types.is_map(kind) else kind.value_type
        yield (), Shape(cells_of_element(kind), tuple(_lists(inside)))
    elif pa.types.is_struct(kind):
        for index, member in enumerate(kind):
            yield from (((index, *steps), inner) for steps, inner in _lists(member.type))


def cuts(loads: npt.NDArray[np.int64] | npt.NDArray[np.float64], most: float) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive rows with a load of at most `most` together, or of a single row."""
    sums, begin = np.cumsum(loads), 0
    while begin < len(loads):
        done = sums[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(sums, done + most, side="right")))
        yield begin, end
        begin = end


def pieces(shape: Shape, lengths: npt.NDArray[np.integer], octets: int) -> Iterator[tuple[int, int]]:
    """Bounds of consecutive payloads that cannot become more than `MAX_BATCH_CELLS` together, or of a single one.

    `shape`: of the columns; `lengths`: bytes of the payloads, shape (n,); `octets`: the least that an element has.
    """
    # A packed number has one byte, and up to three cells.
    widest = max(shape.widest, 3 * octets) if shape.lists else 0
    if shape.cells * len(lengths) + int(lengths.sum()) * widest // octets <= MAX_BATCH_CELLS:
        yield 0, len(lengths)
    else:
        yield from cuts(shape.cells + lengths.astype(np.int64) * widest // octets, MAX_BATCH_CELLS)


@dataclass
class CellBudget:
    """Cells of elements that the current payload may still have."""

    cells: int = field(default=MAX_RECORD_CELLS, init=False)

    def reset(self) -> None:
        """Start the next payload."""
        self.cells = MAX_RECORD_CELLS

    @property
    def spent(self) -> int:
        """Cells of the current payload's elements."""
        return MAX_RECORD_CELLS - self.cells

    def spend(self, cells: int) -> None:
        """Before so many are made; raises DamageError if there are not as many left."""
        self.cells -= cells
        if self.cells < 0:
            raise DamageError(Reason.TOO_MANY_VALUES, TOO_MANY)
