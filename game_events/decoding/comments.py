"""Comments of schemas, in the driver only: of `.proto` files, Avro's `doc`, JSON Schema's `description`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Protocol

from game_events.decoding.avro.comments import AvroComments
from game_events.decoding.core.column_map import UNSEEN
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.json.comments import JsonComments
from game_events.decoding.protobuf_comments import ProtobufComments
from game_events.errors import DataError

log = logging.getLogger(__name__)

#: Characters of a comment: each commit that changes a column repeats all comments.
MAX_CHARS = 500
_UNSEEN = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f{UNSEEN}\ud800-\udfff]")


class Comments(Protocol):
    """The comments of one schema."""

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:
        """The original comment of a field, or "".

        Args:
            message: full name of the message type.
            names: path of field names in this version; empty: the message type itself.
        """


class _NoComments:
    def of(self, message: str, names: tuple[str, ...] = ()) -> str:  # noqa: ARG002
        return ""


NO_COMMENTS: Comments = _NoComments()


def read_comments(schema: RegistrySchema) -> Comments:
    """The comments of a schema; none if they cannot be read.

    Raises:
        TransientError: the compiler cannot be used now.
    """
    readers: dict[str, Callable[[RegistrySchema], Comments]] = {
        "PROTOBUF": ProtobufComments,
        "AVRO": AvroComments,
        "JSON": JsonComments,
    }
    try:
        return readers[schema.format](schema)
    except (DataError, KeyError, ValueError, TypeError, RecursionError) as error:
        log.info("comments_not_read=true schema_id=%s cause=%s", schema.schema_id, type(error).__name__)
        return NO_COMMENTS


def clean(text: object) -> str:
    """A comment as stored: one line of visible characters, at most `MAX_CHARS`; "" for other values than text."""
    if not isinstance(text, str):
        return ""
    # Cut first: a comment may be megabytes.
    line = " ".join(_UNSEEN.sub(" ", text[: 20 * MAX_CHARS]).split())
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 3].rstrip() + "..."
