"""Columns reserved by the settings (entity, key, time) with their kinds.

Without them the first record would decide on the kind of such a column, and one stray record could exclude all others for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from game_events.column_names import folded

if TYPE_CHECKING:  # its libraries would be imported by the compiler's child and by workers
    from game_events.config.settings import Settings

#: Suffix, after a double underscore, of a column of another kind than the first one of its name.
SUFFIXES = ("string", "bigint", "decimal", "float", "double", "boolean", "binary", "date", "timestamp")
#: Kinds that a string column also holds, as decimal digits: 7 and "7" are the same key.
WHOLE_NUMBERS = ("bigint", "decimal")


@dataclass(frozen=True)
class Kept:
    """A reserved column.

    Attributes:
        column: its name.
        field: name of the fields that it holds.
        kind: their kind.
        numbers: it also holds whole numbers, as strings.
    """

    column: str
    field: str
    kind: str
    numbers: bool = False

    def takes(self, name: str, kind: str) -> bool:
        """Whether it holds fields of this clean name and kind."""
        wanted = kind == self.kind or (self.numbers and kind in WHOLE_NUMBERS)
        return wanted and folded(name) == folded(self.field)


def kept_columns(settings: Settings) -> Mapping[str, Kept]:
    """Reserved columns by lower-case name: entity and key are strings, the time is a timestamp.

    A name that ends in a kind (`device_id__bigint`) is reserved for fields `device_id` of that kind.
    """
    time, entity = _kept(settings.time_column, "timestamp"), _kept(settings.entity_column, "string")
    key = _kept(settings.key_column, "string", numbers=True)
    return {folded(kept.column): kept for kept in (time, entity, key)}


def base_of(column: str) -> str:
    """Name of a column's fields: without the suffix of a kind."""
    return _kept(column, "").field


def is_of_any_kind(column: str, named: str) -> bool:
    """Whether a column holds the same fields as `named`, of any kind: `device_id`, `device_id__bigint`."""
    field = base_of(named)
    return column == field or column.startswith(f"{field}__")


def _kept(column: str, kind: str, *, numbers: bool = False) -> Kept:
    field, double, suffix = column.rpartition("__")
    if field and double and suffix in SUFFIXES:
        return Kept(column, field, suffix)
    return Kept(column, column, kind, numbers)
