"""Reading of protobuf's wire format by hand, where a library's parser says too little.

- The first fault of a malformed payload in byte order, with reason and position, consistent with Python's protobuf. Details
  name types, fields and positions, never values, which may be personal data.
- The cells of the lists in long payloads, counted before anything is decoded, as parsers allocate each element in full: a walk
  over the tags that enters only messages with lists in them, and those that are parsed whole. What is malformed ends the
  count: parsers end there, too.
- Fields that the native decoder cannot read, converted to its surrogate schema.

A tag is the field's number and, in the lowest three bits, the wire type: ``12`` is 2 << 3 | 2, field 2 of a `LENGTH`.
Source of the format: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from game_events.decoding.frame import Reason
from game_events.decoding.projection import MAX_RECORD_CELLS, cells_of_element
from game_events.decoding.protobuf.schema import MESSAGES, Label, Node, Role, is_group, members, packed_size, role_of
from game_events.decoding.protobuf.verification import is_in_range

#: Protobuf's own limit of nested messages and groups.
MAX_LEVELS = 100
#: Fields parsed at most, some milliseconds; later faults are not located.
MAX_STEPS = 20_000
#: Names of a path in a detail.
_NAMED = 10
#: A varint has ten bytes at most (bits beyond 64 are ignored).
_LONG_VARINT = re.compile(rb"[\x80-\xff]{10}")
#: Wire types; those of fixed size with it.
LENGTH = 2
GROUP = 3
END_OF_GROUP = 4
_GROUP_WIRES = (GROUP, END_OF_GROUP)
FIXED_WIRES = {1: 8, 5: 4}
_TAG_BYTES = 5
_MAX_TAG = 2**32
_MAX_LENGTH = 2**31
_ALL_BITS = 2**64 - 1


class FaultError(Exception):
    """A fault: reason, what, and the position."""


def read_varint(payload: bytes, pos: int, end: int) -> tuple[int, int]:
    """A varint, and the position after it: seven bits in each byte, the lowest first, and 0x80 where another byte follows.

    ``ac 02`` is 0x2c + (0x02 << 7) = 300.
    """
    begin = pos
    value = shift = 0
    while pos < end:
        octet = payload[pos]
        pos += 1
        value |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            return value & _ALL_BITS, pos
        if shift == 70:
            raise FaultError(Reason.MALFORMED, "a varint of more than ten bytes", begin)
    raise FaultError(Reason.TRUNCATED, "the varint runs past the end", begin)


def varint(value: int) -> bytes:
    """A number that is not negative as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclass(frozen=True)
class _Known:
    """A field of the schema: how its delimited values are read."""

    name: str
    message: Descriptor | None
    is_group: bool
    is_text: bool
    #: Of a time or a duration.
    time: Role | None
    packed: int | None

    @classmethod
    def of(cls, field: FieldDescriptor) -> _Known:
        role = role_of(field)
        time = role if role in (Role.TIME, Role.DURATION) else None
        is_text = field.type == FieldDescriptor.TYPE_STRING
        return cls(field.name, field.message_type, is_group(field), is_text, time, packed_size(field))


class FaultFinder:
    """Finds the fault of payloads of one message type."""

    def __init__(self, message: Descriptor, pool: DescriptorPool) -> None:
        self._message = message
        self._pool = pool
        self._known: dict[str, dict[int, _Known]] = {}

    def first(self, payload: bytes) -> tuple[Reason, str] | None:
        """Reason and detail of the first fault; None if not found. Never raises."""
        walk = _Walk(payload, self._message, self._of)
        try:
            walk.run()
        except FaultError as fault:
            reason, what, pos = fault.args
            name = ".".join(walk.path if len(walk.path) <= _NAMED else [*walk.path[:_NAMED], "..."])
            where = f"{self._message.full_name}: field {name}: " if name else f"{self._message.full_name}: "
            return reason, f"{where}{what} at byte {pos}"
        return None

    def _of(self, message: Descriptor) -> dict[int, _Known]:
        known = self._known.get(message.full_name)
        if known is None:
            known = self._known[message.full_name] = {int(f.number): _Known.of(f) for f in members(message, self._pool)}
        return known


