"""The comments of this project's own columns, by table; decoded columns have those of their schema."""

from functools import cache

from game_events.lakehouse.tables import (
    QUARANTINE,
    REST_DELIVERIES,
    REST_FAILED_CHUNKS,
    REST_OUTBOX,
)

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
