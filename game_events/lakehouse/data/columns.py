"""Columns of tables: those of bronze, quarantine and silver besides the columns of messages, and descriptions of columns.

Comments, owners and tags are in the metadata of columns, where Spark, Unity and other readers read them. A column's comment is
the key `comment` (Delta protocol, "Column Metadata"; shown by `DESCRIBE TABLE`). Owners and tags are in the metadata of the
first column, as the table's format is: delta-rs takes no table properties but Delta's.

Guarantee: rows do not depend on descriptions. What cannot be written is logged, and the rows are committed.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError

from game_events.decoding.columns import ColumnMap
from game_events.decoding.frame import SchemaId, SchemaRef, named, registry_of_source
from game_events.lakehouse.open_table import OpenTable
from game_events.lakehouse.table_properties import KEEP_LOG
from game_events.lakehouse.tables import EXPORT_CALLS, EXPORT_FAILED_CALLS, EXPORT_OUTCOMES, QUARANTINE, AnyTable, Table

log = logging.getLogger(__name__)

#: Columns of a source's records: what bronze keeps of a record besides its decoded fields. `topic_id`, `partition` and
#: `offset` tell every record from every other.
RAW_COLUMNS = ("topic", "topic_id", "partition", "offset", "timestamp", "key", "value", "headers")
HEADERS = "_kafka_headers"
MESSAGE_TYPE = "_message_type"
SOURCE = "_source"
TIME = pa.timestamp("us", tz="UTC")

#: Columns of the pipeline itself, with their comments. They begin with an underscore, which no decoded column does, and mean
#: the same in every table.
_OWN: dict[str, tuple[pa.DataType, str]] = {
    "_kafka_topic": (pa.string(), "Kafka topic that the record was read from"),
    "_kafka_topic_id": (pa.string(), "Kafka's id of that topic: a topic that was deleted and made again has another one"),
    "_kafka_partition": (pa.int32(), "Partition of the record"),
    "_kafka_offset": (pa.int64(), "Offset of the record in its partition"),
    "_kafka_timestamp": (TIME, "Kafka's timestamp of the record (UTC)"),
    "_kafka_key": (pa.binary(), "Key of the record, as it was sent"),
    HEADERS: (
        pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
        "Headers of the record, in their order; NULL: it had none",
    ),
    "_schema_id": (pa.int64(), "Id of the schema in the registry that the record was written with"),
    "_schema_guid": (pa.string(), "GUID of that schema, where the record names it by one"),
    MESSAGE_TYPE: (pa.string(), "Full name of the record's message type; of JSON the schema's title, else its subject"),
    "_raw_value": (pa.binary(), "Value of the record as it was sent, frame included"),
    "_batch": (pa.int64(), "Number of the commit of bronze_events that brought the row"),
    "_file_path": (pa.string(), "File that the record was read from; NULL: from Kafka"),
    "_file_position": (pa.int64(), "Place of the record in its file, from 0"),
}

#: Columns that only quarantine has, with their comments. `replayed_...` are NULL until the row has come to bronze after all
#: (`reprocessing.py`). `game` is of rows that a rule of silver rejects: they are in bronze, and here instead of in its table.
_QUARANTINE: dict[str, tuple[pa.DataType, str]] = {
    "layer": (pa.string(), "Where the row was kept out: bronze (undecodable) or silver (rejected by a rule)"),
    "reason": (pa.string(), "Why, in one word"),
    "detail": (pa.string(), "Why, in words"),
    "quarantined_at": (TIME, "When (UTC)"),
    "run_id": (pa.string(), "Run that kept it out"),
    "replayed_table": (pa.string(), "Table that took the row after all; NULL: none has"),
    "replayed_batch": (pa.int64(), "Batch of bronze_events in which it did; with no table: as of which bronze lacks that row"),
    "replayed_at": (TIME, "When that was noted (UTC)"),
    "game": (pa.string(), "Game of the silver table that the row was kept out of"),
}

OWN_COLUMNS = pa.schema([pa.field(name, kind) for name, (kind, _) in _OWN.items()])
QUARANTINE_COLUMNS = pa.schema([*OWN_COLUMNS, *(pa.field(name, kind) for name, (kind, _) in _QUARANTINE.items())])

#: A column that tables have once they were made from several sources by name.
_SOURCED: dict[str, tuple[pa.DataType, str]] = {
    SOURCE: (pa.string(), "Name of the source in SOURCES that the record was read from; NULL: from the one that there was")
}
SOURCE_FIELD = pa.field(SOURCE, _SOURCED[SOURCE][0])
#: Names of all columns of the pipeline itself.
OWN_NAMES = (*OWN_COLUMNS.names, SOURCE)

#: Column of a source -> column of bronze and quarantine.
STORED_AS = {name: "_raw_value" if name == "value" else f"_kafka_{name}" for name in RAW_COLUMNS}

#: The two columns of a `SchemaRef`.
SCHEMA_COLUMNS = ("_schema_id", "_schema_guid")

#: Columns that tell each record of the source from every other.
COORDINATES = ("_kafka_topic_id", "_kafka_partition", "_kafka_offset")

QUARANTINE_DESCRIPTION = (
    "Every record that is not in bronze (layer bronze), and every row that a rule keeps out of silver (layer silver), with the "
    "reason; an append-only log that can be replayed"
)

#: Columns that only some records have (of files, of several sources) -> columns of bronze.
SOME_COLUMNS = {"file_path": "_file_path", "file_position": "_file_position", "source": SOURCE}

#: Bronze's columns that silver leaves out: they are in bronze, under the same coordinates, and in quarantine.
BRONZE_ONLY = ("_raw_value", "_kafka_key", HEADERS, "_kafka_topic_id")

#: Key of a stored row.
RECORD = ("_kafka_topic_id", "_kafka_partition", "_kafka_offset", "_batch")

#: A frame's default path: planned for before any record is seen.
FIRST_MESSAGE = (0,)


def none_if_empty(headers: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """No headers are NULL; they travel as empty lists (`travelling`)."""
    lengths = pc.list_value_length(headers)
    if not pc.any(pc.greater(lengths, 0)).as_py():
        return pa.nulls(len(headers), headers.type)
    return pc.if_else(pc.greater(lengths, 0), headers, pa.scalar(None, headers.type))


class StoredType(NamedTuple):
    """What a stored row was decoded with: id or GUID of the schema in its own columns, and full name of its message type.

    Each is None if it is not known; the name also for rows without a schema.
    """

    source: str | None
    topic: str
    schema_id: SchemaId | None
    message_type: str | None


def id_of_row(
    number: int | None, guid: str | None, source: str | None = None, *, registries: Mapping[str, str] = MappingProxyType({})
) -> SchemaId | None:
    """The id of a stored row's schema, by its own columns; `registries`: source -> name of its registry in ids."""
    schema_id = SchemaRef(number, guid).schema_id
    return None if schema_id is None else named(registry_of_source(source, registries), schema_id)