class _Walk:
    """One pass over a payload until the first fault; `path`: names of the fields at the current position."""

    def __init__(self, payload: bytes, message: Descriptor, known_of: Callable[[Descriptor], dict[int, _Known]]) -> None:
        self.path: list[str] = []
        self._payload = payload
        self._known_of = known_of
        # (end of the level, its message type if known, its group's number)
        self._levels: list[tuple[int, Descriptor | None, int]] = [(len(payload), message, 0)]

    def run(self) -> None:
        """Raises FaultError for the first fault."""
        pos = 0
        for _ in range(MAX_STEPS):
            end, message, group = self._levels[-1]
            if pos < end:
                pos = self._field(pos, end, message, group)
                continue
            if group:
                raise FaultError(Reason.MALFORMED, "the group is never closed", pos)
            self._levels.pop()
            if not self._levels:
                return
            self.path.pop()

    def _field(self, begin: int, end: int, message: Descriptor | None, group: int) -> int:
        """One field, or the tag that opens or closes a level; returns the next position."""
        number, wire, pos = self._tag(begin, end)
        if wire == END_OF_GROUP and group == number:
            self._levels.pop()
            self.path.pop()
            return pos
        known = self._known_of(message).get(number) if message is not None else None
        self.path.append(known.name if known is not None else str(number))
        if wire == LENGTH:
            return self._delimited(begin, pos, end, known)
        if wire == GROUP:
            self._open(end, known.message if known is not None and known.is_group else None, number, begin)
            return pos
        pos = self._number(wire, begin, pos, end)
        self.path.pop()
        return pos

    def _tag(self, begin: int, end: int) -> tuple[int, int, int]:
        tag, pos = read_varint(self._payload, begin, end)
        if not tag >> 3:
            raise FaultError(Reason.MALFORMED, "field number 0", begin)
        if pos - begin > _TAG_BYTES or tag >= _MAX_TAG:
            raise FaultError(Reason.MALFORMED, "the field number is too great", begin)
        return tag >> 3, tag & 7, pos

    def _number(self, wire: int, begin: int, pos: int, end: int) -> int:
        if wire == 0:
            return read_varint(self._payload, pos, end)[1]
        if wire in FIXED_WIRES:
            if pos + FIXED_WIRES[wire] > end:
                raise FaultError(Reason.TRUNCATED, "the value runs past the end", begin)
            return pos + FIXED_WIRES[wire]
        what = "the end of a group that was not opened" if wire == END_OF_GROUP else f"wire type {wire}"
        raise FaultError(Reason.MALFORMED, what, begin)

    def _delimited(self, begin: int, pos: int, end: int, known: _Known | None) -> int:
        length, pos = read_varint(self._payload, pos, end)
        if length >= _MAX_LENGTH:
            raise FaultError(Reason.MALFORMED, "the length is impossible", begin)
        if length > end - pos:
            raise FaultError(Reason.TRUNCATED, "the length runs past the end", begin)
        if known is not None and known.message is not None and not known.is_group:
            if known.time is not None:
                with suppress(DecodeError):
                    time: Any = message_factory.GetMessageClass(known.message).FromString(self._payload[pos : pos + length])
                    if not is_in_range(time.seconds, time.nanos, is_time=known.time is Role.TIME):
                        what = "time" if known.time is Role.TIME else "duration"
                        raise FaultError(Reason.OUT_OF_RANGE, f"outside protobuf's range of a {what}", begin)
            self._open(pos + length, known.message, 0, begin)
            return pos
        if known is not None:
            _check(self._payload, pos, pos + length, known)
        self.path.pop()
        return pos + length

    def _open(self, end: int, message: Descriptor | None, group: int, pos: int) -> None:
        self._levels.append((end, message, group))
        # The outermost message does not count.
        if len(self._levels) > MAX_LEVELS + 1:
            raise FaultError(Reason.TOO_DEEP, f"more than {MAX_LEVELS} levels", pos)


def _check(payload: bytes, begin: int, end: int, known: _Known) -> None:
    if known.is_text:
        try:
            payload[begin:end].decode()
        except UnicodeDecodeError as error:
            raise FaultError(Reason.BAD_UTF8, "not UTF-8", begin + error.start) from None
    elif known.packed == 0 and end > begin:
        content = payload[begin:end]
        long = _LONG_VARINT.search(content)
        if long is not None:
            raise FaultError(Reason.MALFORMED, "a varint of more than ten bytes", begin + long.start())
        if content[-1] > 0x7F:
            raise FaultError(Reason.TRUNCATED, "the last varint of a packed list runs past its end", end - 1)
    elif known.packed and (end - begin) % known.packed:
        raise FaultError(Reason.TRUNCATED, "the last value of a packed list runs past its end", end - 1)


