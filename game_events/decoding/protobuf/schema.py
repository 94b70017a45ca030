"""Protobuf schemas: descriptors of an id, message types by records' indexes, fields of a type, a scanner of `.proto` texts.

The tree of a message type's fields is what surrogate schema, columns and verification are derived from. It alone maps types
that Spark does not have (docs/decoding.md, "Protobuf types"). Fields that the native decoder cannot read are converted before:
a group becomes a delimited message, a great field number another one (`Node.native`), a message set a message.

The scanner reads package, messages, imports and map entries before compilation. Source: Protocol Buffers language
specification, "Lexical Elements", "Import Statement".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter, deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, cast

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from game_events.decoding.columns import UINT64, Field
from game_events.decoding.frame import IndexPath
from game_events.decoding.projection import CompiledSchema

FileSet = descriptor_pb2.FileDescriptorSet
Types = Sequence[descriptor_pb2.DescriptorProto]


@dataclass(frozen=True)
class ProtobufSchema(CompiledSchema):
    """Descriptors of one schema id, with a descriptor pool of its own.

    A map field has a nested message type, its entry, which serializers count differently: those that use the descriptor count
    it among the nested types, those that use the text, or a library that hides it, do not. An index of an entry, or past the
    last type, proves the other way of counting, as no record is a map entry.

    Attributes:
        main: name of the file with the message types.
        files: a serialized ``FileDescriptorSet``, dependencies before dependents.
        counts_entries: whether indexes count map entries unless they prove otherwise: where the registry has a descriptor, or
            text with explicit entries.
        decimals: whether messages that are decimals become decimals (setting `decimal_messages`).
    """

    main: str
    files: bytes
    counts_entries: bool = True
    decimals: bool = False
    indexed: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """See `CompiledSchema.size`."""
        return len(self.files)

    @cached_property
    def pool(self) -> DescriptorPool:
        """A pool with only this schema's files: two ids may define a name differently."""
        pool = DescriptorPool()
        for file in FileSet.FromString(self.files).file:
            pool.Add(file)
        return pool

    @cached_property
    def names(self) -> dict[IndexPath, str]:
        """See `CompiledSchema.names`; also of index paths that only exist if map entries are counted the other way."""
        usual, other = self._names
        return other | usual

    def paths(self, nested: Container[str] = ()) -> list[IndexPath]:
        """See `CompiledSchema.paths`."""
        return [path for name, path in self.type_paths().items() if len(path) == 1 or name in nested]

    def message(self, path: IndexPath) -> Descriptor | None:
        """The message type at an index path of the frame, or None if there is none."""
        return self.pool.FindMessageTypeByName(self.names[path]) if self.has(path) else None

    def other_meaning(self, path: IndexPath) -> str | None:
        """Full name of the other message type at an index path if map entries are counted the other way."""
        usual, other = self._names
        return other.get(path) if path in usual and other.get(path) != usual[path] else None

    def type_paths(self) -> dict[str, IndexPath]:
        """Full names of all message types of the file, nested ones included, with their index paths."""
        return {name: path for path, name in self._names[0].items()}

    def enums(self) -> dict[str, dict[int | str, str]]:
        """Full names of the enums of all files, with names of values by number (the first of aliases)."""
        enums: dict[str, dict[int | str, str]] = {}
        for file in FileSet.FromString(self.files).file:
            for name, enum in _enums(file, file.package):
                values = enums.setdefault(name, {})
                for value in enum.value:
                    values.setdefault(value.number, value.name)
        return enums

    @property
    def paths_without_entries(self) -> dict[IndexPath, str]:
        """Full names of message types by index path, as counted without map entries."""
        return self._names[int(self.counts_entries)]

    @cached_property
    def _names(self) -> tuple[dict[IndexPath, str], dict[IndexPath, str]]:
        """Full names of message types by index path: as `counts_entries`, and with map entries counted the other way."""
        top = (self.main_file.message_type, (), self.main_file.package)
        return dict(_types(*top, self.counts_entries)), dict(_types(*top, not self.counts_entries))

    @cached_property
    def main_file(self) -> descriptor_pb2.FileDescriptorProto:
        """The file with the message types."""
        return next(f for f in FileSet.FromString(self.files).file if f.name == self.main)


