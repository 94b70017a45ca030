"""The comments of this project's own columns, by table; decoded columns have those of their schema."""

from __future__ import annotations

from functools import cache

from game_events.lakehouse.tables import (
    EVENT_LOG,
    PROGRESS,
    QUARANTINE,
    REST_DEAD_LETTERS,
    REST_DELIVERIES,
    REST_OUTBOX,
    SCHEMAS,
    SOURCE_FILES,
    SUPPRESSED,
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
#: Columns of a chunk in `rest_outbox`, `rest_deliveries` and `rest_dead_letters`.
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
    SCHEMAS: {
        "registry": "Address of the registry that the text is from",
        "schema_id": "Id in the registry",
        "schema_guid": "GUID, of schemas that records name by one",
        "format": "PROTOBUF, AVRO or JSON",
        "text": "Schema text as the registry had it",
        "references": "Schemas that it refers to, with their texts",
        "digest": "Hash of its meaning: another one for the same id stops runs",
        "archived_at": "When its first record was read (UTC)",
    },
    PROGRESS: {
        "bronze_id": "Content of bronze_events that the row speaks of",
        "layer": "Layer",
        "kind": "floor, game, failed, unrouted or decided_anew",
        "game": "Game",
        "batch": "Batch of bronze_events that it has come to",
        "detail": "More, as JSON or in words",
    },
    EVENT_LOG: {
        "time": "When that part of the run ended (UTC)",
        "run_id": "Run",
        "part": "Which of the run's commits to this table",
        "kind": "What the row says (docs/observability.md)",
        "layer": "Layer",
        "table": "Table",
        "game": "Game",
        "name": "Topic, check, rule, reason, column or job that the row is about",
        "rows": "Rows of this run",
        "table_rows": "Rows of the table after it",
        "table_bytes": "Bytes of the table's files after it",
        "delta_version": "Version of the table after it",
        "batch": "Highest batch of bronze_events in the table",
        "lag": "Records left behind in the topic",
        "seconds": "Seconds",
        "status": "How it ended",
        "detail": "More, as JSON",
    },
    SUPPRESSED: {
        "hash": "Keyed hash of an id: rows with that id are kept out",
        "key_check": "Identifies the key of the hash",
        "listed_at": "When it was listed (UTC)",
        "finished_at": "When every table was free of its rows (UTC)",
        "run_id": "Run that listed it",
        "records": "Records of those who were listed together that do not decode",
    },
    SOURCE_FILES: {
        "number": "Number that the path has for ever; a file's records count up from number * 2^32",
        "path": "File",
        "size": "Bytes",
        "modified_at": "When it was written (UTC)",
        "kind": "taken, or changed: another size or time under a path that was taken before",
        "seen_at": "When a run saw it so (UTC)",
        "run_id": "Run that did",
    },
    REST_OUTBOX: _CHUNK | _CHUNK_ROW,
    REST_DELIVERIES: _CHUNK | _CALL | {"outcome": "delivered or dead"},
    REST_DEAD_LETTERS: _CHUNK | _CHUNK_ROW | _CALL | {"reason": "Why it was given up", "answer": "What the receiver said"},
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
