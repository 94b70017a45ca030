"""Whether a payload that protobuf refuses is nested too deep: the parser's own error does not tell it from damage."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

#: Protobuf's own limit.
MAX_LEVELS = 100


def is_too_deep(payload: bytes, message: Descriptor) -> bool:
    """Whether nesting passes the limit before anything else is wrong; reads no further than that."""
    # (where the level ends, its message type if the schema knows it, whether a tag ends it)
    levels: list[tuple[int, Descriptor | None, bool]] = [(len(payload), message, False)]
    at = 0
    try:
        while len(levels) <= MAX_LEVELS:
            end, known, is_group = levels[-1]
            if at >= end:
                if is_group or len(levels) == 1:
                    return False
                levels.pop()
                continue
            tag, at = _varint(payload, at)
            field = known.fields_by_number.get(tag >> 3) if known is not None else None
            inner = field.message_type if field is not None else None
            match tag & 7:  # wire type: varint, 8 bytes, length and bytes, group, its end, 4 bytes
                case 0:
                    _, at = _varint(payload, at)
                case 1 | 5 as wire:
                    at += 8 if wire == 1 else 4
                case 2:
                    length, at = _varint(payload, at)
                    if inner is None:
                        at += length
                    else:
                        levels.append((at + length, inner, False))
                case 3:
                    levels.append((end, inner, True))
                case 4 if is_group:
                    levels.pop()
                case _:
                    return False
    except IndexError:
        return False
    return True


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """A varint, and where what follows it begins."""
    value = shift = 0
    while True:
        octet = payload[at]
        at += 1
        value |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            return value, at