def _types(level: Types, above: IndexPath, around: str, entries: bool) -> Iterator[tuple[IndexPath, str]]:
    """Index paths and full names of message types without map entries, which indexes count or not."""
    for index, item in enumerate(level):
        if not item.options.map_entry:
            path = (*above, index)
            name = f"{around}.{item.name}" if around else item.name
            yield path, name
            yield from _types([m for m in item.nested_type if entries or not m.options.map_entry], path, name, entries)


def _enums(
    around: descriptor_pb2.FileDescriptorProto | descriptor_pb2.DescriptorProto, name: str
) -> Iterator[tuple[str, descriptor_pb2.EnumDescriptorProto]]:
    """Enums of a file, or of a message type and of those nested in it, by full name."""
    prefix = f"{name}." if name else ""
    yield from ((f"{prefix}{enum.name}", enum) for enum in around.enum_type)
    inner = around.message_type if isinstance(around, descriptor_pb2.FileDescriptorProto) else around.nested_type
    for message in inner:
        yield from _enums(message, f"{prefix}{message.name}")


#: Columns of `confluent.type.Decimal` and `google.type.Decimal`, whose values have a scale each; and of a sum of money.
DECIMAL = pa.decimal128(38, 18)
MONEY = pa.decimal128(28, 9)
#: Depth to which nested messages become columns; deeper ones become bytes.
MAX_DEPTH = 32
#: Fields of a tree at most, as types that refer to each other multiply; messages beyond become bytes.
MAX_NODES = 5_000
#: Greater field numbers are replaced (see `Node.native`): the native decoder allocates 16 bytes for each number up to a
#: message's greatest, and ends the process without memory.
MAX_NATIVE_NUMBER = 100_000


class Role(Enum):
    """Kind of a field's value."""

    SCALAR = auto()  # a number, a string, bytes, an enum
    STRUCT = auto()  # a message of columns
    TIME = auto()  # google.protobuf.Timestamp
    DURATION = auto()  # google.protobuf.Duration
    WRAPPER = auto()  # google.protobuf.StringValue etc.
    DECIMAL = auto()  # confluent.type.Decimal, google.type.Decimal, if they are to be decimals
    MONEY = auto()  # google.type.Money, the same
    EMPTY = auto()  # a message without fields
    JSON = auto()  # google.protobuf.Struct, Value, ListValue
    OPAQUE = auto()  # a recursive message: serialized bytes


_F = FieldDescriptor
#: Full name of a type that becomes one value -> its role, and the types of its fields 1, 2, ..., none of them repeated.
_VALUES: dict[str, tuple[Role, tuple[int, ...]]] = {
    "google.protobuf.Timestamp": (Role.TIME, (_F.TYPE_INT64, _F.TYPE_INT32)),
    "google.protobuf.Duration": (Role.DURATION, (_F.TYPE_INT64, _F.TYPE_INT32)),
    **{
        f"google.protobuf.{name}Value": (Role.WRAPPER, (FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}"),))
        for name in ("Double", "Float", "Int64", "Int32", "UInt64", "UInt32", "Bool", "String", "Bytes")
    },
    "confluent.type.Decimal": (Role.DECIMAL, (_F.TYPE_BYTES, _F.TYPE_UINT32, _F.TYPE_INT32)),
    "google.type.Decimal": (Role.DECIMAL, (_F.TYPE_STRING,)),
    "google.type.Money": (Role.MONEY, (_F.TYPE_STRING, _F.TYPE_INT64, _F.TYPE_INT32)),
}
#: Full name of a type that becomes JSON text -> names of its fields.
_JSON = {
    "google.protobuf.Struct": {"fields"}, "google.protobuf.ListValue": {"values"},
    "google.protobuf.Value": {"null_value", "number_value", "string_value", "bool_value", "struct_value", "list_value"},
}  # fmt: skip
#: Bytes of types of fixed size.
FIXED_SIZES = {
    **dict.fromkeys((_F.TYPE_FIXED32, _F.TYPE_SFIXED32, _F.TYPE_FLOAT), 4),
    **dict.fromkeys((_F.TYPE_FIXED64, _F.TYPE_SFIXED64, _F.TYPE_DOUBLE), 8),
}
#: Number of a type that has no name -> the word that declares it.
DECLARED: dict[int, str] = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}