#: The smallest number with a varint of two bytes.
_TWO_BYTES = 0x80
#: For `bytes.translate`: what is left are the last bytes of varints.
_CONTINUED = bytes(range(0x80, 0x100))


@dataclass(frozen=True)
class _Item:
    """A field: cells of one occurrence; fields of its message, if it has lists; bytes of a packed element (0: varints)."""

    cells: int
    inside: Mapping[int, _Item]
    is_group: bool
    packed: int | None


_OTHER = _Item(0, {}, is_group=False, packed=None)
#: Where a level ends, its fields, and the number of its group: 0 for a message.
_Level = tuple[int, Mapping[int, _Item], int]
#: In place of a group's number: what ends here is the payload.
_OUTERMOST = -1


class CellCounter:
    """Counts for one message type; `safe_bytes`: payloads up to this length never have more than `MAX_RECORD_CELLS`."""

    def __init__(self, nodes: list[Node], pool: DescriptorPool) -> None:
        self._fields = _counted(nodes, pool, {})
        self.safe_bytes = MAX_RECORD_CELLS * 2 // max(_widest(self._fields, set()), 2)

    def is_too_large(self, payload: bytes) -> bool:
        """Whether its lists have more cells than `MAX_RECORD_CELLS`, or it has twice as many fields."""
        try:
            return self._walk(payload)
        except FaultError:
            return False

    def _walk(self, payload: bytes) -> bool:
        total = pos = 0
        levels: list[_Level] = [(len(payload), self._fields, _OUTERMOST)]
        # Fields that are no elements make no cells, but take as long.
        for _ in range(2 * MAX_RECORD_CELLS):
            end, fields, group = levels[-1]
            if pos >= end:
                if group:
                    return False
                levels.pop()
                continue
            tag, pos = (payload[pos], pos + 1) if payload[pos] < _TWO_BYTES else read_varint(payload, pos, end)
            wire = tag & 7
            item = fields.get(tag >> 3, _OTHER)
            if wire == LENGTH:
                pos, cells = _delimited(payload, pos, item, levels)
                total += cells
            elif wire in _GROUP_WIRES:
                total += _group(tag, item, levels)
            else:
                total += item.cells
                pos = pos + FIXED_WIRES[wire] if wire in FIXED_WIRES else read_varint(payload, pos, end)[1]
            if total > MAX_RECORD_CELLS or len(levels) > MAX_LEVELS + 1:
                return total > MAX_RECORD_CELLS
        return True


def _delimited(payload: bytes, pos: int, item: _Item, levels: list[_Level]) -> tuple[int, int]:
    """Enter a field's message, or skip its value; returns the next position, and the field's cells."""
    end = levels[-1][0]
    size, pos = (payload[pos], pos + 1) if pos < end and payload[pos] < _TWO_BYTES else read_varint(payload, pos, end)
    behind = pos + size
    if behind > end:
        raise FaultError(Reason.TRUNCATED, "the length runs past the end", pos)
    if item.inside and not item.is_group:
        levels.append((behind, item.inside, 0))
        behind = pos
    if item.packed is None:
        return behind, item.cells
    return behind, item.cells * _packed(payload[pos : pos + size], item.packed)


def _group(tag: int, item: _Item, levels: list[_Level]) -> int:
    """Enter or leave a group; returns its cells, on entering it."""
    end, _, group = levels[-1]
    number = tag >> 3
    if tag & 7 == GROUP:
        levels.append((end, item.inside if item.is_group else {}, number))
        return item.cells
    if group != number:
        raise FaultError(Reason.MALFORMED, "the end of a group that was not opened", end)
    levels.pop()
    return 0


def _packed(content: bytes, size: int) -> int:
    return len(content) // size if size else len(content.translate(None, _CONTINUED))


def _counted(nodes: Iterable[Node], pool: DescriptorPool, parsed: dict[str, dict[int, _Item]]) -> dict[int, _Item]:
    """The fields that are lists or maps, or messages with lists in them, by number."""
    items = {node.number: _item(node, pool, parsed) for node in nodes}
    return {number: item for number, item in items.items() if item.cells or item.inside}


