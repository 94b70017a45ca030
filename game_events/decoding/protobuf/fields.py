"""Tree of a protobuf message type's fields, from which surrogate schema, columns and verification are derived.

It alone maps types that Spark does not have (docs/decoding.md, "Protobuf types"). Fields that the native decoder cannot read
are converted before: a group becomes a delimited message, a great field number another one (`Node.native`), a message set a
message. Messages that are decimals become exact Arrow decimals, if the setting `decimal_messages` asks for that.

Sources: confluent/type/decimal.proto (unscaled value, big endian; scale), google/type/decimal.proto (a text), and
google/type/money.proto (units, nanos of the same sign).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import cast

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from game_events.decoding.columns import UINT64, Field, decimal_bytes
from game_events.decoding.frame import Mask

#: Columns of `confluent.type.Decimal` and `google.type.Decimal`, whose values have a scale each; and of a sum of money.
DECIMAL = pa.decimal128(38, 18)
MONEY = pa.decimal128(28, 9)
#: Bytes of an unscaled value, and characters of a text, at most: far more than 38 digits.
_MOST = 100
_TEXT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,5}))?", re.ASCII)
_NANOS = 10**9
#: Values of the fields 1, 2, ... of a message, None if it lacks one (fields with presence) -> unscaled value of its column;
#: None: the column cannot hold it exactly.
Unscaled = Callable[..., int | None]


def _scaled(number: int, exponent: int) -> int | None:
    """``number * 10**exponent`` in units of `DECIMAL`, 1e-18: of 125 and -1 (12.5) 125 * 10**17; None: it does not fit."""
    shift = exponent + DECIMAL.scale
    limit = 10**DECIMAL.precision
    if not number:
        return 0
    if shift < -4 * _MOST or shift > DECIMAL.precision:
        return None
    scaled, rest = (number * 10**shift, 0) if shift >= 0 else divmod(number, 10**-shift)
    return scaled if not rest and -limit < scaled < limit else None


def _confluent(value: bytes | None, _precision: int | None, scale: int | None) -> int | None:
    raw = value or b""
    return _scaled(int.from_bytes(raw, "big", signed=True), -(scale or 0)) if len(raw) <= _MOST else None


def _google(value: str | None) -> int | None:
    text = value or ""
    number = _TEXT.fullmatch(text) if len(text) <= _MOST else None
    if number is None:
        return None
    sign, whole, fraction, exponent = number.groups("")
    if not whole and not fraction:
        return None
    return _scaled(int(sign + whole + fraction), int(exponent or 0) - len(fraction))


def _money(_currency: str | None, units: int | None, nanos: int | None) -> int | None:
    units, nanos = units or 0, nanos or 0
    return units * _NANOS + nanos if abs(nanos) < _NANOS and units * nanos >= 0 else None


#: Full name of a message -> its reading.
_READ: Mapping[str, Unscaled] = {
    "confluent.type.Decimal": _confluent,
    "google.type.Decimal": _google,
    "google.type.Money": _money,
}


def amounts(name: str, fields: list[pa.Array], kind: pa.DataType, present: Mask) -> tuple[pa.Array, Mask]:
    """Decimals of messages, NULL where there is none, and a mask of those that the column cannot hold exactly.

    `fields`: their fields by number, shape (n,) each; `present`: messages that are set.
    """
    read = _READ[name]
    rows = zip(*(field.to_pylist() for field in fields), strict=True)
    values = [read(*row) if is_set else None for row, is_set in zip(rows, present.tolist(), strict=True)]
    bad = present & np.fromiter((value is None for value in values), dtype=bool, count=len(values))
    return pa.array([None if v is None else decimal_bytes(v) for v in values], pa.binary(16)).view(kind), bad


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


INT64 = FieldDescriptor.TYPE_INT64
INT32 = FieldDescriptor.TYPE_INT32

_WRAPPED = {
    "Double": FieldDescriptor.TYPE_DOUBLE, "Float": FieldDescriptor.TYPE_FLOAT, "Int64": INT64, "Int32": INT32,
    "UInt64": FieldDescriptor.TYPE_UINT64, "UInt32": FieldDescriptor.TYPE_UINT32, "Bool": FieldDescriptor.TYPE_BOOL,
    "String": FieldDescriptor.TYPE_STRING, "Bytes": FieldDescriptor.TYPE_BYTES,
}  # fmt: skip

#: Name and fields (number, type, whether repeated) of google.protobuf's types that become one value.
_SHAPES: dict[tuple[str, object], Role] = {
    ("Timestamp", ((1, INT64, False), (2, INT32, False))): Role.TIME,
    ("Duration", ((1, INT64, False), (2, INT32, False))): Role.DURATION,
    **{(f"{name}Value", ((1, kind, False),)): Role.WRAPPER for name, kind in _WRAPPED.items()},
}

#: The same for types that are decimals if the setting says so.
_DECIMALS: dict[tuple[str, object], Role] = {
    (
        "confluent.type.Decimal",
        ((1, FieldDescriptor.TYPE_BYTES, False), (2, FieldDescriptor.TYPE_UINT32, False), (3, INT32, False)),
    ): Role.DECIMAL,
    ("google.type.Decimal", ((1, FieldDescriptor.TYPE_STRING, False),)): Role.DECIMAL,
    ("google.type.Money", ((1, FieldDescriptor.TYPE_STRING, False), (2, INT64, False), (3, INT32, False))): Role.MONEY,
}

_JSON = {
    "Struct": {"fields"}, "ListValue": {"values"},
    "Value": {"null_value", "number_value", "string_value", "bool_value", "struct_value", "list_value"},
}  # fmt: skip
#: Bytes of types of fixed size.
FIXED_SIZES = {
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_FLOAT), 4),
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64, FieldDescriptor.TYPE_DOUBLE), 8),
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
    FieldDescriptor.TYPE_UINT64: UINT64, FieldDescriptor.TYPE_FIXED64: UINT64, FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(), FieldDescriptor.TYPE_BOOL: pa.bool_(), FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(), FieldDescriptor.TYPE_ENUM: pa.string(),
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
    return bool(descriptor.type == FieldDescriptor.TYPE_GROUP)


def packed_size(item: FieldDescriptor) -> int | None:
    """Bytes of each element of a packed list, 0 for varints; None: such a list cannot be packed."""
    is_text = item.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
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
        key, value = message.fields_by_number[1], message.fields_by_number[2]
        return Node(value, item.number, native, name, Label.MAP, role_of(value, decimals), key=_node(key, "key", 1))
    return Node(item, item.number, native, name, Label.LIST if item.is_repeated else Label.ONE, role_of(item, decimals))


def role_of(item: FieldDescriptor, decimals: bool = False) -> Role:
    """The role of a field's value. Google's and Confluent's types are recognised only with their original fields."""
    message: Descriptor | None = item.message_type
    if message is None:
        return Role.SCALAR
    package, _, name = message.full_name.rpartition(".")
    shape = tuple(sorted((int(f.number), int(f.type), bool(f.is_repeated)) for f in message.fields))
    if package != "google.protobuf":
        return _DECIMALS.get((message.full_name, shape), Role.STRUCT) if decimals else Role.STRUCT
    if _JSON.get(name) == {f.name for f in message.fields}:
        return Role.JSON
    return _SHAPES.get((name, shape), Role.STRUCT)
