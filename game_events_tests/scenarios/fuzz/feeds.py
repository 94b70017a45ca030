"""Writes the events of a world: as files of several formats into a folder, or as records of several types into a topic."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from game_events.config.settings import load_settings
from game_events.plugins.local.servers.local_stack import StackState
from game_events.sources.kafka.client import ensure_topic
from game_events_tests.scenarios.fuzz import edges
from game_events_tests.scenarios.fuzz.declared import Event
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.worlds.topic import register

ARROW = pa.schema(
    [
        ("game_name", pa.string()),
        ("gamer_id", pa.string()),
        ("n", pa.int64()),
        ("dev", pa.string()),
        ("x", pa.float64()),
        ("rid", pa.string()),
        ("event_timestamp", pa.timestamp("us", "UTC")),
        *edges.ARROW,
    ]
)
PROPERTIES = {
    "game_name": {"type": "string"},
    "gamer_id": {"type": "string"},
    "n": {"type": "integer"},
    "dev": {"type": "string"},
    "x": {"type": "number"},
    "rid": {"type": "string"},
    "event_timestamp": {"type": "string", "format": "date-time"},
    **edges.JSON_PROPERTIES,
}
AVRO_TYPES = {
    "n": "long",
    "x": "double",
    "event_timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    **edges.AVRO_TYPES,
}


class Feed(Protocol):
    """A source of events.

    Attributes:
        kinds: how an event can be written; the first of them may be damaged.
        types: kind -> full name of its message type; None: it has none. forms: kind -> which columns it has (`edges.py`).
        grows: kinds whose schema gets the columns that come.
        tombstones: records without a value that were written besides.
        decoded_again: of these, those whose earlier records have a new column after a redecode.
    """

    kinds: tuple[str, ...]
    types: Mapping[str, str | None]
    forms: Mapping[str, str]
    grows: tuple[str, ...]
    decoded_again: tuple[str, ...]
    tombstones: int

    def settings(self) -> dict[str, Any]:
        """Where a pipeline finds them."""
        ...

    def grow(self, columns: Sequence[str]) -> None:
        """The schema has these columns besides its own from now on."""
        ...

    def write(self, events: Sequence[Event], draw: Random) -> None:
        """Add events, each as often as it says: all of them are of one kind."""
        ...


def sent(events: Iterable[Event]) -> Iterator[Event]:
    """Each event as often as it is written."""
    return (event for event in events for _ in range(event.times))


def json_text(event: Event) -> str:
    """A document; one that is damaged has no end."""
    fields = {name: edges.as_json(value) for name, value in event.fields().items()}
    text = json.dumps(fields)
    return text[:-1] + ', "cut' if event.damaged else text


def json_schema(columns: Iterable[str]) -> str:
    """Of the type that JSON records have, with these columns."""
    more = {name: {"type": "string"} for name in columns}
    return json.dumps({"title": "shop.JsonEvent", "type": "object", "properties": PROPERTIES | more})


class Files:
    """A folder; its JSON Schema grows, the other formats have their own."""

    kinds: tuple[str, ...] = ("jsonl", "parquet", "avro")
    types: Mapping[str, str | None] = {"jsonl": "shop.JsonEvent", "parquet": None, "avro": "shop.AvroEvent"}
    forms: Mapping[str, str] = {"jsonl": edges.JSON, "parquet": edges.PARQUET, "avro": edges.AVRO}
    grows: tuple[str, ...] = ("jsonl",)
    decoded_again: tuple[str, ...] = ("jsonl",)
    tombstones = 0

    def __init__(self, folder: Path) -> None:
        self._landing, self._schema = folder / "landing", folder / "event.json"
        self._landing.mkdir(parents=True)
        self._files = 0
        self.grow(())

    def settings(self) -> dict[str, Any]:
        return {
            "source": "files",
            "files_path": str(self._landing),
            "files_schema": str(self._schema),
            "files_settle_s": 0,
            "kafka_bootstrap_servers": "127.0.0.1:9",
            "schema_registry_url": "http://127.0.0.1:9",
        }

    def grow(self, columns: Sequence[str]) -> None:
        self._schema.write_text(json_schema(columns))

    def write(self, events: Sequence[Event], draw: Random) -> None:
        kind = events[0].kind
        events = list(sent(events))
        self._files += 1
        made = self._landing / f".{self._files}"
        if kind == "jsonl":
            made.write_text("".join(json_text(event) + "\n" for event in events))
        elif kind == "parquet":
            rows = pa.Table.from_pylist([_with_pairs(event.fields()) for event in events], schema=ARROW)
            pq.write_table(rows, made, row_group_size=draw.choice((2, 1_000)))
        else:
            made.write_bytes(_avro(events))
        made.rename(self._landing / f"f{self._files:05}.{kind}")


def _with_pairs(fields: dict[str, Any]) -> dict[str, Any]:
    """Arrow wants a map as pairs."""
    maps = {name: list(fields[name].items()) for name, kind in edges.ARROW if pa.types.is_map(kind) and name in fields}
    return fields | maps


def _avro(events: Sequence[Event]) -> bytes:
    fields = [{"name": f.name, "type": ["null", AVRO_TYPES.get(f.name, "string")], "default": None} for f in ARROW]
    out = io.BytesIO()
    schema = {"type": "record", "name": "AvroEvent", "namespace": "shop", "fields": fields}
    fastavro.writer(out, fastavro.parse_schema(schema), [event.fields() for event in events], sync_interval=400)
    return out.getvalue()


OWN = """optional string game_name = 1; optional string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3;
optional int64 n = 4; optional string dev = 5; optional double x = 6; optional string rid = 7; """
PATHS = {"played": (0,), "paid": (1,)}
PARTITIONS = 2
#: How often a record without a value comes between two events.
TOMBSTONES = 0.03


def proto(columns: Iterable[str]) -> str:
    """Two message types with the same fields, of which the first has these columns besides."""
    more = " ".join(f"optional string {name} = {number};" for number, name in enumerate(columns, 20))
    head = 'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";'
    own = OWN + edges.protobuf_fields(40)
    inner = "".join(f"message {name} {{ {fields} }}\n" for name, fields in edges.PROTOBUF_TYPES.items())
    return f"{head}\nmessage Played {{ {own} {more} }}\nmessage Paid {{ {own} }}\n{inner}"


class Topic:
    """A topic of two partitions with two protobuf types in one schema, and JSON under a schema of its own."""

    kinds: tuple[str, ...] = ("played", "paid", "json")
    types: Mapping[str, str | None] = {"played": "shop.Played", "paid": "shop.Paid", "json": "shop.JsonEvent"}
    forms: Mapping[str, str] = {"played": edges.PROTOBUF, "paid": edges.PROTOBUF, "json": edges.JSON}
    grows: tuple[str, ...] = ("played", "json")
    decoded_again: tuple[str, ...] = ()  # each record has the schema that it was written with
    tombstones = 0

    def __init__(self, stack: StackState, name: str) -> None:
        self._servers = {
            "kafka_bootstrap_servers": stack.kafka_bootstrap_servers,
            "schema_registry_url": stack.schema_registry_url,
            "kafka_topic": name,
        }
        self._settings = load_settings(**self._servers)
        ensure_topic(self._settings, PARTITIONS)
        self._producer = Producer({"bootstrap.servers": stack.kafka_bootstrap_servers, "linger.ms": 0})
        self.grow(())

    def settings(self) -> dict[str, Any]:
        return dict(self._servers)

    def grow(self, columns: Sequence[str]) -> None:
        self._text = proto(columns)
        self._proto_id = register(self._settings, self._text)
        topic = self._settings.kafka_topic
        self._json_id = register(self._settings, json_schema(columns), "JSON", subject=f"{topic}-shop.JsonEvent")

    def write(self, events: Sequence[Event], draw: Random) -> None:
        for event in sent(events):
            if draw.random() < TOMBSTONES:
                self.tombstones += 1
                self._producer.produce(self._settings.kafka_topic, None, b"key", partition=draw.randrange(PARTITIONS))
            self._producer.produce(self._settings.kafka_topic, self._value(event), partition=draw.randrange(PARTITIONS))
        assert self._producer.flush(60) == 0

    def _value(self, event: Event) -> bytes:
        if event.kind == "json":
            return b"\0" + self._json_id.to_bytes(4, "big") + json_text(event).encode()
        path = PATHS[event.kind]
        message = python_class(compiled(self._text, self._proto_id), path)(**event.fields())  # type: ignore[no-untyped-call]
        value: bytes = frame(self._proto_id, path, message)  # type: ignore[no-untyped-call]
        return value + b"\x2a\x7f" if event.damaged else value  # a text that is longer than what there is
