"""Differences of two schema versions by field, and their effects on columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from game_events.decoding.core.column_map import ColumnMap, Field, FieldId, field_key, path_inside
from game_events.decoding.core.protocols import EnumValues

#: Message full name -> its fields, in one schema version.
Messages = Mapping[str, Sequence[Field]]
Path = tuple[FieldId, ...]


class Kind(StrEnum):
    """Kind of change of a field, a message type, or an enum's value."""

    MESSAGE_ADDED = "message added"
    MESSAGE_REMOVED = "message removed"
    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    RETYPED = "type changed"
    VALUE_ADDED = "enum value added"
    VALUE_REMOVED = "enum value removed"
    VALUE_RENAMED = "enum value renamed"


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        kind: kind of change.
        message: full name of the message type, or of the enum.
        field: path of names, or the value's name, in the newest version that has it; empty for a whole message.
        before, after: declaration in each version, if any.
        effect: effect on the column and on older rows.
    """

    kind: Kind
    message: str
    field: str
    before: str | None
    after: str | None
    effect: str

    def to_dict(self) -> dict[str, str | None]:
        """For `--json` and metadata."""
        return {
            "change": str(self.kind), "message": self.message, "field": self.field,
            "before": self.before, "after": self.after, "effect": self.effect,
        }  # fmt: skip


@dataclass(frozen=True)
class FieldColumn:
    """A field and its column."""

    message: str
    path: Path
    names: str
    field: Field
    column: str

    @property
    def declared(self) -> str:
        """The type as declared; for Avro and JSON as stored."""
        return self.field.declared or self.field.kind


def field_columns(messages: Messages, columns: ColumnMap) -> list[FieldColumn]:
    """All fields of a version, nested ones after their parents, with their columns in a map that has the version."""

    def walk(message: str, fields: Sequence[Field], path: Path, names: str, column: str, keys: Path) -> Iterator[FieldColumn]:
        for item in fields:
            key = (*keys, item.id)
            own = columns.names[field_key(message, key, item.kind)]
            found = FieldColumn(message, (*path, item.id), names + item.name, item, column + own)
            yield found
            yield from walk(message, item.children, found.path, f"{found.names}.", f"{found.column}.", path_inside(key, item))

    return [found for message, fields in messages.items() for found in walk(message, fields, (), "", "", ())]


def compare(old: Messages, new: Messages, columns: ColumnMap | None = None) -> list[Change]:
    """Changes from `old` to `new`; `columns`: map of the table, default: of one that begins with the old version."""
    known = columns if columns is not None else ColumnMap()
    for version in (old, new):
        for message, fields in version.items():
            known = known.with_message(message, fields)
    changes = []
    for message in sorted(set(old) | set(new)):
        if message not in old:
            changes.append(
                Change(Kind.MESSAGE_ADDED, message, "", None, message, "its columns are added; shared by name and type")
            )
        elif message not in new:
            changes.append(Change(Kind.MESSAGE_REMOVED, message, "", message, None, "its columns stay"))
        else:
            before = {f.path: f for f in field_columns({message: old[message]}, known)}
            after = {f.path: f for f in field_columns({message: new[message]}, known)}
            changes += [c for path in _order(before, after) if (c := _change(before.get(path), after.get(path))) is not None]
    return changes


def compare_enums(old: Mapping[str, EnumValues], new: Mapping[str, EnumValues]) -> list[Change]:
    """Changes of enums that both versions have; they do not affect columns."""
    changes = []
    for enum in sorted(set(old) & set(new)):
        before, after = old[enum], new[enum]
        for known_by in {**before, **after}:
            was, now = before.get(known_by), after.get(known_by)
            number = f" = {known_by}" if isinstance(known_by, int) else ""
            if was is None:
                kind, effect = Kind.VALUE_ADDED, f"rows of this version may hold {now}"
            elif now is None:
                kind, effect = Kind.VALUE_REMOVED, f"older rows keep {was}"
            elif was != now:
                kind, effect = Kind.VALUE_RENAMED, f"rows of this version hold {now}, older rows keep {was}"
            else:
                continue
            declared = [name and f"{name}{number}" for name in (was, now)]
            changes.append(Change(kind, enum, now or was or "", declared[0], declared[1], effect))
    return changes


def _order(before: Mapping[Path, FieldColumn], after: Mapping[Path, FieldColumn]) -> list[Path]:
    """Paths of both, without those below an added or removed field."""
    both = sorted(set(before) | set(after), key=lambda path: [(isinstance(step, str), step) for step in path])
    return [p for p in both if all((p[:n] in before) == (p[:n] in after) for n in range(1, len(p)))]


def _change(before: FieldColumn | None, after: FieldColumn | None) -> Change | None:
    newest = after or before
    assert newest is not None  # noqa: S101 - a path is of one of them
    if before is None:
        kind, effect = Kind.ADDED, f"column {newest.column}; NULL in rows of older versions"
    elif after is None:
        kind, effect = Kind.REMOVED, f"column {newest.column} stays; NULL in rows of this version"
    else:
        effect = f"the same column {after.column}"
        if before.column != after.column:
            effect = f"column {before.column} stays for older rows; rows of this version in {after.column}"
        if (before.field.declared, before.field.kind) != (after.field.declared, after.field.kind):
            kind = Kind.RETYPED
        elif before.field.name != after.field.name:
            kind = Kind.RENAMED
        else:
            return None
    declared = [None if version is None else f"{version.declared} {version.field.name}" for version in (before, after)]
    return Change(kind, newest.message, newest.names, declared[0], declared[1], effect)