class Label(Enum):
    """Cardinality of a field."""

    ONE = auto()
    LIST = auto()
    MAP = auto()


#: Roles that the native decoder reads as a message.
MESSAGES = frozenset({Role.STRUCT, Role.TIME, Role.DURATION, Role.WRAPPER, Role.DECIMAL, Role.MONEY})
#: Of these, those that become one value, or a struct of their own.
WHOLE = MESSAGES - {Role.STRUCT}
#: Fields of a sum of money, as stored: the amount has the place of its units.
MONEY_FIELDS = (Field(1, "currency_code", pa.string()), Field(2, "amount", MONEY))


@dataclass
class Node:
    """One field of the tree.

    Attributes:
        descriptor: the field's descriptor; for a map, of its value.
        number: its number.
        native: its number in the surrogate schema: another one if it is too great.
        name: its name in this version; an extension's simple name, or full name if that is taken.
        label: one, list or map.
        role: kind of a value; for a map, of the map's value.
        children: fields of the message, ordered by number.
        key: key of a map.
    """

    descriptor: FieldDescriptor
    number: int
    native: int
    name: str
    label: Label
    role: Role
    children: list[Node] = field(default_factory=list)
    key: Node | None = None

    @property
    def message(self) -> Descriptor:
        """The message type of a value."""
        return cast(Descriptor, self.descriptor.message_type)

    @property
    def is_foreign(self) -> bool:
        """Whether the native decoder cannot read the field's original bytes."""
        in_set = self.role in MESSAGES and self.message.GetOptions().message_set_wire_format
        return self.native != self.number or is_group(self.descriptor) or in_set or any(c.is_foreign for c in self.children)

    def stored(self) -> pa.DataType:
        """The type of its column."""
        if self.label is Label.LIST:
            return pa.list_(self.element())
        if self.key is not None:
            return pa.map_(self.key.element(), self.element())
        return self.element()

    def element(self) -> pa.DataType:
        """The type of one value."""
        if self.role is Role.STRUCT:
            return pa.struct([pa.field(c.name, c.stored()) for c in self.children])
        if self.role is Role.WRAPPER:
            return self.children[0].element()
        return _ROLES.get(self.role) or _SCALARS.get(self.descriptor.type, pa.int64())

    def as_field(self) -> Field:
        """The field for the column map."""
        inner = tuple(c.as_field() for c in self.children) if self.role is Role.STRUCT else ()
        inner = MONEY_FIELDS if self.role is Role.MONEY else inner
        return Field(self.number, self.name, self.stored(), inner, self.declared())

    def declared(self) -> str:
        """The type as the schema declares it."""
        message: Descriptor | None = self.descriptor.message_type
        named: Descriptor | EnumDescriptor | None = message or self.descriptor.enum_type
        value = DECLARED[self.descriptor.type] if named is None else named.full_name
        if self.key is not None:
            return f"map<{self.key.declared()}, {value}>"
        if self.label is Label.LIST:
            return f"repeated {value}"
        oneof = self.descriptor.containing_oneof
        if oneof is not None and len(oneof.fields) > 1:
            return f"oneof {oneof.name} {value}"
        return f"optional {value}" if self.descriptor.has_presence and message is None else value


