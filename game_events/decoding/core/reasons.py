"""Reasons of records in quarantine."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The reasons, with an `explanation`; the column `detail` describes a single row."""

    TOMBSTONE = "TOMBSTONE"
    TOO_SHORT = "TOO_SHORT"
    BAD_MAGIC = "BAD_MAGIC"
    BAD_INDEX = "BAD_INDEX"
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"
    BAD_SCHEMA = "BAD_SCHEMA"
    TOO_DEEP = "TOO_DEEP"
    TRUNCATED = "TRUNCATED"
    BAD_UTF8 = "BAD_UTF8"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    MALFORMED = "MALFORMED"
    UNREADABLE_FILE = "UNREADABLE_FILE"
    TOO_LARGE = "TOO_LARGE"

    @property
    def explanation(self) -> str:
        """Its meaning."""
        return _EXPLANATIONS[self]


_EXPLANATIONS = {
    Reason.TOMBSTONE: "the record has no value at all",
    Reason.TOO_SHORT: "fewer bytes than a schema registry frame needs",
    Reason.BAD_MAGIC: "the first byte is neither 00 nor 01: not framed for a schema registry",
    Reason.BAD_INDEX: "the message indexes are damaged, or name no message of the schema",
    Reason.UNKNOWN_SCHEMA: "the registry does not know the schema id",
    Reason.BAD_SCHEMA: "the registry's text does not compile, or has a format that is not decoded",
    Reason.TOO_DEEP: "nested deeper than the limit of 100 levels",
    Reason.TRUNCATED: "the payload ends in the middle of a value",
    Reason.BAD_UTF8: "a text is not UTF-8",
    Reason.OUT_OF_RANGE: "a value is outside the range of its type",
    Reason.MALFORMED: "the payload is not a message of its schema",
    Reason.UNREADABLE_FILE: "a file of the source, or the rest of it, cannot be read",
    Reason.TOO_LARGE: "a record, or what is left of a file, is larger than the bounds of the settings",
}
#: Rows with these reasons hold no complete record.
NO_RECORD = frozenset({Reason.UNREADABLE_FILE, Reason.TOO_LARGE})
#: Bytes of an incomplete record that quarantine keeps.
KEPT_BYTES = 1024 * 1024


def too_large(size: str, most: int) -> str:
    """Detail of a record that is too large."""
    return f"a record of {size} bytes, {most:,} are allowed (GAME_EVENTS_MAX_RECORD_BYTES)"
