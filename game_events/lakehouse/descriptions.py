"""Column comments, owners and tags of a table, in the metadata of its columns, where Spark, Unity and other readers read them.

A column's comment is the key `comment` of its metadata (Delta protocol, "Column Metadata"; shown by `DESCRIBE TABLE`). Owners
and tags are in the metadata of the first column, as the table's format is: delta-rs takes no table properties but Delta's.

Guarantee: rows do not depend on them. What cannot be written is logged, and the rows are committed.
"""

import json
import logging
from collections.abc import Mapping
from functools import cache

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError

from game_events.lakehouse.retention import KEEP_LOG
from game_events.lakehouse.tables import QUARANTINE, REST_DELIVERIES, REST_FAILED_CHUNKS, REST_OUTBOX, Table

log = logging.getLogger(__name__)

#: Key of a column's metadata with its comment; Spark's name for it.
COMMENT = "comment"
#: The schema id that a comment is of: an older schema's comment never takes the place of a newer one's.
COMMENT_OF = "game_events.comment_of"
OWNERS, TAGS = "game_events.owners", "game_events.tags"
#: Keys that only describe.
DESCRIBING = frozenset({COMMENT, COMMENT_OF, OWNERS, TAGS})
#: Characters of all comments of one table: each commit that changes its columns repeats them.
MAX_TABLE_CHARS = 200_000
#: Columns that begin with an underscore mean the same in every table.
_EVERYWHERE = {
    "_kafka_topic": "Kafka topic that the record was read from",
    "_kafka_topic_id": "Kafka's id of that topic: a topic that was deleted and made again has another one",
    "_kafka_partition": "Partition of the record",
    "_kafka_offset": "Offset of the record in its partition",
    "_kafka_timestamp": "Kafka's timestamp of the record (UTC)",
    "_kafka_key": "Key of the record, as it was sent",
    "_kafka_headers": "Headers of the record, in their order; NULL: it had none",
    "_schema_id": "Id of the schema in the registry that the record was written with",
    "_schema_guid": "GUID of that schema, where the record names it by one",
    "_raw_value": "Value of the record as it was sent, frame included",
    "_batch": "Number of the commit of bronze_events that brought the row",
    "_file_path": "File that the record was read from; NULL: from Kafka",
    "_file_position": "Place of the record in its file, from 0",
}
#: Columns of a chunk in `REST_TABLES`.
_CHUNK = {
    "slice": "Number of the commit to rest_outbox that fixed the chunk",
    "chunk": "Number of the chunk in its slice",
    "key": "Idempotency key that the chunk is sent with",
    "source": "Table, or file, that the rows come from",
    "game": "Game that they are of",
    "batch_from": "The rows are of batches of bronze_events above this one",
    "batch_to": "Last batch of bronze_events that the rows are of",
    "first": "Place of the first row in its source",
    "last": "Place of the last row in its source",
    "rows": "Rows of the chunk",
    "bytes": "Bytes of their JSON",
}
_CHUNK_ROW = {"number": "Place of the row in its chunk", "json": "The row as it is sent"}
_CALL = {
    "status": "HTTP status of the last answer; NULL: there was none",
    "attempts": "Calls that were made",
    "at": "When it was decided (UTC)",
    "run_id": "Run that sent it",
}
_BY_TABLE = {
    QUARANTINE: {
        "layer": "Where the row was kept out: bronze (undecodable) or silver (rejected by a rule)",
        "reason": "Why, in one word",
        "detail": "Why, in words",
        "quarantined_at": "When (UTC)",
        "run_id": "Run that kept it out",
        "replayed_table": "Table that took the row after all; NULL: none has",
        "replayed_batch": "Batch of bronze_events in which it did; with no table: as of which bronze lacks that row",
        "replayed_at": "When that was noted (UTC)",
        "game": "Game of the silver table that the row was kept out of",
    },
    REST_OUTBOX: _CHUNK | _CHUNK_ROW,
    REST_DELIVERIES: _CHUNK | _CALL | {"outcome": "delivered or dead"},
    REST_FAILED_CHUNKS: _CHUNK | _CHUNK_ROW | _CALL | {"reason": "Why the chunk failed", "answer": "What the receiver said"},
}
#: Of the shipped aggregate. Its tables' keys do not tell whether they have these columns, or others of the same names by
#: settings: only who makes them knows (`pipeline/gold/aggregates.py`).
AGGREGATE = {
    "session_count": "Number of events",
    "min_timestamp": "Time of the first event (UTC)",
    "max_timestamp": "Time of the last event (UTC)",
}


@cache
def own_comments(table: str, person: str | None = None) -> dict[str, str]:
    """Comments of a table's own columns, by its key; `person`: the column that gold aggregates by."""
    found = _EVERYWHERE | _BY_TABLE.get(table, {})
    if table.startswith("gold_") and person is not None:
        found |= {person: "Whom the row is about"}
    return found