_ROLES = {
    Role.TIME: pa.timestamp("us", tz="UTC"), Role.DURATION: pa.int64(), Role.EMPTY: pa.bool_(), Role.JSON: pa.string(),
    Role.OPAQUE: pa.binary(), Role.DECIMAL: DECIMAL, Role.MONEY: pa.struct([pa.field(f.name, f.type) for f in MONEY_FIELDS]),
}  # fmt: skip

_SCALARS = {
    _F.TYPE_UINT64: UINT64, _F.TYPE_FIXED64: UINT64, _F.TYPE_DOUBLE: pa.float64(),
    _F.TYPE_FLOAT: pa.float32(), _F.TYPE_BOOL: pa.bool_(), _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(), _F.TYPE_ENUM: pa.string(),
}  # fmt: skip


def tree_of(message: Descriptor, pool: DescriptorPool, *, decimals: bool = False) -> list[Node]:
    """The fields of a message type, nested ones and extensions of the pool included, ordered by number.

    `decimals`: messages that are decimals become decimals.
    """
    root: list[Node] = []
    waiting = deque([(message, frozenset({message.full_name}), root)])
    count = 0
    # Breadth first, so that in a tree that is too large the deepest messages become bytes.
    while waiting:
        parent, above, into = waiting.popleft()
        for node in _nodes(parent, pool, decimals):
            into.append(node)
            count += 1
            if node.role in WHOLE:
                node.children += [_node(f, f.name, f.number) for f in node.message.fields]
            if node.role is Role.STRUCT:
                inner = node.message
                if next(members(inner, pool), None) is None:
                    node.role = Role.EMPTY
                elif inner.full_name in above or len(above) > MAX_DEPTH or count > MAX_NODES:
                    node.role = Role.OPAQUE
                else:
                    waiting.append((inner, above | {inner.full_name}, node.children))
    return root


def is_group(descriptor: FieldDescriptor) -> bool:
    """Whether a message field is encoded between two tags instead of after a length."""
    return bool(descriptor.type == _F.TYPE_GROUP)


def packed_size(item: FieldDescriptor) -> int | None:
    """Bytes of each element of a packed list, 0 for varints; None: such a list cannot be packed."""
    is_text = item.type in (_F.TYPE_STRING, _F.TYPE_BYTES)
    return None if is_text or item.message_type is not None or not item.is_repeated else FIXED_SIZES.get(item.type, 0)


def members(message: Descriptor, pool: DescriptorPool) -> Iterator[FieldDescriptor]:
    """Fields of a message type, and the extensions that the schema's files define for it."""
    yield from message.fields
    if message.is_extendable:
        yield from pool.FindAllExtensions(message)


def _nodes(message: Descriptor, pool: DescriptorPool, decimals: bool) -> list[Node]:
    fields = sorted(members(message, pool), key=lambda f: int(f.number))
    used = {f.number for f in fields}
    names = Counter(f.name for f in fields)
    free = (number for number in range(1, MAX_NATIVE_NUMBER) if number not in used)
    nodes = []
    for item in fields:
        name = item.full_name if item.is_extension and names[item.name] > 1 else item.name
        nodes.append(_node(item, name, item.number if item.number <= MAX_NATIVE_NUMBER else next(free), decimals))
    return nodes


def _node(item: FieldDescriptor, name: str, native: int, decimals: bool = False) -> Node:
    message: Descriptor | None = item.message_type
    if message is not None and message.GetOptions().map_entry:
        key = message.fields_by_number[1]
        value = message.fields_by_number[2]
        return Node(value, item.number, native, name, Label.MAP, role_of(value, decimals), key=_node(key, "key", 1))
    return Node(item, item.number, native, name, Label.LIST if item.is_repeated else Label.ONE, role_of(item, decimals))


