"""Diagnosis of a malformed payload: its first fault in byte order, with reason and position.

Parses the wire format by the schema, consistent with Python's protobuf. Details name types, fields and positions, never values,
which may be personal data. Source of the format: protobuf.dev, "Encoding".
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from game_events.decoding.frame import Reason
from game_events.decoding.protobuf.fields import FIXED_SIZES, Role, is_group, members, role_of
from game_events.decoding.protobuf.verification import is_in_range

#: Protobuf's own limit of nested messages and groups.
MAX_LEVELS = 100
#: Fields parsed at most, some milliseconds; later faults are not located.
MAX_STEPS = 20_000
#: Names of a path in a detail.
_NAMED = 10
_F = FieldDescriptor
#: A varint has ten bytes at most (bits beyond 64 are ignored).
_LONG_VARINT = re.compile(rb"[\x80-\xff]{10}")
#: Wire types; those of fixed size with it. A tag is the field's number and, in the lowest three bits, the wire type: ``12`` is
#: 2 << 3 | 2, field 2 of a LENGTH.
LENGTH = 2
GROUP = 3
END_OF_GROUP = 4
FIXED_WIRES = {1: 8, 5: 4}
_TAG_BYTES = 5
_MAX_TAG = 2**32
_MAX_LENGTH = 2**31
_ALL_BITS = 2**64 - 1


class FaultError(Exception):
    """A fault: reason, what, and the position."""


#: Errors of a value that is not plain: the walk finds its fault, if it has one.
_NOT_PLAIN = (FaultError, IndexError, UnicodeDecodeError, DecodeError)
#: Field numbers whose tags have one byte are below.
_ONE_BYTE_TAGS = 16


@dataclass(frozen=True)
class _Known:
    """A field of the schema: how its delimited values are read."""

    name: str
    message: Descriptor | None
    is_group: bool
    is_text: bool
    time: Role | None
    #: Parser of a time or a duration.
    parse: Callable[[bytes], Any] | None
    #: Bytes of a packed element; 0: varints; None: not packed.
    packed: int | None


class FaultFinder:
    """Finds the fault of payloads of one message type."""

    def __init__(self, message: Descriptor, pool: DescriptorPool) -> None:
        self._message = message
        self._pool = pool
        self._known: dict[str, dict[int, _Known]] = {}
        #: One-byte tag of a field at the top -> check of its value, which raises `_NOT_PLAIN`.
        self._plain: dict[int, Callable[[bytes], object]] = {}
        for number, known in self._of(message).items():
            if number < _ONE_BYTE_TAGS:
                self._plain |= {number << 3 | wire: check for wire, check in _plain_checks(known)}

    def first(self, payload: bytes) -> tuple[Reason, str] | None:
        """Reason and detail of the first fault; None if not found. Never raises."""
        walk = _Walk(payload, self._message, self._of)
        try:
            walk.run(self._plain_end(payload))
        except FaultError as fault:
            reason, what, pos = fault.args
            name = ".".join(walk.path if len(walk.path) <= _NAMED else [*walk.path[:_NAMED], "..."])
            where = f"{self._message.full_name}: field {name}: " if name else f"{self._message.full_name}: "
            return reason, f"{where}{what} at byte {pos}"
        return None

    def _plain_end(self, payload: bytes) -> int:
        """The position behind the first fields at the top that are short and have no fault, which costs a third of the walk."""
        pos = 0
        end = len(payload)
        plain = self._plain
        try:
            for _ in range(MAX_STEPS):
                check = plain.get(payload[pos])
                size = payload[pos + 1]
                if check is None or size > 0x7F:
                    break
                if payload[pos] & 7 != LENGTH:
                    pos += 2
                    continue
                stop = pos + 2 + size
                if stop > end:
                    break
                check(payload[pos + 2 : stop])
                pos = stop
        except _NOT_PLAIN:
            pass
        return pos

    def _of(self, message: Descriptor) -> dict[int, _Known]:
        known = self._known.get(message.full_name)
        if known is None:
            known = self._known[message.full_name] = {int(f.number): _known(f) for f in members(message, self._pool)}
        return known


class _Walk:
    """One pass over a payload until the first fault; `path`: names of the fields at the current position."""

    def __init__(self, payload: bytes, message: Descriptor, known_of: Callable[[Descriptor], dict[int, _Known]]) -> None:
        self.path: list[str] = []
        self._payload = payload
        self._known_of = known_of
        # (end of the level, its message type if known, its group's number)
        self._levels: list[tuple[int, Descriptor | None, int]] = [(len(payload), message, 0)]

    def run(self, pos: int) -> None:
        """Raises FaultError for the first fault from a position at the top on."""
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
        """Field number and wire type, and the position after them."""
        tag, pos = varint(self._payload, begin, end)
        if not tag >> 3:
            raise FaultError(Reason.MALFORMED, "field number 0", begin)
        if pos - begin > _TAG_BYTES or tag >= _MAX_TAG:
            raise FaultError(Reason.MALFORMED, "the field number is too great", begin)
        return tag >> 3, tag & 7, pos

    def _number(self, wire: int, begin: int, pos: int, end: int) -> int:
        """A varint or a value of fixed size; returns the position after it."""
        if wire == 0:
            return varint(self._payload, pos, end)[1]
        if wire in FIXED_WIRES:
            if pos + FIXED_WIRES[wire] > end:
                raise FaultError(Reason.TRUNCATED, "the value runs past the end", begin)
            return pos + FIXED_WIRES[wire]
        what = "the end of a group that was not opened" if wire == END_OF_GROUP else f"wire type {wire}"
        raise FaultError(Reason.MALFORMED, what, begin)

    def _delimited(self, begin: int, pos: int, end: int, known: _Known | None) -> int:
        """A delimited value."""
        length, pos = varint(self._payload, pos, end)
        if length >= _MAX_LENGTH:
            raise FaultError(Reason.MALFORMED, "the length is impossible", begin)
        if length > end - pos:
            raise FaultError(Reason.TRUNCATED, "the length runs past the end", begin)
        if known is not None and known.message is not None and not known.is_group:
            if known.parse is not None:
                with suppress(DecodeError):
                    _check_time(self._payload[pos : pos + length], known.parse, known.time, begin)
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


def _known(field: FieldDescriptor) -> _Known:
    is_text = field.type == _F.TYPE_STRING
    packable = field.is_repeated and field.message_type is None and field.type not in (_F.TYPE_STRING, _F.TYPE_BYTES)
    role = role_of(field)
    time = role if role in (Role.TIME, Role.DURATION) else None
    parse = message_factory.GetMessageClass(cast(Descriptor, field.message_type)).FromString if time else None
    packed = FIXED_SIZES.get(field.type, 0) if packable else None
    return _Known(field.name, field.message_type, is_group(field), is_text, time, parse, packed)


def _plain_checks(known: _Known) -> Iterator[tuple[int, Callable[[bytes], object]]]:
    """Wire types that a field may have, with the check of such a value."""
    if known.parse is not None:
        yield LENGTH, partial(_check_time, parse=known.parse, role=known.time, pos=0)
    elif known.is_text:
        yield LENGTH, bytes.decode
    elif known.message is None and known.packed is None:
        yield 0, bool
        yield LENGTH, bool


def _check(payload: bytes, begin: int, end: int, known: _Known) -> None:
    """Check a delimited value that is no message."""
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


def _check_time(content: bytes, parse: Callable[[bytes], Any], role: Role | None, pos: int) -> None:
    """Raises FaultError for a time or a duration out of range, DecodeError for a malformed one."""
    time = parse(content)
    is_time = role is Role.TIME
    if not is_in_range(time.seconds, time.nanos, is_time=is_time):
        what = "outside protobuf's range of a " + ("time" if is_time else "duration")
        raise FaultError(Reason.OUT_OF_RANGE, what, pos)


def varint(payload: bytes, pos: int, end: int) -> tuple[int, int]:
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