def metadata_of(item: pa.Field) -> dict[str, str]:
    """Metadata of a column as text."""
    return {key.decode(): value.decode() for key, value in (item.metadata or {}).items()}


def with_comments(schema: pa.Schema, comments: Mapping[str, tuple[str, int]]) -> pa.Schema:
    """A schema with comments: column -> (comment, schema id that it is of)."""
    fields, room = [], MAX_TABLE_CHARS
    for item in schema:
        text, of = comments.get(item.name, ("", 0))
        room -= len(text)
        new = {COMMENT: text, COMMENT_OF: str(of)} if text and room >= 0 else {}
        fields.append(item.with_metadata(metadata_of(item) | new) if new else item)
    return pa.schema(fields, metadata=schema.metadata)


def described(table: Table, schema: pa.Schema) -> pa.Schema:
    """A table's schema with comments (its own, else those of this project), owners and tags."""
    own = own_comments(table.key, table.person)
    fields = []
    for index, item in enumerate(schema):
        # Owners and tags of the table that the columns come from are not this one's.
        metadata = {key: value for key, value in metadata_of(item).items() if key not in (OWNERS, TAGS)}
        if item.name in own:
            metadata.setdefault(COMMENT, own[item.name])
        fields.append(item.with_metadata(metadata | (_labels(table) if index == 0 else {})))
    return pa.schema(fields, metadata=schema.metadata)


def comments_of(schema: pa.Schema) -> dict[str, str]:
    """Column -> comment, of those that have one."""
    return {f.name: metadata[COMMENT] for f in schema if COMMENT in (metadata := metadata_of(f))}


def owners_of(handle: DeltaTable) -> list[str]:
    """A table's owners."""
    fields = handle.schema().fields
    return list(json.loads(str(fields[0].metadata.get(OWNERS, "[]")))) if fields else []


def tags_of(handle: DeltaTable) -> dict[str, str]:
    """A table's tags."""
    fields = handle.schema().fields
    return dict(json.loads(str(fields[0].metadata.get(TAGS, "{}")))) if fields else {}


def describe(table: Table, handle: DeltaTable, wanted: pa.Schema, description: str | None = None) -> DeltaTable:
    """Update a table's descriptions: one commit for all new ones, and one for each changed comment.

    Delta-rs merges new keys of metadata, and refuses other values of old ones.

    `wanted`: its columns, from `described`; `description`: None: it stays. Returns a handle on the newest version.
    """
    held = {f.name: f for f in handle.schema().fields}
    new, changed = _differences(held, wanted)
    about = description if description is not None and description != handle.metadata().description else None
    if not new and not changed and about is None:
        return handle
    table.require_writable()
    try:
        if new:
            handle.alter.add_columns(new, post_commithook_properties=KEEP_LOG)
        for column, values in changed.items():
            handle.alter.set_column_metadata(column, values, post_commithook_properties=KEEP_LOG)
        if about is not None:
            handle.alter.set_table_description(about, post_commithook_properties=KEEP_LOG)
    except (DeltaError, OSError) as error:  # e.g. a concurrent commit: the next commit of rows tries again
        log.info("table=%s comments_not_written=true cause=%s", table.name, type(error).__name__)
    return table.open() or handle


def _differences(held: Mapping[str, Field], wanted: pa.Schema) -> tuple[list[Field], dict[str, dict[str, str]]]:
    """Columns with keys that they lack, and keys with other values."""
    new: list[Field] = []
    changed: dict[str, dict[str, str]] = {}
    for item in wanted:
        have = held.get(item.name)
        if have is None:
            continue
        wants = {key: value for key, value in metadata_of(item).items() if key in DESCRIBING}
        known = {key: str(value) for key, value in have.metadata.items()}
        if COMMENT in wants and COMMENT in known:
            newer = COMMENT_OF in wants and int(wants[COMMENT_OF]) > int(known.get(COMMENT_OF, -1))
            if not newer or wants[COMMENT] == known[COMMENT]:
                wants = {k: v for k, v in wants.items() if k not in (COMMENT, COMMENT_OF)}
        lacking = {k: v for k, v in wants.items() if k not in known}
        if lacking:
            new.append(Field(item.name, have.type, nullable=have.nullable, metadata=lacking))
        other = {k: v for k, v in wants.items() if k in known and known[k] != v}
        if other:
            changed[item.name] = other
    return new, changed


def _labels(table: Table) -> dict[str, str]:
    """Owners and tags in the settings; what they lack stays as the table has it."""
    labels = {OWNERS: list(table.owners), TAGS: dict(sorted(table.tags))}
    return {key: json.dumps(value) for key, value in labels.items() if value}