def role_of(item: FieldDescriptor, decimals: bool = False) -> Role:
    """The role of a field's value. Google's and Confluent's types are recognised only with their original fields."""
    message: Descriptor | None = item.message_type
    if message is None:
        return Role.SCALAR
    if _JSON.get(message.full_name) == {f.name for f in message.fields}:
        return Role.JSON
    role, types = _VALUES.get(message.full_name, (Role.STRUCT, ()))
    fields = sorted((int(f.number), int(f.type), bool(f.is_repeated)) for f in message.fields)
    is_original = fields == [(number, kind, False) for number, kind in enumerate(types, 1)]
    return role if is_original and (decimals or role not in (Role.DECIMAL, Role.MONEY)) else Role.STRUCT


def from_base64(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """The file of a base64 text; None: it is `.proto` text."""
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None


#: Comments are skipped, and strings are one word. An unclosed one extends to the end, so that each character is read once.
#: Other characters are words of their own.
_WORDS = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|(?P<word>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[\w.]+|\S)""", re.DOTALL | re.ASCII
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
#: Brace -> by how much it changes the depth.
_DEPTHS = {"{": 1, "}": -1}
_MAP_ENTRY = ("option", "map_entry", "=", "true", ";")
#: Nested messages at most; protoc's limit is 32.
MAX_NESTING = 100
#: Names of messages, outermost first.
Names = tuple[str, ...]


def words_of(text: str) -> list[re.Match[str]]:
    """The words of a `.proto` text, in the group `word`, with their places."""
    return [match for match in _WORDS.finditer(text) if match["word"]]


def _words(text: str) -> list[str]:
    return [match["word"] for match in words_of(text)]


def imports(text: str) -> list[str]:
    """Names of imports, in order."""
    words = _words(text)
    names = []
    for index, word in enumerate(words):
        if word == "import":
            name = next((w for w in words[index + 1 : index + 3] if w[0] in "\"'"), "")
            if name:
                names.append(name[1:-1])
    return names


def top_messages(text: str) -> tuple[str, list[str]]:
    """Package and top-level messages, in order; no messages if the text is invalid."""
    package = ""
    names: list[str] = []
    depth = 0
    for word, following in pairwise([*_words(text), ""]):
        if word in _DEPTHS:
            depth += _DEPTHS[word]
        elif depth == 0 and word == "package":
            package = following
        elif depth == 0 and word == "message":
            names.append(following)
    # Braces must match, and names be valid.
    is_valid = depth == 0 and all(map(_NAME.fullmatch, names))
    return package, names if is_valid else []


def without_map_entries(text: str) -> tuple[str, list[Names]]:
    """The text with options `map_entry` replaced by spaces, and the messages that had it.

    Confluent's registry converts maps of a registered descriptor to messages with this option, which protoc refuses.
    """
    if "map_entry" not in text:
        return text, []
    entries: list[Names] = []
    parts: list[str] = []
    last = 0
    for names, begin, end in _map_entries(text):
        entries.append(names)
        parts += [text[last:begin], re.sub(r"[^\n]", " ", text[begin:end])]
        last = end
    return "".join([*parts, text[last:]]), entries


def _map_entries(text: str) -> Iterator[tuple[Names, int, int]]:
    """Messages with the option `map_entry`, and where it begins and ends."""
    matches = words_of(text)
    words = [match["word"] for match in matches]
    #: Names of the messages around a word; "": of a block that is none.
    around: list[str] = []
    for index, word in enumerate(words):
        if word == "{":
            around.append(words[index - 1] if words[max(0, index - 2) : index - 1] == ["message"] else "")
        elif word == "}":
            del around[-1:]
        elif word == "option" and tuple(words[index : index + 5]) == _MAP_ENTRY:
            names = tuple(around)
            if 0 < len(names) <= MAX_NESTING + 1 and "" not in names:
                yield names, matches[index].start(), matches[index + 4].end()