def ids_of_rows(rows: pa.Table, registries: Mapping[str, str]) -> pa.ChunkedArray:
    """The ids of stored rows' schemas as texts, each as `id_of_row`."""
    ids = pc.coalesce(rows.column("_schema_id").cast(pa.string()), rows.column("_schema_guid"))
    if SOURCE not in rows.column_names:
        return ids
    sources = pc.dictionary_encode(rows.column(SOURCE).combine_chunks(), null_encoding="encode")
    names = [registry_of_source(source, registries) for source in sources.dictionary.to_pylist()]
    begins = pa.array([f"{name}/" if name else "" for name in names], pa.string()).take(sources.indices)
    return pc.binary_join_element_wise(begins, ids, "")


def places(rows: pa.Table) -> pa.ChunkedArray:
    """The topic of each row, with its source if it has one (`Partition.place`): topics of two sources may have one name."""
    topics = rows.column("_kafka_topic")
    if SOURCE not in rows.column_names:
        return topics
    return pc.binary_join_element_wise(rows.column(SOURCE), topics, "/", null_handling="skip")


def own_columns(columns: pa.Schema, *, sourced: bool) -> pa.Schema:
    """`OWN_COLUMNS` or `QUARANTINE_COLUMNS`, with that of the sources' names if there are several."""
    return pa.schema([*columns, SOURCE_FIELD]) if sourced else columns


def is_sourced(handle: AnyTable | None) -> bool:
    """Whether a table has the column of the sources' names."""
    return handle is not None and any(f.name == SOURCE for f in handle.schema().fields)


