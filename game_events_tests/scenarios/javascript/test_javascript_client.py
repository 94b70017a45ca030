"""What the JavaScript client (Confluent's serializers, kafkajs) sends, through the pipeline: each value arrives as it was."""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.runs.refresh import refresh
from game_events.sources.kafka.client import ensure_topic
from game_events_tests.support.decoding.helpers import descriptor_set
from game_events_tests.support.javascript.clients import run_script
from game_events_tests.support.reconciliation import gold, rows

#: Neither the event nor the nested message is the first one, so their indexes are on the wire.
PROTO = """
syntax = "proto3";
package js.v1;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Item { string name = 1; repeated string tags = 2; map<string, int64> counts = 3; }
message Event {
  string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3;
  int64 big = 4; uint64 greatest = 5; double ratio = 6; float small = 7; bytes raw = 8; bool flag = 9;
  optional int32 maybe = 10; oneof one { string text = 11; sint64 number = 12; }
  Mood mood = 13; repeated Item items = 14; map<uint32, Item> by_number = 15; repeated fixed32 packed = 16;
  google.protobuf.StringValue wrapped = 17; Event parent = 18;
  enum Mood { NONE = 0; HAPPY = 1; }
}
message Around {
  message Other { bool a = 1; }
  message Ping { string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3; int64 ping = 4; }
}
message Rich {
  map<string, int64> counters = 1; map<int32, Item> items = 2;
  message Mini {
    string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3; int64 mini = 4;
    message Deep { string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3; string deep = 4; }
  }
}
"""
AVRO = {
    "type": "record",
    "name": "Purchase",
    "namespace": "js.v1",
    "fields": [
        {"name": "game_name", "type": "string"},
        {"name": "gamer_id", "type": "string"},
        {"name": "event_timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": ["null", "double", "string"]},
        {"name": "lists", "type": {"type": "array", "items": {"type": "array", "items": "string"}}},
        {"name": "by_name", "type": {"type": "map", "values": {"type": "map", "values": "long"}}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["SMALL", "LARGE"]}},
    ],
}
JSON_SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Click",
    "type": "object",
    "properties": {
        "game_name": {"type": "string"},
        "gamer_id": {"type": "integer"},
        "event_timestamp": {"type": "string", "format": "date-time"},
        "where": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "path": {"type": "array", "items": {"type": "string"}}},
        },
    },
}
AT = datetime(2026, 7, 1, 10, 0, 0, 123456, UTC)
ITEM = {"name": "é🎲", "tags": ["", "t"], "counts": {"": -1, "k": 2**62}}
HOLLOW = {"name": "", "tags": [], "counts": {}}
#: Columns of the first record -> what was sent; as JSON it is written below.
FULL = {
    "big": -(2**63),
    "greatest": Decimal(2**64 - 1),
    "ratio": math.nan,
    "small": -math.inf,
    "raw": b"\x00\xff",
    "flag": True,
    "maybe": 0,
    "text": None,
    "number": -(2**53) - 1,
    "mood": "HAPPY",
    "items": [ITEM, HOLLOW],
    "by_number": {2**32 - 1: ITEM, 0: HOLLOW},
    "packed": [0, 2**32 - 1],
    "wrapped": "",
}
FULL_JSON = {
    "big": str(-(2**63)),
    "greatest": str(2**64 - 1),
    "ratio": "NaN",
    "small": "-Infinity",
    "raw": "AP8=",
    "flag": True,
    "maybe": 0,
    "number": str(-(2**53) - 1),
    "mood": "HAPPY",
    "items": [{**ITEM, "counts": {"": "-1", "k": str(2**62)}}, {}],
    "byNumber": {str(2**32 - 1): {**ITEM, "counts": {"": "-1", "k": str(2**62)}}, "0": {}},
    "packed": [0, 2**32 - 1],
    "wrapped": "",
}
EMPTY = dict.fromkeys(FULL) | {
    "big": 0, "greatest": Decimal(0), "ratio": 0.0, "small": 0.0, "raw": b"", "flag": False, "mood": "NONE", "items": [],
    "by_number": {}, "packed": [],
}  # fmt: skip


def head(game: str, gamer: str) -> dict[str, Any]:
    return {"gameName": game, "gamerId": gamer, "eventTimestamp": "2026-07-01T10:00:00.123456Z"}


