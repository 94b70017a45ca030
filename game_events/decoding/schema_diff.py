"""Schemas compared: two versions by field, with the effects on columns, and two texts of one id.

Two texts of one id mean the same if every record is decoded by both to the same values. A registry may spell a schema otherwise
after an upgrade or a move to another product: keys in another order, maps as messages, a descriptor in place of text, other
comments and options. The texts are compiled only if they differ.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from google.protobuf.descriptor import FieldDescriptor

from game_events.decoding.avro_schema import AvroSchema, AvroType
from game_events.decoding.columns import ColumnMap, Field, FieldId, field_key, path_inside
from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.json_schema import JsonSchema
from game_events.decoding.projection import ColumnsDecoder, ColumnsSchema, CompiledSchema, EnumValues
from game_events.decoding.protobuf.schema import DECLARED, ProtobufSchema, members
from game_events.errors import DataError

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
            made = FieldColumn(message, (*path, item.id), names + item.name, item, column + own)
            yield made
            yield from walk(message, item.children, made.path, f"{made.names}.", f"{made.column}.", path_inside(key, item))

    return [made for message, fields in messages.items() for made in walk(message, fields, (), "", "", ())]


def compare(old: Messages, new: Messages, columns: ColumnMap | None = None) -> list[Change]:
    """Changes from `old` to `new`; `columns`: map of the table, default: of one that begins with the old version."""
    known = columns if columns is not None else ColumnMap()
    for version in (old, new):
        for message, fields in version.items():
            known = known.with_message(message, fields)
    changes = []
    for message in sorted(set(old) | set(new)):
        if message not in old:
            effect = "its columns are added; shared by name and type"
            changes.append(Change(Kind.MESSAGE_ADDED, message, "", None, message, effect))
        elif message not in new:
            changes.append(Change(Kind.MESSAGE_REMOVED, message, "", message, None, "its columns stay"))
        else:
            before = {f.path: f for f in field_columns({message: old[message]}, known)}
            after = {f.path: f for f in field_columns({message: new[message]}, known)}
            changes += _changes(before, after)
    return changes


def compare_enums(old: Mapping[str, EnumValues], new: Mapping[str, EnumValues]) -> list[Change]:
    """Changes of enums that both versions have; they do not affect columns."""
    changes = []
    for enum in sorted(set(old) & set(new)):
        for known_by in {**old[enum], **new[enum]}:
            was, now = old[enum].get(known_by), new[enum].get(known_by)
            number = f" = {known_by}" if isinstance(known_by, int) else ""
            before, after = f"{was}{number}", f"{now}{number}"
            if was is None:
                effect = f"rows of this version may hold {now}"
                changes.append(Change(Kind.VALUE_ADDED, enum, now or "", None, after, effect))
            elif now is None:
                changes.append(Change(Kind.VALUE_REMOVED, enum, was, before, None, f"older rows keep {was}"))
            elif was != now:
                effect = f"rows of this version hold {now}, older rows keep {was}"
                changes.append(Change(Kind.VALUE_RENAMED, enum, now, before, after, effect))
    return changes


def _changes(before: Mapping[Path, FieldColumn], after: Mapping[Path, FieldColumn]) -> Iterator[Change]:
    """Changes of the fields of one message type, without those below an added or removed field."""
    for path in sorted(set(before) | set(after), key=lambda path: [(isinstance(step, str), step) for step in path]):
        if all((path[:n] in before) == (path[:n] in after) for n in range(1, len(path))):
            change = _change(before.get(path), after.get(path))
            if change is not None:
                yield change


def _change(before: FieldColumn | None, after: FieldColumn | None) -> Change | None:
    newest = after or before
    assert newest is not None  # noqa: S101 - a path is of one of them
    if before is None:
        kind = Kind.ADDED
        effect = f"column {newest.column}; NULL in rows of older versions"
    elif after is None:
        kind = Kind.REMOVED
        effect = f"column {newest.column} stays; NULL in rows of this version"
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


def difference(old: RegistrySchema, new: RegistrySchema) -> str | None:
    """The first thing that two schemas of one id decode otherwise, in words ("... instead of" what the old one has); or None.

    A reference that only one of them has is taken for one that a registry has lost, or has again: it counts for both.

    Raises:
        TransientError: as `compile_schema`.
    """
    mine = dict(old.references)
    if (old.format, old.text) == (new.format, new.text) and all(mine.get(name, text) == text for name, text in new.references):
        return None
    if old.format != new.format:
        return f"its format is {new.format} instead of {old.format}"
    before, after = _compiled(old, new), _compiled(new, old)
    if isinstance(before, str) and isinstance(after, str):
        return None  # neither decodes any record
    if isinstance(before, str):
        return f"the old text does not compile ({before})"
    if isinstance(after, str):
        return f"the new text does not compile ({after})"
    was, now = dict(_described(before)), dict(_described(after))
    places = (place for place in was | now if was.get(place) != now.get(place))
    return next((f"{place} is {now.get(place, 'nothing')} instead of {was.get(place, 'nothing')}" for place in places), None)


def _compiled(schema: RegistrySchema, other: RegistrySchema) -> CompiledSchema | str:
    """The compiled schema, with the references that only the other has; or the compiler's error."""
    mine = dict(schema.references)
    more = tuple((name, text) for name, text in other.references if name not in mine)
    try:
        return compile_schema(RegistrySchema(schema.schema_id, schema.format, schema.text, (*more, *schema.references)))
    except DataError as error:
        return str(error)


