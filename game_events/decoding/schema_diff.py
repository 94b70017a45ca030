"""Schemas compared: two versions by field, with the effects on columns, and two texts of one id.

Two texts of one id mean the same if every record is decoded by both to the same values. A registry may spell a schema otherwise
after an upgrade or a move to another product: keys in another order, maps as messages, a descriptor in place of text, other
comments and options. The texts are compiled only if they differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from game_events.decoding.avro.schema import AvroSchema, AvroType
from game_events.decoding.columns import ColumnMap, Field, FieldId, field_key, path_inside
from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.json.schema import JsonSchema, json_type
from game_events.decoding.projection import CompiledSchema, EnumValues
from game_events.decoding.protobuf.fields import DECLARED
from game_events.decoding.protobuf.schema import ProtobufSchema
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
            number = f" = {known_by}" if isinstance(known_by, int) else ""
            change = _value_change(enum, number, old[enum].get(known_by), new[enum].get(known_by))
            if change is not None:
                changes.append(change)
    return changes


def _value_change(enum: str, number: str, was: str | None, now: str | None) -> Change | None:
    """The change of an enum's value, by its names; `number`: what follows them in a declaration."""
    before = f"{was}{number}"
    after = f"{now}{number}"
    if was is None:
        return Change(Kind.VALUE_ADDED, enum, now or "", None, after, f"rows of this version may hold {now}")
    if now is None:
        return Change(Kind.VALUE_REMOVED, enum, was, before, None, f"older rows keep {was}")
    if was == now:
        return None
    return Change(Kind.VALUE_RENAMED, enum, now, before, after, f"rows of this version hold {now}, older rows keep {was}")


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
    return next(_differences(before, after), None)


def _differences(before: CompiledSchema, after: CompiledSchema) -> Iterator[str]:
    match before, after:
        case ProtobufSchema(), ProtobufSchema():
            yield from _of_protobuf(before, after)
        case AvroSchema(), AvroSchema():
            yield from _of_avro([(before.root.name, before.root, after.root)])
        case JsonSchema(), JsonSchema():
            yield from _of_json(before, after)
        case _:
            yield "it is of another kind"


def _compiled(schema: RegistrySchema, other: RegistrySchema) -> CompiledSchema | str:
    """The compiled schema, with the references that only the other has; or the compiler's error."""
    mine = dict(schema.references)
    more = tuple((name, text) for name, text in other.references if name not in mine)
    try:
        return compile_schema(RegistrySchema(schema.schema_id, schema.format, schema.text, (*more, *schema.references)))
    except DataError as error:
        return str(error)


def _of_protobuf(old: ProtobufSchema, new: ProtobufSchema) -> Iterator[str]:
    """Differences of message types, up to the first message type whose fields differ."""
    before, after = old.paths_without_entries, new.paths_without_entries
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            yield f"message index {list(path)} is {after.get(path, 'no type')} instead of {before.get(path, 'no type')}"
    waiting = [(old.pool.FindMessageTypeByName(name), new.pool.FindMessageTypeByName(name)) for name in before.values()]
    seen: set[str] = set()
    while waiting:
        one, other = waiting.pop()
        if one.full_name in seen:
            continue
        seen.add(one.full_name)
        if one.GetOptions().message_set_wire_format != other.GetOptions().message_set_wire_format:
            yield f"{one.full_name} is a message set in one of them only"
        mine, others = _fields(old, one), _fields(new, other)
        for number in sorted(mine.keys() | others.keys()):
            was, now = _shown(mine.get(number)), _shown(others.get(number))
            if was != now:
                yield f"field {number} of {one.full_name} is {now} instead of {was}"
                return
            yield from _of_enum(mine[number].enum_type, others[number].enum_type)
            inner = mine[number].message_type
            other_inner = others[number].message_type
            if inner is not None and other_inner is not None:
                waiting.append((inner, other_inner))


def _fields(schema: ProtobufSchema, message: Descriptor) -> dict[int, FieldDescriptor]:
    return {f.number: f for f in [*message.fields, *schema.pool.FindAllExtensions(message)]}


def _shown(item: FieldDescriptor | None) -> str:
    """A field as declared, without options."""
    if item is None:
        return "nothing"
    named = item.message_type or item.enum_type
    kind = named.full_name if named is not None else DECLARED[item.type]
    label = "repeated " if item.is_repeated else "optional " if item.has_presence else ""
    name = item.full_name if item.is_extension else item.name
    return f"{label}{kind} {name}{_remarks(item)}"