def in_order(value: Any) -> str:
    """A value as text, so that NaN is NaN; the keys of maps have no order."""
    if isinstance(value, dict):
        return str(sorted((repr(key), in_order(item)) for key, item in value.items()))
    return str([in_order(item) for item in value]) if isinstance(value, list) else repr(value)


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    protobuf = {"format": "protobuf", "message": "js.v1.Event"}
    avro = {"format": "avro", "schema": AVRO}
    at_ms = int(AT.timestamp() * 1000)
    who = {"game_name": "shop", "event_timestamp": at_ms, "kind": "LARGE"}
    return [
        {**protobuf, "value": {**head("chess", "full"), **FULL_JSON, "parent": head("chess", "inner")}},
        {**protobuf, "value": head("chess", "empty")},
        {"format": "protobuf", "message": "js.v1.Around.Ping", "value": {**head("pings", "ping"), "ping": "7"}},
        # Behind maps: the client does not count their entries among the nested types.
        {"format": "protobuf", "message": "js.v1.Rich.Mini", "value": {**head("minis", "mini"), "mini": "8"}},
        {"format": "protobuf", "message": "js.v1.Rich.Mini.Deep", "value": {**head("minis", "other"), "deep": "9"}},
        {**avro, "value": {**who, "gamer_id": "none", "price": None, "lists": [], "by_name": {}}},
        {
            **avro,
            "value": {
                **who,
                "gamer_id": "some",
                "price": 1.5,
                "lists": [[], ["a", ""]],
                "by_name": {"k": {"l": 2**52}, "": {}},
            },
        },
        {
            "format": "json",
            "schema": JSON_SCHEMA,
            "value": {
                "game_name": "web",
                "gamer_id": 7,
                "event_timestamp": "2026-07-01T12:00:00.123456+02:00",
                "where": {"x": 0.5, "path": []},
            },
        },
    ]


def test_every_value_of_every_format_arrives_as_it_was_sent(settings, pipeline, records):
    ensure_topic(settings, 1)
    sent = run_script(
        "produce.mjs",
        {
            "brokers": settings.kafka_bootstrap_servers,
            "registry": settings.schema_registry_url,
            "topic": settings.kafka_topic,
            "descriptors": base64.b64encode(descriptor_set(PROTO)).decode(),
            "records": records,
        },
    )
    assert sent["sent"] == len(records)
    report = refresh(pipeline)
    assert report.success, report.errors
    assert rows(settings, "quarantine_events", "SELECT _kafka_offset, reason, detail FROM t") == []
    assert reconcile(pipeline).passed
    raw = rows(settings, "bronze_events", "SELECT _raw_value FROM t ORDER BY _kafka_offset")
    assert [base64.b64encode(value).decode() for (value,) in raw] == sent["values"]

    held = dict(rows(settings, "silver_chess_events", f"SELECT gamer_id, [{{{', '.join(f'{n}: {n}' for n in FULL)}}}] FROM t"))
    for gamer, truth in (("full", FULL), ("empty", EMPTY)):
        (values,) = held[gamer]
        assert in_order(values) == in_order(truth), gamer
    assert rows(settings, "silver_pings_events", "SELECT gamer_id, ping, event_timestamp FROM t") == [("ping", 7, AT)]
    minis = rows(settings, "silver_minis_events", "SELECT gamer_id, mini, deep, event_timestamp FROM t ORDER BY gamer_id")
    assert minis == [("mini", 8, None, AT), ("other", None, "9", AT)]
    at_ms = AT.replace(microsecond=123000)
    shop = rows(
        settings,
        "silver_shop_events",
        "SELECT gamer_id, price.double, price.string, lists, by_name, kind, event_timestamp FROM t ORDER BY gamer_id",
    )
    assert shop == [
        ("none", None, None, [], {}, "LARGE", at_ms),
        ("some", 1.5, None, [[], ["a", ""]], {"k": {"l": 2**52}, "": {}}, "LARGE", at_ms),
    ]
    web = rows(settings, "silver_web_events", 'SELECT gamer_id, "where", event_timestamp FROM t')
    assert web == [("7", {"x": 0.5, "path": []}, AT)]
    assert gold(settings, "web") == {"7": (1, AT, AT)}
    assert gold(settings, "chess") == dict.fromkeys(("full", "empty"), (1, AT, AT))
