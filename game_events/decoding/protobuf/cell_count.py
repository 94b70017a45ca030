"""Counts the cells of the lists in protobuf payloads before anything is decoded: parsers allocate each element in full.

Walks over the tags only, and enters only messages with lists in them, and those that are parsed whole. What is malformed ends
the count: parsers end there, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from game_events.decoding.core.expansion import MAX_RECORD_CELLS, cells_of_element
from game_events.decoding.protobuf.diagnosis import END_OF_GROUP, FIXED_WIRES, GROUP, LENGTH, MAX_LEVELS, FaultError, varint
from game_events.decoding.protobuf.fields import FIXED_SIZES, Label, Node, Role, is_group, members

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
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


class CellCounter:
    """Counts for one message type; `safe_bytes`: payloads up to this length never have more than `MAX_RECORD_CELLS`."""

    def __init__(self, nodes: list[Node], pool: DescriptorPool) -> None:
        self._fields = _items(nodes, pool, {})
        self.safe_bytes = MAX_RECORD_CELLS * 2 // max(_widest(self._fields, set()), 2)

    def is_too_large(self, payload: bytes) -> bool:
        """Whether its lists have more cells than `MAX_RECORD_CELLS`, or it has twice as many fields."""
        try:
            return self._walk(payload)
        except FaultError:
            return False

    def _walk(self, payload: bytes) -> bool:
        total = at = 0
        levels: list[tuple[int, Mapping[int, _Item], int]] = [(len(payload), self._fields, 0)]
        # Fields that are no elements make no cells, but take as long.
        for _ in range(2 * MAX_RECORD_CELLS):
            end, fields, group = levels[-1]
            if at >= end:
                levels.pop()
                if group or not levels:
                    return False
                continue
            tag, at = (payload[at], at + 1) if payload[at] < _TWO_BYTES else varint(payload, at, end)
            number, wire, item = tag >> 3, tag & 7, fields.get(tag >> 3, _OTHER)
            if wire == LENGTH:
                size, at = (payload[at], at + 1) if at < end and payload[at] < _TWO_BYTES else varint(payload, at, end)
                if size > end - at:
                    return False
                many = 1 if item.packed is None else _packed(payload[at : at + size], item.packed)
                total += item.cells * many
                if item.inside and not item.is_group:
                    levels.append((at + size, item.inside, 0))
                else:
                    at += size
            elif wire == END_OF_GROUP:
                if group != number:
                    return False
                levels.pop()
            elif wire == GROUP:
                levels.append((end, item.inside if item.is_group else {}, number))
            else:
                at = at + FIXED_WIRES[wire] if wire in FIXED_WIRES else varint(payload, at, end)[1]
            total += item.cells if wire not in (LENGTH, END_OF_GROUP) else 0
            if total > MAX_RECORD_CELLS or len(levels) > MAX_LEVELS + 1:
                return total > MAX_RECORD_CELLS
        return True


def _packed(content: bytes, size: int) -> int:
    return len(content) // size if size else len(content.translate(None, _CONTINUED))


def _items(nodes: Iterable[Node], pool: DescriptorPool, parsed: dict[str, dict[int, _Item]]) -> dict[int, _Item]:
    """The fields that are lists or maps, or messages with lists in them, by number."""
    found = {}
    for node in nodes:
        inside: Mapping[int, _Item] = _items(node.children, pool, parsed) if node.role is Role.STRUCT else {}
        cells, packed = 0, None
        if node.label is not Label.ONE:
            cells = cells_of_element(node.stored())
            if node.role is Role.SCALAR and node.descriptor.type not in _TEXTS and node.key is None:
                packed = FIXED_SIZES.get(node.descriptor.type, 0)
        if node.role in (Role.OPAQUE, Role.JSON):
            cells, inside = cells + len(node.message.fields), _parsed(node.message, pool, parsed)
        if node.label is Label.MAP and inside:
            inside = {2: _Item(0, inside, is_group(node.descriptor), None)}
        if cells or inside:
            found[node.number] = _Item(cells, inside, is_group(node.descriptor), packed)
    return found


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
