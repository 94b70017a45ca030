"""Conversion of fields that the native decoder cannot read: groups, message sets, great field numbers.

A group becomes a delimited message, a great number another one (`Node.native`).
"""

from collections.abc import Iterator, Sequence

from google.protobuf.descriptor import Descriptor

from game_events.decoding.protobuf.fields import MESSAGES, Node

_VARINT, _FIXED64, _LENGTH, _GROUP, _END, _FIXED32 = range(6)


class ForeignFields:
    """Converts canonical bytes of one message type to its surrogate schema (see `native`)."""

    def __init__(self, nodes: Sequence[Node], message: Descriptor) -> None:
        self._is_set = bool(message.GetOptions().message_set_wire_format)
        moved = {n.number: ForeignFields(n.children, n.message) for n in nodes if n.role in MESSAGES and n.is_foreign}
        self._nodes = {node.number: (node, moved.get(node.number), node.key is not None) for node in nodes}

    def converted(self, data: bytes) -> bytes:
        """The bytes in the surrogate schema."""
        out = bytearray()
        for number, wire, value in self._items(data):
            if number not in self._nodes:
                continue
            node, inner, is_map = self._nodes[number]
            if inner is not None:
                value = inner._entry(value) if is_map else inner.converted(value)  # noqa: PLW2901 - converted
            delimited = wire in (_LENGTH, _GROUP)
            out += varint(node.native << 3 | (_LENGTH if delimited else wire))
            out += varint(len(value)) + value if delimited else value
        return bytes(out)

    def _entry(self, data: bytes) -> bytes:
        """Convert a map's entry with a value of this type."""
        out = bytearray()
        for number, wire, value in _items(data):
            moved = self.converted(value) if number == 2 else value
            out += varint(number << 3 | wire) + (varint(len(moved)) if wire == _LENGTH else b"") + moved
        return bytes(out)

    def _items(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        if not self._is_set:
            yield from _items(data)
            return
        # group Item = 1 { required int32 type_id = 2; required bytes message = 3; }
        for _, _, item in _items(data):
            parts = {number: value for number, _, value in _items(item)}
            yield _read_varint(parts[2], 0)[0], _LENGTH, parts[3]


def _items(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Fields of well-formed bytes: number, wire type, and value (content of messages and groups)."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        begin, at = _skip(data, at, tag)
        inside = at - len(varint(tag + 1)) if tag & 7 == _GROUP else at
        yield tag >> 3, tag & 7, data[begin:inside]


def _skip(data: bytes, at: int, tag: int) -> tuple[int, int]:
    """Start of a value (after its length) and its end (of a group, after its end tag)."""
    match tag & 7:
        case 0:
            return at, _read_varint(data, at)[1]
        case 1:
            return at, at + 8
        case 5:
            return at, at + 4
        case 2:
            length, at = _read_varint(data, at)
            return at, at + length
    begin = at
    while True:
        inner, at = _read_varint(data, at)
        if inner & 7 == _END:
            return begin, at
        at = _skip(data, at, inner)[1]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            return value, at


def varint(value: int) -> bytes:
    """A number that is not negative as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