def _described(schema: CompiledSchema) -> Iterator[tuple[str, str]]:
    """All that decoding knows of a schema: each place in it once, with what is there."""
    match schema:
        case ProtobufSchema():
            return _of_protobuf(schema)
        case AvroSchema():
            return _of_avro(schema.root)
        case JsonSchema():
            return _of_json(schema)
        case ColumnsSchema():
            return ((f"column {item.name!r}", item.declared) for item in ColumnsDecoder(schema).fields)
    raise TypeError(type(schema))


def _of_protobuf(schema: ProtobufSchema) -> Iterator[tuple[str, str]]:
    paths = schema.paths_without_entries
    yield from ((f"message index {list(path)}", name) for path, name in sorted(paths.items()))
    waiting = deque(schema.pool.FindMessageTypeByName(name) for name in paths.values())
    seen: set[str] = set()
    while waiting:
        message = waiting.popleft()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        is_set = message.GetOptions().message_set_wire_format
        yield f"the encoding of {message.full_name}", "that of a message set" if is_set else "that of messages"
        for item in sorted(members(message, schema.pool), key=lambda f: int(f.number)):
            yield f"field {item.number} of {message.full_name}", _shown(item)
            if item.message_type is not None:
                waiting.append(item.message_type)
            if item.enum_type is not None and item.enum_type.full_name not in seen:
                seen.add(item.enum_type.full_name)
                # Of a closed one, numbers without a name are unknown fields.
                yield f"the enum {item.enum_type.full_name}", "closed" if item.enum_type.is_closed else "open"
                for number, value in sorted(item.enum_type.values_by_number.items()):
                    yield f"{number} of the enum {item.enum_type.full_name}", value.name


def _shown(item: FieldDescriptor) -> str:
    named = item.message_type or item.enum_type
    kind = named.full_name if named is not None else DECLARED[item.type]
    label = "repeated " if item.is_repeated else "optional " if item.has_presence else ""
    shown = f"{label}{kind} {item.full_name if item.is_extension else item.name}"
    if item.message_type is not None and item.message_type.GetOptions().map_entry:
        shown += " (a map)"
    if item.type == FieldDescriptor.TYPE_GROUP:
        shown += " (a group)"
    # A oneof of one member (proto3 `optional`) says no more than its presence.
    if item.containing_oneof is not None and len(item.containing_oneof.fields) > 1:
        numbers = sorted(f.number for f in item.containing_oneof.fields)
        shown += f" (one of the fields {', '.join(map(str, numbers))})"
    return shown


def _of_avro(root: AvroType) -> Iterator[tuple[str, str]]:
    waiting = deque([("its type", root, "")])
    seen: set[str] = set()
    while waiting:
        place, kind, name = waiting.popleft()
        yield place, _shown_avro(kind) + name
        waiting += [(f"type {number} in {place}", inner, "") for number, inner in enumerate(kind.items)]
        if kind.kind not in ("record", "enum") or kind.name in seen:
            continue
        seen.add(kind.name)
        yield from ((f"symbol {number} of the enum {kind.name}", symbol) for number, symbol in enumerate(kind.symbols))
        for number, item in enumerate(kind.fields):
            once = f" (once {item.identity})" if item.identity != item.name else ""
            waiting.append((f"field {number} of {kind.name}", item.type, f" {item.name}{once}"))


def _shown_avro(kind: AvroType) -> str:
    shown = kind.name if kind.name == kind.kind else f"{kind.kind} {kind.name}"
    if kind.kind == "fixed":
        shown += f" of {kind.size} bytes"
    if kind.logical is None:
        return shown
    digits = f"({kind.logical.precision}, {kind.logical.scale})" if kind.logical.precision else ""
    return f"{shown} ({kind.logical.name}{digits})"


def _of_json(schema: JsonSchema) -> Iterator[tuple[str, str]]:
    yield "its title", schema.message
    waiting = [("the document", schema.type)]
    while waiting:
        place, kind = waiting.pop()
        yield place, kind.kind
        waiting += [(f"{name!r} of {place}", inner) for name, inner in kind.fields]
        if kind.item is not None:
            waiting.append((f"an item of {place}", kind.item))