def _remarks(item: FieldDescriptor) -> str:
    """What the name and type of a field do not say."""
    remarks = ""
    if item.message_type is not None and item.message_type.GetOptions().map_entry:
        remarks += " (a map)"
    if item.type == FieldDescriptor.TYPE_GROUP:
        remarks += " (a group)"
    # A oneof of one member (proto3 `optional`) says no more than its presence.
    if item.containing_oneof is not None and len(item.containing_oneof.fields) > 1:
        numbers = sorted(f.number for f in item.containing_oneof.fields)
        remarks += f" (one of the fields {', '.join(map(str, numbers))})"
    return remarks


def _of_enum(old: EnumDescriptor | None, new: EnumDescriptor | None) -> Iterator[str]:
    """Differences of two enums of one name; none where fields have no enum."""
    if old is None or new is None:
        return
    if old.is_closed != new.is_closed:
        yield f"the enum {old.full_name} is {'closed' if new.is_closed else 'open'}: numbers without a name decode otherwise"
    before, after = ({number: value.name for number, value in enum.values_by_number.items()} for enum in (old, new))
    for number in sorted(before.keys() | after.keys()):
        if before.get(number) != after.get(number):
            now, was = after.get(number, "no value"), before.get(number, "no value")
            yield f"{number} of the enum {old.full_name} is {now} instead of {was}"


def _of_avro(waiting: list[tuple[str, AvroType, AvroType]]) -> Iterator[str]:
    """Differences of pairs of types, with their paths, up to the first pair whose inner types do not correspond."""
    seen: set[tuple[int, int]] = set()
    while waiting:
        path, old, new = waiting.pop()
        if (id(old), id(new)) in seen:
            continue
        seen.add((id(old), id(new)))
        if (old.kind, old.name, old.logical, old.size) != (new.kind, new.name, new.logical, new.size):
            yield f"{path} is {_shown_avro(new)} instead of {_shown_avro(old)}"
        other_member = next(_other_members(old, new), None)
        if other_member is not None:
            yield other_member
            return
        waiting += [(f"{old.name}.{f.name}", f.type, g.type) for f, g in zip(old.fields, new.fields, strict=True)]
        if len(old.items) != len(new.items):
            yield f"{path} has {len(new.items)} branches instead of {len(old.items)}"
            return
        waiting += [(path, inner, other) for inner, other in zip(old.items, new.items, strict=True)]


def _other_members(old: AvroType, new: AvroType) -> Iterator[str]:
    """Differences of the symbols of an enum, or the names of a record's fields."""
    for number, (was, now) in enumerate(zip_longest(old.symbols, new.symbols)):
        if was != now:
            yield f"symbol {number} of the enum {old.name} is {now or 'nothing'} instead of {was or 'nothing'}"
    names = [[(f.name, f.identity) for f in kind.fields] for kind in (old, new)]
    for number, (before, after) in enumerate(zip_longest(*names)):
        if before != after:
            yield f"field {number} of {old.name} is {_named(after)} instead of {_named(before)}"


def _shown_avro(kind: AvroType) -> str:
    name = kind.name if kind.name == kind.kind else f"{kind.kind} {kind.name}"
    size = f" of {kind.size} bytes" if kind.kind == "fixed" else ""
    if kind.logical is None:
        return name + size
    digits = f"({kind.logical.precision}, {kind.logical.scale})" if kind.logical.precision else ""
    return f"{name}{size} ({kind.logical.name}{digits})"


def _named(field: tuple[str, str] | None) -> str:
    if field is None:
        return "nothing"
    name, identity = field
    return name if name == identity else f"{name} (once {identity})"


def _of_json(old: JsonSchema, new: JsonSchema) -> Iterator[str]:
    """Differences of title and types, up to the first type of another kind."""
    if old.message != new.message:
        yield f"its title is {new.message} instead of {old.message}"
    waiting = [("the document", json_type(old), json_type(new))]
    while waiting:
        path, was, now = waiting.pop()
        before, after = dict(was.fields), dict(now.fields)
        for name in sorted(before.keys() ^ after.keys()):
            yield f"property {name} of {path} is {'gone' if name in before else 'new'}"
        if was.kind != now.kind:
            yield f"{path} is {now.kind} instead of {was.kind}"
            return
        waiting += [(name if path == "the document" else f"{path}.{name}", before[name], after[name]) for name in before]
        if was.item is not None and now.item is not None:
            waiting.append((path, was.item, now.item))
