"""Schemas that nobody would write and somebody does: they reach bronze and silver, and every reader opens them (faults B)."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from confluent_kafka.schema_registry import SchemaReference
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.runs.refresh import refresh
from game_events.schema_registry import registry_client
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.reconciliation import coordinates, count, rows
from game_events_tests.support.worlds.topic import register, send_values

HEAD = 'syntax = "proto3"; package o; import "google/protobuf/struct.proto"; import "google/protobuf/any.proto";'
OWN = "string game_name = 1; string gamer_id = 2; int64 event_timestamp = 2001;"
#: name -> (schema, a message as keyword arguments besides game and gamer, column -> value in silver)
SCHEMAS = {
    "names that differ by case": (
        f"{HEAD} message E {{ {OWN} string level = 3; int32 Level = 4; string LEVEL = 5; }}",
        {"level": "a", "Level": 1, "LEVEL": "b"},
        {"level": "a", "Level__bigint": 1, "LEVEL__string": "b"},
    ),
    "reserved words": (
        f"{HEAD} message E {{ {OWN} int32 select = 3; string from = 4; bool table = 5; string group = 6; string order = 7; }}",
        {"select": 1, "from": "x", "table": True, "group": "g", "order": "o"},
        {"select": 1, "from": "x", "table": True, "group": "g", "order": "o"},
    ),
    "names of the pipeline's own": (
        f"{HEAD} message E {{ {OWN} int64 _kafka_offset = 3; string _batch = 4; string reason = 5; }}",
        {"_kafka_offset": 7, "_batch": "x", "reason": "r"},
        {"field_kafka_offset": 7, "field_batch": "x", "reason": "r"},
    ),
    "a recursive message": (
        f"{HEAD} message E {{ {OWN} Node root = 3; }} message Node {{ string name = 1; repeated Node children = 2; }}",
        {"root": {"name": "a", "children": [{"name": "b"}, {"name": "c"}]}},
        {},
    ),
    "Struct and Any": (
        f"{HEAD} message E {{ {OWN} google.protobuf.Struct free = 3; google.protobuf.Any any = 4; }}",
        {"free": {"a": 1, "b": [True, None]}, "any": {"type_url": "t", "value": b"\1"}},
        {},
    ),
    "an empty message": (
        f"{HEAD} message E {{ {OWN} Nothing nothing = 3; }} message Nothing {{}}", {"nothing": {}}, {"nothing": True},
    ),
    "two thousand fields": (
        f"{HEAD} message E {{ {OWN} {' '.join(f'string field_{n} = {n};' for n in range(3, 2001))} }}",
        {"field_3": "first", "field_2000": "last"},
        {"field_3": "first", "field_2000": "last", "field_1000": ""},
    ),
}  # fmt: skip


#: Tables of so many columns take long: it has tables of its own.
WIDE = "two thousand fields"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(tuple(name for name in SCHEMAS if name != WIDE), id="odd", marks=pytest.mark.scenario),
        pytest.param((WIDE,), id="wide", marks=pytest.mark.scenario),
    ],
)
def test_odd_schemas_reach_silver_and_spark_and_duckdb_read_them(names, settings, make_pipeline, spark):
    """Each schema is a game's, in a package of its own: fields of one type with one number are one column."""
    games = {name: f"game_{number}" for number, name in enumerate(names)}
    for name, game in games.items():
        text, values, _ = SCHEMAS[name]
        text = text.replace("package o;", f"package {game};")
        schema_id = register(settings, text, subject=f"{settings.kafka_topic}-{game}")
        event = python_class(compiled(text, schema_id))
        messages = [event(game_name=game, gamer_id=f"g{n}", **values) for n in range(3)] + [event(game_name=game)]
        send_values(settings, [frame(schema_id, (0,), m) for m in messages])

    report = refresh(make_pipeline(settings))

    assert report.success, report.errors
    assert count(settings, QUARANTINE) == 0
    bronze = coordinates(settings, BRONZE)
    assert len(bronze) == 4 * len(names)
    assert sorted(c for game in games.values() for c in coordinates(settings, f"silver_{game}_events")) == bronze
    for name, game in games.items():
        expected = SCHEMAS[name][2]
        listed = ", ".join(f'"{column}"' for column in expected) or "1"
        silver = f"silver_{game}_events"
        assert len(coordinates(settings, silver)) == 4, name
        found = rows(settings, silver, f"SELECT {listed} FROM t WHERE gamer_id = 'g1'")
        assert found == [tuple(expected.values()) or (1,)], name
        table = spark.read.format("delta").load(f"{settings.lakehouse}/{silver}")
        (row,) = table.where("gamer_id = 'g1'").collect()
        assert {column: row[column] for column in expected} == expected


def test_json_names_that_no_table_can_have_are_cleaned_and_every_reader_opens_them(settings, make_pipeline, spark):
    names = {
        "with space": "with_space", "with.dot": "with_dot", "a,b;{}(c)=d": "a_b____c__d", "tab\there": "tab_here", "": "field",
        "_own": "field_own", "größe": "größe", "🎲": "🎲", "select": "select", "Case": "Case", "case": "case__string",
        "with_space": "with_space__string", "`tick`": "field_tick_",
    }  # fmt: skip
    own = {"game_name": "uno", "gamer_id": "g", "event_timestamp": "2026-01-01T00:00:00Z"}
    kinds = {name: {"type": "string"} for name in names} | {
        "game_name": {"type": "string"}, "gamer_id": {"type": "string"},
        "event_timestamp": {"type": "string", "format": "date-time"},
        "nested": {"type": "object", "properties": {"in side": {"type": "integer"}, "in.side": {"type": "integer"}}},
    }  # fmt: skip
    document = json.dumps({"title": "Odd", "type": "object", "properties": kinds})
    schema_id = register(settings, document, "JSON")
    body = own | {name: f"value of {name}" for name in names} | {"nested": {"in side": 1, "in.side": 2}}
    send_values(settings, [b"\0" + schema_id.to_bytes(4, "big") + json.dumps(body).encode()])

    report = refresh(make_pipeline(settings))

    assert report.success, report.errors
    (row,) = spark.read.format("delta").load(f"{settings.lakehouse}/silver_uno_events").collect()
    assert {column: row[column] for column in names.values()} == {c: f"value of {n}" for n, c in names.items()}
    assert row["nested"].asDict() == {"in_side": 1, "in_side__bigint": 2}
    listed = ", ".join(f'"{column}"' for column in names.values())
    assert list(rows(settings, "silver_uno_events", f"SELECT {listed} FROM t")[0]) == [f"value of {n}" for n in names]


