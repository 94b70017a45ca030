"""Single values that their type does not take: the record is bad, or the value is NULL, as the settings say by column."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import fastavro
import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.decoding.columns import ColumnMap, ColumnRules, Field, ValueRules
from game_events.decoding.frame import Reason, RegistrySchema
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.catalog import SchemaCatalog
from game_events.schema_registry import SchemaLookup
from game_events_tests.support.decoding.format_helpers import framed, plan_of, registered
from game_events_tests.support.decoding.helpers import compiled, decode, frame, plan_for, python_class, rows_by_position

AT = "2024-03-31T01:30:00Z"
INSTANT = datetime(2024, 3, 31, 1, 30, tzinfo=UTC)
TIME = {"type": ["string", "null"], "format": "date-time"}
JSON = {
    "title": "E",
    "type": "object",
    "properties": {
        "game_name": {"type": "string"},
        "gamer_id": {"type": "string"},
        "event_timestamp": TIME,
        "seen": TIME,
        "born": {"type": "string", "format": "date"},
        "level": {"type": "integer"},
        "rate": {"type": "number"},
        "times": {"type": "array", "items": TIME},
        "inner": {"type": "object", "properties": {"seen": TIME, "n": {"type": "integer"}}},
        "free": {},
    },
}


def rules(choice="quarantine", **more):
    return ValueRules.of(load_settings(on_bad_value=choice, **more))


def read(kind, schema, payloads, values):
    """Row (None: rejected) of each payload, and the values that became NULL."""
    plan = replace(plan_of(registered(kind, schema)), values=values)
    decoded = decode(plan, [framed(payload) for payload in payloads])
    rows = rows_by_position(decoded)
    return [rows.get(at) for at in range(len(payloads))], decoded.nulled, decoded.rejected


def document(**fields):
    return json.dumps({"game_name": "uno", "gamer_id": "ann", "event_timestamp": AT} | fields).encode()


BAD_JSON = {
    "an empty text": {"seen": ""},
    "a time without a zone": {"seen": "2024-03-31T01:30:00"},
    "a zone's name instead of an offset": {"seen": "2024-03-31T01:30:00[Europe/Berlin]"},
    "a date with a time": {"born": "1990-05-01T00:00:00Z"},
    "a date without hyphens": {"born": "19900501"},
    "NaN": {"rate": float("nan")},
    "an infinity": {"rate": float("-inf")},
    "NaN in free JSON": {"free": [1, float("nan")]},
    "a number as text": {"level": "7"},
    "an object": {"level": {}},
    "65 bits": {"level": 2**64},
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_a_bad_value_in_json_is_null_and_counted_or_costs_its_record(name):
    payloads = [document(**BAD_JSON[name], **({} if "level" in BAD_JSON[name] else {"level": 1})), document(level=2)]
    (column,) = BAD_JSON[name]
    for values in (rules(), rules({"other": "null"}), rules({"*": "null", column: "quarantine"})):
        (bad, good), nulled, _ = read("JSON", JSON, payloads, values)
        assert (bad, good["level"], nulled) == (None, 2, {})
    for values in (rules("null"), rules({column.upper(): "null"})):
        (row, good), nulled, rejected = read("JSON", JSON, payloads, values)
        assert (row[column], good["level"], nulled, rejected) == (None, 2, {column: 1}, [])
        assert (row["game_name"], row["event_timestamp"]) == ("uno", INSTANT)


def test_values_inside_of_columns_become_null_each_and_count_for_their_column():
    payloads = [document(times=[AT, "", None, AT], inner={"seen": "", "n": 5}), document(inner="x", times={})]
    (first, second), nulled, _ = read("JSON", JSON, payloads, rules("null"))
    assert first["times"] == [INSTANT, None, None, INSTANT]
    assert first["inner"] == {"seen": None, "n": 5}
    assert (second["times"], second["inner"]) == (None, None)
    assert nulled == {"times": 2, "inner": 2}


@pytest.mark.parametrize("column", ["game_name", "gamer_id", "event_timestamp"])
def test_entity_key_and_time_are_never_nulled(column):
    for values in (rules("null"), rules({column: "null"})):
        (row,), nulled, (rejected,) = read("JSON", JSON, [document(**{column: 1.5}, seen="")], values)
        assert (row, nulled, rejected.reason) == (None, {}, Reason.MALFORMED)


def test_a_record_that_is_bad_after_all_counts_none_of_its_values():
    payloads = [document(seen="", gamer_id=7), b'{"seen":"', document(seen="")]
    rows, nulled, _ = read("JSON", JSON, payloads, rules("null"))
    assert [row is None for row in rows] == [True, True, False]
    assert nulled == {"seen": 1}


TIMES = {
    "2024-03-31T01:30:00.000+0000": INSTANT,
    "2024-03-31T03:30:00+02": INSTANT,
    "2024-03-31T03:30:00+02:00[Europe/Berlin]": INSTANT,
    "2024-03-31T01:30:00.5Z": INSTANT.replace(microsecond=500_000),
}


@pytest.mark.parametrize("text", TIMES)
def test_every_form_of_an_offset_is_read_without_a_setting(text):
    (row,), _, _ = read("JSON", JSON, [document(seen=text)], rules())
    assert row["seen"] == TIMES[text]


@pytest.mark.parametrize(
    ("text", "zone", "instant"),
    [
        ("2024-03-31T01:30:00", "UTC", INSTANT),
        ("2024-03-31T01:30", "UTC", INSTANT),
        ("2024-03-31 01:30:00.123456789", "UTC", INSTANT.replace(microsecond=123_456)),
        ("2024-01-31T01:30:00", "Europe/Berlin", datetime(2024, 1, 31, 0, 30, tzinfo=UTC)),
        ("2024-07-31T01:30:00", "Europe/Berlin", datetime(2024, 7, 30, 23, 30, tzinfo=UTC)),
        # Twice at the end of summer time: the first one.
        ("2024-10-27T02:30:00", "Europe/Berlin", datetime(2024, 10, 27, 0, 30, tzinfo=UTC)),
        (AT, "Europe/Berlin", INSTANT),
    ],
)
def test_times_without_a_zone_have_the_one_of_the_settings_in_all_columns(text, zone, instant):
    (row,), nulled, _ = read("JSON", JSON, [document(seen=text, event_timestamp=text)], rules(naive_times_zone=zone))
    assert (row["seen"], row["event_timestamp"], nulled) == (instant, instant, {})


def test_the_reason_names_the_form_that_was_seen_and_the_setting_that_takes_it():
    naive = "a date-time without a zone (RFC 3339 wants one): GAME_EVENTS_NAIVE_TIMES_ZONE says which one it is in"
    said = {
        "2024-03-31T01:30:00": naive,
        "": "an empty string instead of date-time with a zone (RFC 3339)",
    }
    for text, what in said.items():
        _, _, (rejected,) = read("JSON", JSON, [document(seen=text)], rules())
        assert rejected.detail == f"E.seen: {what}"
    _, _, (rejected,) = read("JSON", JSON, [document(born=AT)], rules())
    assert rejected.detail == "E.born: a date-time instead of date"
    _, _, (rejected,) = read("JSON", JSON, [document(rate=float("nan"))], rules({"seen": "null"}))
    assert rejected.detail == "E.rate: NaN or an infinity instead of number"


# --- Avro

INFINITY = 2**63 - 1
DAY = {"type": "int", "logicalType": "date"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
AVRO = {
    "type": "record",
    "name": "E",
    "fields": [
        {"name": "game_name", "type": "string"},
        {"name": "event_timestamp", "type": MICROS},
        {"name": "seen", "type": ["null", MICROS]},
        {"name": "price", "type": PRICE},
        {"name": "many", "type": {"type": "array", "items": ["null", MICROS]}},
        {"name": "inner", "type": {"type": "record", "name": "I", "fields": [{"name": "day", "type": DAY}]}},
        {"name": "last", "type": "string"},
    ],
}  # fmt: skip
PLAIN = json.loads(json.dumps(AVRO).replace('"logicalType"', '"was"'))


def avro(**fields):
    """As a writer that does not check: the numbers and bytes themselves."""
    out = io.BytesIO()
    usual = {
        "game_name": "uno",
        "event_timestamp": 1,
        "seen": None,
        "price": b"\x01",
        "many": [],
        "inner": {"day": 1},
        "last": "x",
    }
    fastavro.schemaless_writer(out, fastavro.parse_schema(PLAIN), usual | fields)
    return out.getvalue()


def test_bad_values_in_avro_are_null_and_what_follows_them_is_read():
    bad = avro(seen=INFINITY, price=b"\x01\x00\x00\x00", many=[None, 1, -(2**63), INFINITY], inner={"day": 2**31 - 1})
    payloads = [bad, avro(last="y")]
    (strict, good), nulled, _ = read("AVRO", AVRO, payloads, rules())
    assert (strict, good["last"], nulled) == (None, "y", {})
    (row, good), nulled, rejected = read("AVRO", AVRO, payloads, rules("null"))
    assert (row["seen"], row["price"], row["inner"], row["last"], good["last"]) == (None, None, {"day": None}, "x", "y")
    assert [value is None for value in row["many"]] == [True, False, True, True]
    assert (nulled, rejected) == ({"seen": 1, "price": 1, "many": 2, "inner": 1}, [])


def test_in_avro_only_the_named_columns_are_nulled_and_damage_never_is():
    values = rules({"seen": "null"})
    rows, nulled, _ = read(
        "AVRO", AVRO, [avro(price=b"\x01\x00\x00\x00"), avro(seen=INFINITY)[:-1], avro(seen=INFINITY)], values
    )
    assert [row is None for row in rows] == [True, True, False]
    assert nulled == {"seen": 1}
    rows, _, _ = read("AVRO", AVRO, [avro(event_timestamp=INFINITY)], rules("null"))
    assert rows == [None]


# --- protobuf

PROTO = compiled(
    """
    syntax = "proto3";
    package v;
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/duration.proto";
    message E {
      message I { google.protobuf.Timestamp at = 1; int32 n = 2; }
      string game_name = 1;
      google.protobuf.Timestamp event_timestamp = 2;
      google.protobuf.Timestamp seen = 3;
      repeated google.protobuf.Timestamp many = 4;
      google.protobuf.Duration took = 5;
      I inner = 6;
      map<string, google.protobuf.Timestamp> by_name = 7;
    }
    """,
    7,
)
PROTO_PLAN = plan_for((PROTO, (0,)))


def proto(values, *messages):
    plan = replace(PROTO_PLAN, values=values)
    decoded = decode(plan, [frame(7, (0,), python_class(PROTO)(**fields)) for fields in messages])
    rows = rows_by_position(decoded)
    return [rows.get(at) for at in range(len(messages))], decoded.nulled, decoded.rejected


FAR, OK = {"seconds": 2**60}, {"seconds": 5, "nanos": 7_000}


def test_times_and_durations_of_protobuf_beyond_their_range_are_null():
    bad = {
        "game_name": "a",
        "seen": FAR,
        "many": [OK, FAR, FAR],
        "took": FAR,
        "inner": {"at": FAR, "n": 3},
        "by_name": {"k": FAR},
    }
    (strict, _), nulled, _ = proto(rules(), bad, {"game_name": "b", "seen": OK})
    assert (strict, nulled) == (None, {})
    (row, good), nulled, rejected = proto(rules("null"), bad, {"game_name": "b", "seen": OK})
    assert (row["game_name"], row["seen"], row["took"], row["inner"], dict(row["by_name"])) == (
        "a",
        None,
        None,
        {"at": None, "n": 3},
        {"k": None},
    )
    assert [value is None for value in row["many"]] == [False, True, True]
    assert good["seen"] is not None
    assert (nulled, rejected) == (Counter(seen=1, many=2, took=1, inner=1, by_name=1), [])


def test_in_protobuf_the_event_time_is_never_nulled_and_the_record_counts_nothing():
    (row, other), nulled, (rejected,) = proto(
        rules("null"), {"event_timestamp": FAR, "seen": FAR}, {"seen": FAR, "event_timestamp": OK}
    )
    assert (row, rejected.reason, other["seen"]) == (None, Reason.OUT_OF_RANGE, None)
    assert nulled == {"seen": 1}


def test_a_record_that_python_has_to_read_again_is_counted_once():
    # A field twice: the native decoder's row is doubtful.
    once = python_class(PROTO)(seen=FAR).SerializeToString()
    plan = replace(PROTO_PLAN, values=rules("null"))
    decoded = decode(plan, [b"\0\0\0\0\x07\0" + once + once])
    assert decoded.nulled == {"seen": 1}
    assert decoded.rejected == []


# --- the settings


@pytest.mark.parametrize("choice", ["quarantine", {"a": "quarantine"}])
def test_without_the_settings_no_value_becomes_null(choice):
    assert not rules(choice).takes("a")
    assert ColumnRules(rules(choice), ColumnMap()).nullable("M", [Field("a", "a", pa.int64())]) == {}


def test_the_setting_for_decimals_counts_without_other_settings(tmp_path):
    class Registry(SchemaLookup):
        def fetch(self, schema_id):
            return RegistrySchema(schema_id, "PROTOBUF", 'syntax = "proto3"; message Paid { string game_name = 1; }')

    for choice in ("decimal", "struct"):
        catalog = SchemaCatalog(Registry(), Lakehouse(str(tmp_path)), values=rules(decimal_messages=choice))
        assert catalog.compiled(1).decimals is (choice == "decimal")


@pytest.mark.parametrize("text", ["null", '{"a": "null"}', '{"a": null, "*": "quarantine"}'])
def test_the_environment_gives_a_choice_or_a_mapping(monkeypatch, text):
    monkeypatch.setenv("GAME_EVENTS_ON_BAD_VALUE", text)
    assert ValueRules.of(load_settings()).takes("a")
    assert ValueRules.of(load_settings()).takes("b") is (text == "null")
