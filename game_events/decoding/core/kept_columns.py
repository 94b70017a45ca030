"""Columns that the settings name keep the kinds they need, whichever record comes first.

Whose an event is, when it happened and which entity it belongs to is asked of one column each. If the first record that comes
decided on its kind, one stray record could take the column from all others for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

#: What follows the double underscore of a column that has another kind than the first one of its name.
SUFFIXES = ("string", "bigint", "decimal", "float", "double", "boolean", "binary", "date", "timestamp")
#: Kinds that a column of texts holds as well, in decimal digits: 7 and "7" are the same person.
WHOLE_NUMBERS = ("bigint", "decimal")


@dataclass(frozen=True)
class Kept:
    """One column of the settings.

    Attributes:
        column: its name.
        field: what fields are called that land in it.
        kind: their kind.
        numbers: whole numbers land in it too, as texts.
    """

    column: str
    field: str
    kind: str
    numbers: bool = False

    def takes(self, name: str, kind: str) -> bool:
        """Whether a field with this clean name and kind lands in it."""
        wanted = kind == self.kind or (self.numbers and kind in WHOLE_NUMBERS)
        return wanted and name.lower() == self.field.lower()


class ColumnSettings(Protocol):
    """The settings that name columns."""

    @property
    def entity_column(self) -> str:
        """The column that names the entity."""

    @property
    def key_column(self) -> str:
        """The column that says whose an event is."""

    @property
    def time_column(self) -> str:
        """The column that says when it happened."""


def kept_columns(settings: ColumnSettings) -> Mapping[str, Kept]:
    """The columns that settings name, by their names in lower case: entity and key are texts, the time is a timestamp.

    A name that ends in a kind (`device_id__bigint`) asks for the fields `device_id` of that kind.
    """
    time, entity = _kept(settings.time_column, "timestamp"), _kept(settings.entity_column, "string")
    key = _kept(settings.key_column, "string", numbers=True)
    return {kept.column.lower(): kept for kept in (time, entity, key)}


def base_of(column: str) -> str:
    """What the fields are called of which a column holds one kind: its name without the kind."""
    return _kept(column, "").field


def is_of_any_kind(column: str, named: str) -> bool:
    """Whether a column holds the fields that `named` holds, of whatever kind: `device_id`, `device_id__bigint`."""
    field = base_of(named)
    return column == field or column.startswith(f"{field}__")


def _kept(column: str, kind: str, *, numbers: bool = False) -> Kept:
    field, double, suffix = column.rpartition("__")
    if field and double and suffix in SUFFIXES:
        return Kept(column, field, suffix)
    return Kept(column, column, kind, numbers)