def bronze_schema(columns: ColumnMap) -> pa.Schema:
    """Own columns, then every decoded column, each with its share of the column map."""
    decoded = [pa.field(n, t, metadata=columns.metadata(n)) for n, t in columns.columns.items()]
    return pa.schema([*own_columns(OWN_COLUMNS, sourced=columns.sourced), *decoded])


def identity_columns(schema_id: SchemaId | None, message_type: str | None, count: int) -> dict[str, pa.Array]:
    """`_schema_id` or `_schema_guid`, the other one NULL, and `_message_type`."""
    values = zip((*SCHEMA_COLUMNS, MESSAGE_TYPE), (*SchemaRef.of(schema_id), message_type), strict=True)
    return {name: pa.repeat(pa.scalar(value, OWN_COLUMNS.field(name).type), count) for name, value in values}


def column_map(handle: DeltaTable) -> ColumnMap:
    """Where fields land, from the metadata of the table's columns."""
    schema = pa.schema(handle.schema())
    columns = ColumnMap.from_metadata((f.name, schema.field(f.name).type, f.metadata) for f in handle.schema().fields)
    return replace(columns, sourced=True) if SOURCE in schema.names else columns


def has_decoded_columns(handle: DeltaTable) -> bool:
    """Whether bronze has a column of any message: none yet if all that came so far is of types that are not selected."""
    return any(f.name not in OWN_NAMES for f in handle.schema().fields)


#: Key of a column's metadata with its comment; Spark's name for it.
COMMENT = "comment"

#: The schema id that a comment is of: an older schema's comment never takes the place of a newer one's.
COMMENT_OF = "game_events.comment_of"
OWNERS, TAGS = "game_events.owners", "game_events.tags"

#: Keys that only describe.
DESCRIBING = frozenset({COMMENT, COMMENT_OF, OWNERS, TAGS})

#: Characters of all comments of one table: each commit that changes its columns repeats them.
MAX_TABLE_CHARS = 200_000

#: Columns of a chunk in `EXPORT_TABLES`.
_CHUNK = {
    "slice": "Number of the commit to export_calls that fixed the chunk",
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
    QUARANTINE: {name: text for name, (_, text) in _QUARANTINE.items()},
    EXPORT_CALLS: _CHUNK | _CHUNK_ROW,
    EXPORT_OUTCOMES: _CHUNK | _CALL | {"outcome": "delivered or failed"},
    EXPORT_FAILED_CALLS: _CHUNK | _CHUNK_ROW | _CALL | {"reason": "Why the call failed", "answer": "What the receiver said"},
}

#: Of the shipped aggregate. Its tables' keys do not tell whether they have these columns, or others of the same names by
#: settings: only who makes them knows (`pipeline/gold/plan.py`).
AGGREGATE = {
    "session_count": "Number of events",
    "min_timestamp": "Time of the first event (UTC)",
    "max_timestamp": "Time of the last event (UTC)",
}


@cache
def own_comments(table: str, person: str | None = None) -> dict[str, str]:
    """Comments of a table's own columns, by its key; `person`: the column that gold aggregates by."""
    texts = {name: text for name, (_, text) in (_OWN | _SOURCED).items()} | _BY_TABLE.get(table, {})
    if table.startswith("gold_") and person is not None:
        texts |= {person: "Whom the row is about"}
    return texts


def metadata_of(item: pa.Field) -> dict[str, str]:
    """Metadata of a column as text."""
    return {key.decode(): value.decode() for key, value in (item.metadata or {}).items()}


def with_comments(schema: pa.Schema, comments: Mapping[str, tuple[str, int]]) -> pa.Schema:
    """A schema with comments: column -> (comment, schema id that it is of)."""
    fields = []
    room = MAX_TABLE_CHARS
    for item in schema:
        text, of = comments.get(item.name, ("", 0))
        room -= len(text)
        new = {COMMENT: text, COMMENT_OF: str(of)} if text and room >= 0 else {}
        fields.append(item.with_metadata(metadata_of(item) | new) if new else item)
    return pa.schema(fields, metadata=schema.metadata)


