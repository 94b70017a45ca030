"""Generated protobuf schemas, messages and damage for the differential tests.

Everything is drawn from one `random.Random`, so that a seed is a test case.
"""

import math
import struct

SCALARS = (
    "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64", "float", "double",
    "bool", "string", "bytes",
)  # fmt: skip
KEYS = [s for s in SCALARS if s not in ("float", "double", "bytes")]
KNOWN = (
    "Timestamp",
    "Duration",
    "StringValue",
    "Int32Value",
    "UInt64Value",
    "BoolValue",
    "Struct",
    "Value",
    "ListValue",
    "Any",
    "Empty",
)
IMPORTS = "".join(
    f'import "google/protobuf/{name}.proto";' for name in ("timestamp", "duration", "wrappers", "struct", "any", "empty")
)


# --- schemas


def schema_text(chance):
    """A schema of a random syntax with messages that use one another; the type to decode stands first."""
    syntax = chance.choice(["proto3", "proto3", "proto2", "proto2", "editions"])
    head = 'edition = "2023";' if syntax == "editions" else f'syntax = "{syntax}";'
    count = chance.randint(1, 4)
    enum = "enum Color { ZERO = 0; ONE = 1; MANY = 300; MINUS = -1; %s}" % (
        "option allow_alias = true; UN = 1;" if chance.random() < 0.5 else ""
    )
    bodies = [_message(chance, syntax, index, count) for index in range(count)]
    extend = ""
    if syntax != "proto3":
        label = "optional " if syntax == "proto2" else ""
        extend = f"extend M0 {{ {label}int32 ext = 1001; repeated string exts = 1002; {label}M{count - 1} extm = 1003; }}"
    return f"{head} package w; {IMPORTS} {' '.join(bodies)} {enum} {extend}"


def _message(chance, syntax, index, count):
    lines, numbers = [], chance.sample([*range(1, 40), 127, 2047, 2048, 50_000], 12)
    if syntax != "proto3":
        numbers += [200_000 + index] if chance.random() < 0.1 else []
        lines.append("extensions 1000 to 2000;")
    chance.shuffle(numbers)
    for place in range(chance.randint(1, 9)):
        number, name = numbers[place], f"f{place}"
        name = chance.choice([name, name, f"F{place - 1}" if place else name])
        lines.append(_field(chance, syntax, name, number, count))
    if chance.random() < 0.4:
        members = (f"{_type(chance, count)} {name} = {number};" for name, number in zip("abc", numbers[9:12], strict=True))
        lines.append(f"oneof choice {{ {' '.join(members)} }}")
    return f"message M{index} {{ {' '.join(lines)} }}"


def _field(chance, syntax, name, number, count):
    draw = chance.random()
    if draw < 0.15:
        return f"map<{chance.choice(KEYS)}, {_type(chance, count)}> {name} = {number};"
    kind = _type(chance, count)
    packable = (kind in SCALARS and kind not in ("string", "bytes")) or kind == "Color"
    if draw < 0.4:
        option = chance.choice(["", "true", "false"]) if packable else ""
        if syntax == "editions":
            option = {
                "": "",
                "true": " [features.repeated_field_encoding = PACKED]",
                "false": " [features.repeated_field_encoding = EXPANDED]",
            }[option]
        else:
            option = option and f" [packed = {option}]"
        return f"repeated {kind} {name} = {number}{option};"
    if syntax == "proto2" and draw < 0.45:
        inside = "optional int32 x = 1; optional M0 m = 2; repeated int32 y = 3;"
        return f"{chance.choice(['optional', 'repeated'])} group G{number} = {number} {{ {inside} }}"
    if syntax == "proto2":
        default = " [default = 7]" if kind == "int32" and chance.random() < 0.3 else ""
        return f"{'required' if chance.random() < 0.1 else 'optional'} {kind} {name} = {number}{default};"
    if syntax == "editions":
        implicit = kind in SCALARS or kind == "Color"
        option = chance.choice(["", " [features.field_presence = IMPLICIT]"]) if implicit else ""
        if kind.startswith("M") and chance.random() < 0.2:
            option = " [features.message_encoding = DELIMITED]"
        return f"{kind} {name} = {number}{option};"
    return f"{chance.choice(['', 'optional '])}{kind} {name} = {number};"


