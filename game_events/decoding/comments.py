"""What a schema's author wrote beside its fields: comments of `.proto` files, Avro's `doc`, JSON Schema's `description`.

Read in the driver, from the schema's text, apart from decoding: no worker gets them and no row depends on them.
"""

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

#: Characters of a comment: each commit that changes a column repeats the comments of all of them.
MAX_CHARS = 500
_UNSEEN = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f{UNSEEN}\ud800-\udfff]")


class Comments(Protocol):
    """The comments of one schema."""

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:
        """The comment of a field as its author wrote it, or "".

        Args:
            message: full name of the message type, as its decoder has it.
            names: names of the fields down to it, in this version; none: the message type itself.
        """


class _NoComments:
    """A schema whose comments cannot be read has none."""

    def of(self, message: str, names: tuple[str, ...] = ()) -> str:  # noqa: ARG002
        """Nothing."""
        return ""


NO_COMMENTS: Comments = _NoComments()


def read_comments(schema: RegistrySchema) -> Comments:
    """The comments of a schema; none if they cannot be read, as nothing but comments depends on them.

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
    """A comment as it is stored: one line, nothing invisible, not longer than `MAX_CHARS`; "" for what is no text."""
    if not isinstance(text, str):
        return ""
    # Long before it is looked at closely: a schema may be megabytes of comment.
    line = " ".join(_UNSEEN.sub(" ", text[: 20 * MAX_CHARS]).split())
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 3].rstrip() + "..."
