"""Reasons of records in quarantine, and the error of a malformed payload, which has one."""

from __future__ import annotations

import struct
from enum import StrEnum


class Reason(StrEnum):
    """The reasons, with their explanations; the column `detail` describes a single row."""

    explanation: str

    def __new__(cls, name: str, explanation: str = "") -> Reason:
        """`name`: in the column `reason`."""
        made = str.__new__(cls, name)
        made._value_, made.explanation = name, explanation
        return made

    TOMBSTONE = "TOMBSTONE", "the record has no value at all"
    TOO_SHORT = "TOO_SHORT", "fewer bytes than a schema registry frame needs"
    BAD_MAGIC = "BAD_MAGIC", "the first byte is neither 00 nor 01: not framed for a schema registry"
    BAD_INDEX = "BAD_INDEX", "the message indexes are damaged, or name no message of the schema"
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA", "the registry does not know the schema id"
    REGISTRY_CHANGED = (
        "REGISTRY_CHANGED",
        "the registry gives the schema id another meaning than the records have that were read with it before",
    )
    BAD_SCHEMA = "BAD_SCHEMA", "the registry's text does not compile, or has a format that is not decoded"
    TOO_DEEP = "TOO_DEEP", "nested deeper than the limit of 100 levels"
    TRUNCATED = "TRUNCATED", "the payload ends in the middle of a value"
    BAD_UTF8 = "BAD_UTF8", "a text is not UTF-8"
    OUT_OF_RANGE = "OUT_OF_RANGE", "a value is outside the range of its type"
    MALFORMED = "MALFORMED", "the payload is not a message of its schema"
    TOO_MANY_VALUES = "TOO_MANY_VALUES", "a record of more values, once decoded, than the bound of 8 million"
    UNREADABLE_FILE = "UNREADABLE_FILE", "a file of the source, or the rest of it, cannot be read"
    UNREADABLE = "UNREADABLE", "a record of a batch in the topic that is damaged, or unpacks to more than the client's bound"
    TOO_LARGE = "TOO_LARGE", "a record, or what is left of a file, is larger than the bounds of the settings"


#: Rows with these reasons hold no complete record.
NO_RECORD = frozenset({Reason.UNREADABLE_FILE, Reason.UNREADABLE, Reason.TOO_LARGE})
#: Bytes of an incomplete record that quarantine keeps.
KEPT_BYTES = 1024 * 1024


def too_large(size: str, most: int) -> str:
    """Detail of a record that is too large."""
    return f"a record of {size} bytes, {most:,} are allowed (GAME_EVENTS_MAX_RECORD_BYTES)"


class DamageError(Exception):
    """A payload that cannot be read exactly: reason in quarantine, description, and field names from the value outwards.

    `end`: the position after a value that was read and is outside of its type's range; None: the damage is another one.
    """

    def __init__(self, reason: Reason, what: str, end: int | None = None) -> None:
        super().__init__(reason, what, end)
        self.reason, self.what, self.end = reason, what, end
        self.path: list[str] = []

    def detail(self, message: str) -> str:
        """Detail in quarantine: message type, path and error."""
        return f"{'.'.join([message, *reversed(self.path)])}: {self.what}"


#: Errors of reading malformed bytes.
DAMAGE = (DamageError, IndexError, UnicodeDecodeError, struct.error, RecursionError)


def as_damage(error: BaseException) -> DamageError:
    """An error of `DAMAGE` as DamageError."""
    match error:
        case DamageError():
            return error
        case UnicodeDecodeError():
            return DamageError(Reason.BAD_UTF8, f"no UTF-8: {error.reason} at byte {error.start} of the text")
        case RecursionError():
            return DamageError(Reason.TOO_DEEP, "nested too deep to be read")
        case _:
            return DamageError(Reason.TRUNCATED, "the payload ends inside a value")