def _item(node: Node, pool: DescriptorPool, parsed: dict[str, dict[int, _Item]]) -> _Item:
    cells = 0
    packed = None
    inside: Mapping[int, _Item] = {}
    if node.role is Role.STRUCT:
        inside = _counted(node.children, pool, parsed)
    if node.label is not Label.ONE:
        cells = cells_of_element(node.stored())
        packed = packed_size(node.descriptor)
    if node.role in (Role.OPAQUE, Role.JSON):
        cells += len(node.message.fields)
        inside = _parsed(node.message, pool, parsed)
    if node.label is Label.MAP and inside:
        inside = {2: _Item(0, inside, is_group(node.descriptor), None)}
    return _Item(cells, inside, is_group(node.descriptor), packed)


def _parsed(message: Descriptor, pool: DescriptorPool, known: dict[str, dict[int, _Item]]) -> dict[int, _Item]:
    """The messages in one that is kept as bytes or text, but parsed: each field has a place in memory."""
    if message.full_name not in known:
        items = known[message.full_name] = {}
        for field in members(message, pool):
            if field.message_type is not None:
                inside = _parsed(field.message_type, pool, known)
                items[int(field.number)] = _Item(2 + len(field.message_type.fields), inside, is_group(field), None)
    return known[message.full_name]


def _widest(items: Mapping[int, _Item], seen: set[int]) -> int:
    """Most cells of two bytes of any field."""
    if id(items) in seen:
        return 0
    seen.add(id(items))
    # An element has two bytes at least, a packed number one.
    own = (item.cells * (1 if item.packed is None else 2) for item in items.values())
    return max((*own, *(_widest(item.inside, seen) for item in items.values())), default=0)


@dataclass(frozen=True)
class ForeignFields:
    """Converts canonical bytes of one message type to its surrogate schema (see `decoder`).

    `fields`: number -> number in the surrogate schema, and the conversion of the message in it, if that needs one; `is_set`:
    it is a message set.
    """

    fields: Mapping[int, tuple[int, ForeignFields | None]]
    is_set: bool = False

    @classmethod
    def of(cls, nodes: Iterable[Node], message: Descriptor) -> ForeignFields:
        """Of a message type."""
        fields: dict[int, tuple[int, ForeignFields | None]] = {}
        for node in nodes:
            inner = cls.of(node.children, node.message) if node.role in MESSAGES and node.is_foreign else None
            if inner is not None and node.label is Label.MAP:
                inner = cls({1: (1, None), 2: (2, inner)})
            fields[node.number] = (node.native, inner)
        return cls(fields, bool(message.GetOptions().message_set_wire_format))

    def converted(self, data: bytes) -> bytes:
        """The bytes in the surrogate schema."""
        out = bytearray()
        for number, wire, value in _of_set(data) if self.is_set else _fields(data):
            if number not in self.fields:
                continue
            native, inner = self.fields[number]
            new = value if inner is None else inner.converted(value)
            delimited = wire in (LENGTH, GROUP)
            out += varint(native << 3 | (LENGTH if delimited else wire))
            out += varint(len(new)) + new if delimited else new
        return bytes(out)


def _of_set(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The messages of a message set as fields: `group Item = 1 { required int32 type_id = 2; required bytes message = 3; }`."""
    for _, _, item in _fields(data):
        parts = {number: value for number, _, value in _fields(item)}
        yield read_varint(parts[2], 0, len(parts[2]))[0], LENGTH, parts[3]


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Fields of well-formed bytes: number, wire type, and value (content of messages and groups)."""
    pos = 0
    while pos < len(data):
        tag, pos = read_varint(data, pos, len(data))
        begin, pos = _skip(data, pos, tag)
        inside = pos - len(varint(tag + 1)) if tag & 7 == GROUP else pos
        yield tag >> 3, tag & 7, data[begin:inside]


def _skip(data: bytes, pos: int, tag: int) -> tuple[int, int]:
    """Start of a value (after its length) and its end (of a group, after its end tag)."""
    wire = tag & 7
    if wire in FIXED_WIRES:
        return pos, pos + FIXED_WIRES[wire]
    if wire == LENGTH:
        length, pos = read_varint(data, pos, len(data))
        return pos, pos + length
    if wire != GROUP:
        return pos, read_varint(data, pos, len(data))[1]
    begin = pos
    while True:
        inner, pos = read_varint(data, pos, len(data))
        if inner & 7 == END_OF_GROUP:
            return begin, pos
        pos = _skip(data, pos, inner)[1]
