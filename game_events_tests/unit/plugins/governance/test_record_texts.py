"""Ids in keys and headers of records that are not decoded, as the usual serializers write them. No service."""

from __future__ import annotations

import io
import json
import time

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, StringSerializer
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given
from hypothesis import strategies as st

from game_events.plugins.governance.workers import (
    MOST_BYTES,
    ErasedPeople,
    ErasedPeopleFilter,
    PeopleToErase,
    id_hash,
    texts_of,
)
from game_events_tests.support.decoding.helpers import compiled, python_class
from game_events_tests.support.worlds.undecodable_rows import WHOM, quarantined

KEY = b"a key of the tests, long enough"
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
AVRO_RECORD = {
    "type": "record", "name": "K", "fields": [{"name": "game", "type": "string"}, {"name": "gamer_id", "type": "string"}],
}  # fmt: skip
JSON_OBJECT = {"title": "K", "type": "object", "properties": {"gamer_id": {"type": "string"}}}
ID, GUID = b"\x00\x00\x00\x00\x07", b"\x01" + bytes(range(16))


def avro(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def serialized():
    """Name -> a key with the id, as a serializer writes it."""
    registry = SchemaRegistryClient.new_client({"url": "mock://keys"})
    context = SerializationContext("events", MessageField.KEY)
    message = python_class(compiled('syntax = "proto3"; message K { int32 n = 1; string gamer_id = 2; fixed64 f = 3; }'))
    own = message(n=300, gamer_id=WHOM, f=1).SerializeToString()
    protobuf = ProtobufSerializer(StringValue, registry, {"use.deprecated.format": False})
    return {
        "text": StringSerializer()(WHOM, context),
        "JSON text": json.dumps(WHOM).encode(),
        "JSON text with blanks": f' "{WHOM}" '.encode(),
        "JSON text, escaped": b'"\\u0067' + WHOM[1:].encode() + b'"',
        "JSON object": json.dumps({"game": "uno", "gamer_id": WHOM}).encode(),
        "Avro, Confluent's": AvroSerializer(registry, '"string"')(WHOM, context),
        "Avro record, Confluent's": AvroSerializer(
            registry, json.dumps(AVRO_RECORD), conf={"subject.name.strategy": lambda *_: "r"}
        )({"game": "uno", "gamer_id": WHOM}, context),
        "JSON, Confluent's": JSONSerializer(json.dumps(JSON_OBJECT), registry, conf={"subject.name.strategy": lambda *_: "j"})(
            {"gamer_id": WHOM}, context
        ),
        "protobuf, Confluent's": protobuf(StringValue(value=WHOM), context),
        "Avro without a frame": avro("string", WHOM),
        "protobuf without a frame": own,
        "protobuf, another message": ID + b"\x04\x02\x04" + own,
        "GUID, Avro": GUID + avro("string", WHOM),
        "GUID, JSON": GUID + json.dumps(WHOM).encode(),
        "GUID, protobuf": GUID + b"\x00" + own,
        "GUID, text": GUID + WHOM.encode(),
        "frame, text": ID + WHOM.encode(),
    }


FORMS = serialized()
OTHERS = {
    "nobody's": b"ann",
    "one that begins the same": b'"' + WHOM.encode() + b'-2"',
    "one that ends the same": ID + avro("string", "my" + WHOM),
    "game:id": b"uno:" + WHOM.encode(),
    "UTF-16": WHOM.encode("utf-16"),
    "empty": b"",
}


def suppressor(*ids):
    return ErasedPeopleFilter(ErasedPeople("gamer_id", KEY, frozenset(id_hash(KEY, one.encode()) for one in ids)))


@pytest.mark.parametrize("form", [*FORMS, *OTHERS])
@pytest.mark.parametrize("place", ["key", "header"])
def test_an_id_in_a_key_or_header_is_erased_now_and_suppressed_later(form, place):
    raw, expected = (FORMS | OTHERS)[form], form in FORMS
    keys = pa.array([raw if place == "key" else b"x", None], pa.binary())
    headers = pa.array([None if place == "key" else [{"key": "a", "value": None}, {"key": "by", "value": raw}], None], HEADERS)
    rows = quarantined([b"\xff\xfe", None], _kafka_key=keys, _kafka_headers=headers)
    people = PeopleToErase("gamer_id", "game_name", frozenset({WHOM}))
    assert people.mask("quarantine_events", rows).tolist() == [expected, False]
    batch = pa.record_batch({"key": keys, "headers": headers, "partition": [0, 0], "offset": [1, 2]})
    later = suppressor(WHOM).undecodable(batch, pa.array(["t", "t"]), np.arange(2))
    assert later.tolist() == [expected, False]


def test_a_short_id_is_found_only_as_the_whole_text():
    assert b"7" in texts_of(b'"7"')
    assert b"7" in texts_of(ID + avro("string", "7"))
    assert b"7" in texts_of(b'{"gamer_id": 7}')
    message = StringValue(value="7").SerializeToString()
    assert all(b"7" in texts_of(head + message) for head in (b"", ID + b"\x00", ID + b"\x02\x04", GUID + b"\x00"))
    assert b"7" not in texts_of(ID + b"\x00" + message + b"\x12\x03bob")
    assert b"7" not in texts_of(avro(AVRO_RECORD, {"game": "g", "gamer_id": "7"}))
    assert b"7" not in texts_of(b'{"shard": 7, "gamer_id": "bob"}')


def test_a_record_of_others_with_a_number_in_a_header_is_not_taken_for_the_short_id():
    headers = pa.array([[{"key": "retries", "value": b"7"}]], HEADERS)
    rows = quarantined([b"\xff\xfe"], _kafka_key=pa.array([b"bob"]), _kafka_headers=headers)
    assert not PeopleToErase("gamer_id", "game_name", frozenset({"7"})).mask("quarantine_events", rows).any()
    batch = pa.record_batch({"key": pa.array([b"bob"]), "headers": headers, "partition": [0], "offset": [1]})
    assert not suppressor("7").undecodable(batch, pa.array(["t"]), np.arange(1)).any()


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: b"\x00\x00\x00\x00\x07" + tail))
def test_any_bytes_have_few_texts(raw):
    assert raw in texts_of(raw)
    assert len(texts_of(raw)) < 500


def test_hostile_keys_cost_little():
    keys = [
        b"\x00" * MOST_BYTES,
        b"\x02a" * (MOST_BYTES // 2),
        b"\xff" * MOST_BYTES,
        b"[" * MOST_BYTES,
        b'{"a":' * 800,
        b"x" * 2**20,
    ]
    known, began = suppressor(WHOM), time.process_time()
    for key in keys * 20:
        known.erased_texts(key)
    assert (time.process_time() - began) / (20 * len(keys)) < 0.01
