"""Columns of event rows: those that bronze, quarantine and silver have besides the columns of messages."""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.decoding.core.column_map import ColumnMap
from game_events.decoding.core.wire_format import SchemaId, SchemaRef

#: Columns of a source's records: what bronze keeps of a record besides its decoded fields. `topic_id`, `partition` and
#: `offset` tell every record from every other.
RAW_COLUMNS = ("topic", "topic_id", "partition", "offset", "timestamp", "key", "value", "headers")

HEADERS = "_kafka_headers"
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TIME = pa.timestamp("us", tz="UTC")
#: Columns of the pipeline itself; they begin with an underscore, which no decoded column does.
OWN_COLUMNS = pa.schema(
    [
        pa.field("_kafka_topic", pa.string()),
        pa.field("_kafka_topic_id", pa.string()),
        pa.field("_kafka_partition", pa.int32()),
        pa.field("_kafka_offset", pa.int64()),
        pa.field("_kafka_timestamp", TIME),
        pa.field("_kafka_key", pa.binary()),
        pa.field(HEADERS, _HEADERS),
        pa.field("_schema_id", pa.int64()),
        pa.field("_schema_guid", pa.string()),
        pa.field("_raw_value", pa.binary()),
        pa.field("_batch", pa.int64()),
        # of files as the source (docs/sources.md), else NULL: which file, and the record's place in it from 0
        pa.field("_file_path", pa.string()),
        pa.field("_file_position", pa.int64()),
    ]
)
#: Column of a source -> column of bronze and quarantine.
STORED_AS = {name: "_raw_value" if name == "value" else f"_kafka_{name}" for name in RAW_COLUMNS}
#: The two columns of a `SchemaRef`.
SCHEMA_COLUMNS = ("_schema_id", "_schema_guid")
#: Columns that tell each record of the source from every other.
COORDINATES = ("_kafka_topic_id", "_kafka_partition", "_kafka_offset")
QUARANTINE_COLUMNS = pa.schema(
    [
        *OWN_COLUMNS,
        pa.field("layer", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("quarantined_at", TIME),
        pa.field("run_id", pa.string()),
        # NULL until the row has come to bronze after all (`replay.py`): when, to which table, as which batch of it
        pa.field("replayed_table", pa.string()),
        pa.field("replayed_batch", pa.int64()),
        pa.field("replayed_at", TIME),
        # of rows that a rule of silver rejects (layer `silver`): they are in bronze, and here instead of in this game's table
        pa.field("game", pa.string()),
    ]
)
QUARANTINE_DESCRIPTION = (
    "Every record that is not in bronze (layer bronze), and every row that a rule keeps out of silver (layer silver), with the "
    "reason; an append-only log that can be replayed"
)
#: Columns that only files' records have -> columns of bronze.
FILE_COLUMNS = {"file_path": "_file_path", "file_position": "_file_position"}

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


def bronze_schema(columns: ColumnMap) -> pa.Schema:
    """Own columns, then every decoded column, each with its share of the column map."""
    decoded = [pa.field(n, t, metadata=columns.metadata(n)) for n, t in columns.columns.items()]
    return pa.schema([*OWN_COLUMNS, *decoded])


def identity_columns(schema_id: SchemaId | None, count: int) -> dict[str, pa.Array]:
    """`_schema_id` or `_schema_guid`, the other one NULL."""
    return {
        name: pa.repeat(pa.scalar(value, OWN_COLUMNS.field(name).type), count)
        for name, value in zip(SCHEMA_COLUMNS, SchemaRef.of(schema_id), strict=True)
    }


def column_map(handle: DeltaTable) -> ColumnMap:
    """Where fields land, from the metadata of the table's columns."""
    schema = pa.schema(handle.schema())
    return ColumnMap.from_metadata((f.name, schema.field(f.name).type, f.metadata) for f in handle.schema().fields)


def has_decoded_columns(handle: DeltaTable) -> bool:
    """Whether bronze has a column of any message: none yet if all that came so far is of types that are not selected."""
    return any(f.name not in OWN_COLUMNS.names for f in handle.schema().fields)
