"""Descriptions of tables and columns from comments in schemas; silver's columns get them from bronze's.

A column has the comment of the newest schema of its rows: an older schema id never replaces the comment of a newer one, so
producers of several versions do not alternate it. Nothing but comments depends on this.
"""

import re
from collections.abc import Iterable

import pyarrow as pa
from deltalake import DeltaTable

from game_events.decoding.columns import ColumnMap, field_key
from game_events.decoding.comments import clean
from game_events.decoding.decoder import TypeKey
from game_events.decoding.frame import ordered
from game_events.lakehouse.data.columns import with_comments
from game_events.pipeline.context import Pipeline

BRONZE_DESCRIPTION = "Every decodable record of the source, once, decoded by its writer's schema"

#: Separates a table's own description from the comment of its message type.
MESSAGE = ". Message: "

_OF = re.compile(r" \(schema id (\d+)\)$")


def documented(pipeline: Pipeline, schema: pa.Schema, columns: ColumnMap, types: Iterable[TypeKey]) -> pa.Schema:
    """Bronze's schema with the comments of the message types that occurred; GUIDs have no order and count as the oldest."""
    texts: dict[str, tuple[str, int]] = {}
    for schema_id, _ in sorted(set(types), key=lambda key: (ordered(key[0]), key[1])):
        comments = pipeline.catalog.comments(schema_id)
        for message, fields in pipeline.catalog.known_messages(schema_id).items():
            for item in fields:
                column = columns.names.get(field_key(message, (item.id,), item.kind))
                text = clean(comments.of(message, (item.name,))) if column is not None else ""
                if column is not None and text:
                    texts[column] = (text, schema_id if isinstance(schema_id, int) else 0)
    return with_comments(schema, texts)


def about_bronze(pipeline: Pipeline, bronze: DeltaTable, types: Iterable[TypeKey]) -> str | None:
    """Bronze's description with the comment of its newest message type; None if there is no newer one."""
    newest = max((i for i, _ in types if isinstance(i, int)), default=None)
    held = _OF.search(bronze.metadata().description or "")
    if newest is None or (held is not None and newest <= int(held[1])):
        return None
    comments = pipeline.catalog.comments(newest)
    texts = [clean(comments.of(message)) for message in pipeline.catalog.known_messages(newest)]
    text = next(filter(None, texts), "")
    return f"{BRONZE_DESCRIPTION}{MESSAGE}{text} (schema id {newest})" if text else None


def message_comment(bronze: DeltaTable) -> str:
    """The comment of the message type in bronze's description, for derived tables; or an empty text."""
    about = _OF.sub("", bronze.metadata().description or "")
    return f"{MESSAGE}{about.partition(MESSAGE)[2]}" if MESSAGE in about else ""