def test_references_three_deep_are_followed_and_a_missing_one_costs_the_rows_of_its_schema(settings, make_pipeline):
    topic = settings.kafka_topic
    bad = f'syntax = "proto3"; package o; import "gone.proto"; message E {{ {OWN} gone.Thing thing = 3; }}'
    good = f'syntax = "proto3"; package o; message E {{ {OWN} }}'
    bad_id = register(settings, bad, subject=f"{topic}-bad")
    leaf = 'syntax = "proto3"; package deep; message Leaf { string leaf = 1; }'
    middle = 'syntax = "proto3"; package deep; import "leaf.proto"; message Middle { Leaf leaf = 1; }'
    top = 'syntax = "proto3"; package deep; import "middle.proto"; message Top { Middle middle = 1; }'
    main = f'syntax = "proto3"; package deep; import "top.proto"; message E {{ {OWN} Top top = 3; }}'
    known, last = (), ()
    for name, text in (("leaf.proto", leaf), ("middle.proto", middle), ("top.proto", top)):
        register(settings, text, references=last, subject=f"{topic}-{name}")
        last = (SchemaReference(name, f"{topic}-{name}", 1),)
        known += ((name, text),)
    schema_id = register(settings, main, references=last)
    event = python_class(compiled(main, schema_id, known))
    whole = frame(schema_id, (0,), event(game_name="uno", top={"middle": {"leaf": {"leaf": "x"}}}))
    send_values(settings, [frame(bad_id, (0,), python_class(compiled(good, bad_id))(game_name="uno")), whole])
    refresh(make_pipeline(settings))
    assert rows(settings, "silver_uno_events", "SELECT top.middle.leaf.leaf FROM t") == [("x",)]
    ((reason, detail),) = rows(settings, QUARANTINE, "SELECT reason, detail FROM t")
    assert reason == "BAD_SCHEMA"
    assert "gone.proto" in detail
    assert count(settings, BRONZE) == 1


def test_one_topic_of_protobuf_avro_and_json_fills_the_same_columns(settings, make_pipeline):
    """Frames from the real serializers against the real registry; the format is the registry's word for each schema."""
    topic = settings.kafka_topic
    avro = json.dumps(
        {
            "type": "record", "name": "Event", "namespace": "o", "fields": [
                {"name": "game_name", "type": "string"}, {"name": "gamer_id", "type": "string"},
                {"name": "event_timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            ],
        }
    )  # fmt: skip
    document = json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#", "title": "Event", "type": "object", "properties": {
                "game_name": {"type": "string"}, "gamer_id": {"type": "string"},
                "event_timestamp": {"type": "string", "format": "date-time"},
            },
        }
    )  # fmt: skip
    text = f"""{HEAD} import "google/protobuf/timestamp.proto";
        message E {{ string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3; }}"""
    at = datetime(2026, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    with registry_client(settings) as client:

        def context(kind):
            return SerializationContext(f"{topic}-{kind}", MessageField.VALUE)

        event = python_class(compiled(text, 1))
        values = []
        for n in range(3):
            body = {"game_name": "uno", "gamer_id": f"g{n}", "event_timestamp": at}
            as_text = body | {"event_timestamp": "2026-05-06T07:08:09.123456Z"}
            values.append(ProtobufSerializer(event, client, {})(event(**body), context("protobuf")))
            values.append(AvroSerializer(client, avro)(body, context("avro")))
            values.append(JSONSerializer(document, client)(as_text, context("json")))
    send_values(settings, values)
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert count(settings, QUARANTINE) == 0
    assert rows(settings, "silver_uno_events", "SELECT DISTINCT gamer_id, event_timestamp FROM t ORDER BY 1") == [
        (f"g{n}", at) for n in range(3)
    ]
    assert {
        r[0]: r[1] for r in rows(settings, "gold_uno_player_agg", "SELECT gamer_id, session_count FROM t")
    } == dict.fromkeys(("g0", "g1", "g2"), 3)
    assert len({r[0] for r in rows(settings, BRONZE, "SELECT _schema_id FROM t")}) == 3
    assert reconcile(make_pipeline(settings)).passed


def test_a_map_as_confluents_registry_writes_it_reaches_silver(settings, make_pipeline):
    text = """syntax = "proto3";
package o;

message E {
  string game_name = 1;
  string gamer_id = 2;
  int64 event_timestamp = 3;
  repeated .o.E.CountersEntry counters = 40;

  message CountersEntry {
    option map_entry = true;

    string key = 1;
    int64 value = 2;
  }
}
"""
    schema_id = register(settings, text)
    event = python_class(compiled(text, schema_id))
    send_values(settings, [frame(schema_id, (0,), event(game_name="uno", gamer_id="g", counters={"a": 5}))])
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert rows(settings, "silver_uno_events", "SELECT counters['a'] FROM t") in ([(5,)], [([5],)])