def described(table: Table, schema: pa.Schema) -> pa.Schema:
    """A table's schema with comments (its own, else those of this project), owners and tags.

    Owners and tags that the settings lack stay as the table has them.
    """
    own = own_comments(table.key, table.person)
    labels = {OWNERS: list(table.owners), TAGS: dict(sorted(table.tags))}
    labels_as_text = {key: json.dumps(value) for key, value in labels.items() if value}
    fields = []
    for index, item in enumerate(schema):
        # Owners and tags of the table that the columns come from are not this one's.
        metadata = {key: value for key, value in metadata_of(item).items() if key not in (OWNERS, TAGS)}
        if item.name in own:
            metadata.setdefault(COMMENT, own[item.name])
        fields.append(item.with_metadata(metadata | (labels_as_text if index == 0 else {})))
    return pa.schema(fields, metadata=schema.metadata)


def comments_of(schema: pa.Schema) -> dict[str, str]:
    """Column -> comment, of those that have one."""
    return {f.name: metadata[COMMENT] for f in schema if COMMENT in (metadata := metadata_of(f))}


def comments_in(handle: DeltaTable) -> dict[str, str]:
    """`comments_of` a version of a table, for `of_columns`."""
    return comments_of(pa.schema(handle.schema()))


def owners_of(handle: DeltaTable) -> list[str]:
    """A table's owners."""
    fields = handle.schema().fields
    return list(json.loads(str(fields[0].metadata.get(OWNERS, "[]")))) if fields else []


def tags_of(handle: DeltaTable) -> dict[str, str]:
    """A table's tags."""
    fields = handle.schema().fields
    return dict(json.loads(str(fields[0].metadata.get(TAGS, "{}")))) if fields else {}


def describe(table: Table, handle: AnyTable, wanted: pa.Schema, description: str | None = None) -> AnyTable | OpenTable:
    """Update a table's descriptions: one commit for all new ones, and one for each changed comment.

    Delta-rs merges new keys of metadata, and refuses other values of old ones.

    `wanted`: its columns, from `described`; `description`: None: it stays. Returns a handle on the newest version.
    """
    new, changed = _differences({f.name: f for f in handle.schema().fields}, wanted)
    if description == handle.metadata().description:
        description = None
    if not (new or changed or description is not None):
        return handle
    table.require_writable()
    try:
        _write_descriptions(handle, new, changed, description)
    except (DeltaError, OSError) as error:  # e.g. a concurrent commit: the next commit of rows tries again
        log.info("table=%s comments_not_written=true cause=%s", table.name, type(error).__name__)
    return table.open() or handle


def _write_descriptions(
    handle: AnyTable, new: list[Field], changed: Mapping[str, dict[str, str]], description: str | None
) -> None:
    alter = handle.alter
    if new:
        alter.add_columns(new, post_commithook_properties=KEEP_LOG)
    for column, values in changed.items():
        alter.set_column_metadata(column, values, post_commithook_properties=KEEP_LOG)
    if description is not None:
        alter.set_table_description(description, post_commithook_properties=KEEP_LOG)


def _differences(held: Mapping[str, Field], wanted: pa.Schema) -> tuple[list[Field], dict[str, dict[str, str]]]:
    """Columns with keys that they lack, and keys with other values."""
    new: list[Field] = []
    changed: dict[str, dict[str, str]] = {}
    for item in wanted:
        have = held.get(item.name)
        if have is None:
            continue
        known = {key: str(value) for key, value in have.metadata.items()}
        wants = _wanted_descriptions(metadata_of(item), known)
        lacking = {key: value for key, value in wants.items() if key not in known}
        if lacking:
            new.append(Field(item.name, have.type, nullable=have.nullable, metadata=lacking))
        other = {key: value for key, value in wants.items() if known.get(key, value) != value}
        if other:
            changed[item.name] = other
    return new, changed


def _wanted_descriptions(metadata: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """What describes a column, by its `metadata`; a comment stays as it is `known`, unless another one of a newer schema is."""
    wants = {key: value for key, value in metadata.items() if key in DESCRIBING}
    if COMMENT in wants and COMMENT in known:
        is_newer = COMMENT_OF in wants and int(wants[COMMENT_OF]) > int(known.get(COMMENT_OF, -1))
        if not is_newer or wants[COMMENT] == known[COMMENT]:
            return {key: value for key, value in wants.items() if key not in (COMMENT, COMMENT_OF)}
    return wants
