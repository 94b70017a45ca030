"""Why a record is in quarantine: the closed list that users filter by."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Each reason with what it means; `detail` in the quarantine says more about the single row."""

    TOMBSTONE = "TOMBSTONE"
    """The record has no value at all."""
    TOO_SHORT = "TOO_SHORT"
    """Fewer bytes than a frame needs."""
    BAD_MAGIC = "BAD_MAGIC"
    """The first byte is not 00: not framed for a schema registry."""
    BAD_INDEX = "BAD_INDEX"
    """The message indexes are damaged, or name no message of the schema."""
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"
    """The registry does not know the schema id."""
    BAD_SCHEMA = "BAD_SCHEMA"
    """The registry's text does not compile, or has a format that is not decoded."""
    TOO_DEEP = "TOO_DEEP"
    """Nested deeper than protobuf's own limit of 100 levels."""
    MALFORMED = "MALFORMED"
    """The payload is not a message of its schema."""
