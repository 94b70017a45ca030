"""Two texts of one schema id compared.

Two texts of one id mean the same if every record is decoded by both to the same values. A registry may spell a schema otherwise
after an upgrade or a move to another product: keys in another order, maps as messages, a descriptor in place of text, other
comments and options. The texts are compiled only if they differ.
"""

from collections import deque
from collections.abc import Iterator

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from game_events.decoding.avro_schema import AvroSchema, AvroType
from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.json_schema import JsonSchema
from game_events.decoding.projection import ColumnsDecoder, ColumnsSchema, CompiledSchema
from game_events.decoding.protobuf.schema import DECLARED, ProtobufSchema, members
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
    return _first_change(before, after)


def _first_change(before: CompiledSchema, after: CompiledSchema) -> str | None:
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
                yield from _of_enum(item.enum_type)


def _of_enum(kind: EnumDescriptor) -> Iterator[tuple[str, str]]:
    # Of a closed one, numbers without a name are unknown fields.
    yield f"the enum {kind.full_name}", "closed" if kind.is_closed else "open"
    for number, value in sorted(kind.values_by_number.items()):
        yield f"{number} of the enum {kind.full_name}", value.name


def _label(item: FieldDescriptor) -> str:
    if item.is_repeated:
        return "repeated "
    return "optional " if item.has_presence else ""


def _shown(item: FieldDescriptor) -> str:
    named = item.message_type or item.enum_type
    kind = named.full_name if named is not None else DECLARED[item.type]
    shown = f"{_label(item)}{kind} {item.full_name if item.is_extension else item.name}"
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