def _type(chance, count):
    draw = chance.random()
    if draw < 0.55:
        return chance.choice(SCALARS)
    if draw < 0.65:
        return "Color"
    if draw < 0.8:
        return f"M{chance.randrange(count)}"
    return "google.protobuf." + chance.choice(KNOWN)


# --- wire bytes, right and wrong


def varint(value, extra=0):
    """A varint, longer than it has to be by `extra` bytes."""
    out = bytearray()
    value &= 2**64 - 1
    while value > 0x7F or extra > 0:
        if value <= 0x7F:
            extra -= 1
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


INTEGERS = (
    0,
    0,
    1,
    1,
    2,
    127,
    128,
    300,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**32 + 5,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -1,
    -300,
    -(2**31),
)
TEXTS = (b"", b"", b"a", b"abc", "é😀".encode(), b"x" * 130, b"\xff", b"\xc3")
WIRES = {
    "varint": {3, 4, 5, 8, 13, 14, 17, 18},
    8: {1, 6, 16},
    4: {2, 7, 15},
}  # field types: double 1, fixed64 6, sfixed64 16; float 2, fixed32 7, sfixed32 15


class Writer:
    """Writes messages at random, mostly as a serializer would, with faults now and then.

    Args:
        chance: source of randomness.
        pool: the pool of the schema.
        oddity: how often something unusual but maybe legal is written, 0 to 1.
        damage: how often something that is wrong is written, 0 to 1.
    """

    def __init__(self, chance, pool, oddity, damage):
        self.chance, self.pool, self.oddity, self.damage = chance, pool, oddity, damage

    def odd(self):
        return self.chance.random() < self.oddity

    def message(self, descriptor, depth=0):
        chance = self.chance
        if descriptor.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration") and not self.odd():
            seconds, nanos = chance.choice([0, 1, 1_700_000_000, -5]), chance.choice([0, 1_000, 999_999_999])
            if descriptor.name == "Duration" and seconds < 0:
                nanos = -nanos
            return (
                b"\x08" + varint(seconds) + b"\x10" + varint(nanos) if nanos else b"\x08" + varint(seconds) if seconds else b""
            )
        fields = [*descriptor.fields, *(self.pool.FindAllExtensions(descriptor) if descriptor.is_extendable else ())]
        parts = []
        for field in sorted(fields, key=lambda f: f.number):
            # Deep trees end: there, messages are rarely filled.
            if chance.random() < (0.6 if depth < 3 else 0.1 if depth < 12 else 0):
                parts += [self.field(field, depth)] * (2 if self.odd() else 1)
        if self.odd():
            parts.append(self.unknown(depth))
        if self.odd():
            chance.shuffle(parts)
        if chance.random() < self.damage:
            parts.insert(chance.randint(0, len(parts)), self.wrong())
        return b"".join(parts)

    def field(self, field, depth):
        if field.is_repeated:
            count = self.chance.choice([0, 1, 1, 2, 3])
            packable = field.message_type is None and field.type not in (9, 12)
            if packable and field.is_packed != self.odd():
                content = b"".join(self.value(field, depth) for _ in range(count))
                return self.tag(field.number, 2) + varint(len(content), self.more()) + content if count or self.odd() else b""
            return b"".join(self.one(field, depth) for _ in range(count))
        return self.one(field, depth)

    def one(self, field, depth):
        if self.odd() and self.odd():
            wire, other = self.chance.choice(
                [(0, b"\x05"), (1, bytes(8)), (2, b"\x02\x08\x01"), (5, bytes(4)), (3, self.tag(field.number, 4))]
            )
            return self.tag(field.number, wire) + other
        if field.type == 10:
            return self.tag(field.number, 3) + self.message(field.message_type, depth + 1) + self.tag(field.number, 4)
        wire = 2 if field.type in (9, 11, 12) else 1 if field.type in WIRES[8] else 5 if field.type in WIRES[4] else 0
        return self.tag(field.number, wire) + self.value(field, depth)

    def value(self, field, depth):
        chance = self.chance
        if field.type in WIRES["varint"]:
            if field.type == 14 and not self.odd():
                return varint(chance.choice([0, 1, 300, -1]))
            if field.type == 8 and not self.odd():
                return varint(chance.choice([0, 1]))
            value = chance.choice(INTEGERS)
            if field.type == 5 and not self.odd():
                value = (value + 2**31) % 2**32 - 2**31
            if field.type in (13, 17) and not self.odd():
                value %= 2**32
            return varint(value, self.more())
        if field.type in WIRES[8]:
            return (
                struct.pack("<d", chance.choice([0.0, -0.0, 1.5, math.nan, -math.inf]))
                if chance.random() < 0.7
                else chance.randbytes(8)
            )
        if field.type in WIRES[4]:
            return (
                struct.pack("<f", chance.choice([0.0, -0.0, 1.5, math.nan, math.inf]))
                if chance.random() < 0.7
                else chance.randbytes(4)
            )
        if field.type in (10, 11):
            message = field.message_type
            is_entry = message.GetOptions().map_entry
            content = self.entry(message, depth) if is_entry else self.message(message, depth + 1)
        else:
            content = chance.choice(TEXTS[:-2] if chance.random() >= self.damage else TEXTS)
        return varint(len(content), self.more()) + content

    def entry(self, message, depth):
        parts = [self.one(message.fields_by_number[1], depth), self.one(message.fields_by_number[2], depth + 1)]
        if self.odd():
            parts = self.chance.choice([[], parts[:1], parts[1:], parts[::-1], parts * 2])
        return b"".join(parts)

    def tag(self, number, wire):
        return varint(number << 3 | wire, int(self.odd() and self.odd()))

    def more(self):
        return self.chance.choice([1, 2, 5]) if self.odd() and self.odd() else 0

    def unknown(self, depth):
        number = self.chance.choice([60, 61, 19_000, 2**29 - 1])
        match self.chance.randrange(5):
            case 0:
                return self.tag(number, 0) + varint(self.chance.choice(INTEGERS))
            case 1:
                return self.tag(number, 1) + bytes(8)
            case 2:
                return self.tag(number, 5) + bytes(4)
            case 3:
                return self.tag(number, 2) + b"\x03abc"
        inner = self.unknown(depth + 1) if depth < 5 else b""
        return self.tag(number, 3) + inner + self.tag(number, 4)

    def wrong(self):
        return self.chance.choice([*WRONG, self.chance.randbytes(self.chance.randint(1, 6))])


#: Bytes that are wrong at once, or turn what follows them into something else.
WRONG = (
    b"\x00", b"\x02\x00", b"\x07", b"\x0e\x00", b"\x0c", b"\x0b", b"\x0a\x7f", b"\x08\x80", b"\x09\x01", b"\x0d\x01",
    b"\x08" + b"\xff" * 10 + b"\x01", b"\x08" + b"\x80" * 9 + b"\x02", b"\x0a\xff\xff\xff\xff\x0f",
    b"\x0a" + b"\xff" * 9 + b"\x01", b"\xf2\x03\xf5" + b"\xff" * 8 + b"\x01",
    b"\xf8\xff\xff\xff\xff\x01\x01", b"\x88\x80\x80\x80\x80\x00\x01", b"\x0b" * 120 + b"\x0c" * 120,
)  # fmt: skip


def spoilt(chance, payload):
    """A payload with bytes changed, cut off or added at random."""
    data = bytearray(payload)
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        match chance.randrange(3):
            case 0 if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case 1 if data:
                del data[chance.randrange(len(data)) :]
            case 2:
                data.insert(chance.randint(0, len(data)), chance.randrange(256))
    return bytes(data)
