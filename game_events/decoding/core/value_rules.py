"""What becomes of a single value that its column's type does not take: the whole record is bad, or the value is NULL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from game_events.decoding.core.column_map import ColumnMap, Field, FieldId, field_key
from game_events.decoding.core.kept_columns import is_of_any_kind

if TYPE_CHECKING:  # its libraries would be imported by the compiler's child and by workers
    from game_events.config.settings import Settings

#: Stands for all columns that are not named.
OTHERS = "*"


@dataclass(frozen=True)
class ValueRules:
    """The rules of the settings; picklable.

    Attributes:
        null: lower-case column, or `OTHERS` -> whether its bad values become NULL; columns without an entry: no.
        never: lower-case columns of which no value becomes NULL, whatever kind they have.
        zone: time zone of times in JSON that name none; None: they are bad values.
        decimals: messages of protobuf that are decimals become decimals.
    """

    null: Mapping[str, bool] = field(default_factory=dict)
    never: frozenset[str] = frozenset()
    zone: str | None = None
    decimals: bool = False

    @classmethod
    def of(cls, settings: Settings) -> ValueRules:
        """As `on_bad_value`, `naive_times_zone` and `decimal_messages` say; entity, key and time column stay as they are."""
        chosen = settings.on_bad_value
        choices = chosen if isinstance(chosen, Mapping) else {OTHERS: chosen}
        never = (settings.entity_column, settings.key_column, settings.time_column)
        null = {column.lower(): choice == "null" for column, choice in choices.items()}
        decimals = settings.decimal_messages == "decimal"
        return cls(null, frozenset(map(str.lower, never)), settings.naive_times_zone, decimals)

    def __bool__(self) -> bool:
        """Whether bad values or times without a zone are not those of the default."""
        return self.zone is not None or any(self.null.values())

    def takes(self, column: str) -> bool:
        """Whether bad values of a column become NULL."""
        name = column.lower()
        return self.null.get(name, self.null.get(OTHERS, False)) and not any(is_of_any_kind(name, kept) for kept in self.never)


@dataclass(frozen=True)
class ColumnRules:
    """The rules for the columns of a map."""

    rules: ValueRules
    columns: ColumnMap

    def nullable(self, message: str, fields: Iterable[Field]) -> dict[FieldId, str]:
        """Fields at the top of a message type whose bad values become NULL -> their columns."""
        names = {item.id: self.columns.names[field_key(message, (item.id,), item.kind)] for item in fields}
        return {id_: column for id_, column in names.items() if self.rules.takes(column)}
