"""Two texts of one schema id compared.

Two texts of one id mean the same if every record is decoded by both to the same values. A registry may spell a schema otherwise
after an upgrade or a move to another product: keys in another order, maps as messages, a descriptor in place of text, other
comments and options. The texts are compiled only if they differ.
"""

from collections.abc import Iterator
from itertools import zip_longest

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from game_events.decoding.avro.schema import AvroSchema, AvroType
from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.json.schema import JsonSchema, json_type
from game_events.decoding.projection import CompiledSchema
from game_events.decoding.protobuf.fields import DECLARED
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.errors import DataError


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
