"""Protobuf, Avro and JSON in one topic: written by the Confluent serializers, decoded side by side into shared columns.

The local registry of the other tests has no GUIDs; only the client's own ``mock://`` registry has them, and is used here.
"""

import json
import random
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from game_events.config.settings import Settings
from game_events.decoding.decoder import BatchDecoder, compile_schema, make_decoder
from game_events.decoding.frame import Reason, RegistrySchema
from game_events.errors import DataError
from game_events.schema_registry import SchemaRegistry
from game_events_tests.support.decoding.format_helpers import framed, plan_of, registered
from game_events_tests.support.decoding.helpers import (
    assert_each_row_once,
    compiled,
    python_class,
    reasons_by_position,
    rows_by_position,
)

PROTO = """syntax = "proto3"; package g; import "google/protobuf/timestamp.proto";
message Event { string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3; int32 level = 4; }"""
AVRO = {
    "type": "record",
    "name": "g.AvroEvent",
    "fields": [
        {"name": "game_name", "type": "string"},
        {"name": "gamer_id", "type": "string"},
        {"name": "event_timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "weapon",
            "type": ["null", {"type": "record", "name": "Weapon", "fields": [{"name": "power", "type": "int"}]}],
        },
    ],
}
JSON = {
    "title": "JsonEvent",
    "type": "object",
    "properties": {
        "game_name": {"type": "string"},
        "gamer_id": {"type": "string"},
        "event_timestamp": {"type": "string", "format": "date-time"},
        "score": {"type": "number"},
    },
}
AT = datetime(2024, 1, 31, 10, 20, 30, 123456, tzinfo=UTC)
SHARED = {"game_name": "rummy", "gamer_id": "ann", "event_timestamp": AT}
EXPECTED = {
    "PROTOBUF": SHARED | {"level": 7},
    "AVRO": SHARED | {"weapon": {"power": 5}},
    "JSON": SHARED | {"score": 1.5},
}


class Producer:
    """One serializer of each format on a registry of its own, prefix or header mode."""

    def __init__(self, name, in_header):
        self.url = f"mock://{name}"
        self.client = SchemaRegistryClient.new_client({"url": self.url})
        conf = {"schema.id.serializer": header_schema_id_serializer} if in_header else {}
        event = python_class(compiled(PROTO))
        self._message = event(game_name="rummy", gamer_id="ann", level=7)
        self._message.event_timestamp.FromDatetime(AT)
        self._serializers = {
            "PROTOBUF": ProtobufSerializer(event, self.client, conf),
            "AVRO": AvroSerializer(self.client, json.dumps(AVRO), conf=conf),
            "JSON": JSONSerializer(json.dumps(JSON), self.client, conf=conf),
        }

    def produce(self, kind):
        """Value and headers of one record."""
        headers = []
        record = {
            "PROTOBUF": self._message,
            "AVRO": {**SHARED, "weapon": {"power": 5}},
            "JSON": {**SHARED, "event_timestamp": "2024-01-31T11:20:30.123456+01:00", "score": 1.5},
        }[kind]
        context = SerializationContext(f"events-{kind}", MessageField.VALUE, headers)
        return self._serializers[kind](record, context), headers

    def fetch(self, schema_id):
        """The schema as our own registry client gives it."""
        settings = Settings.model_construct(schema_registry_url=self.url)
        registry = SchemaRegistry(settings)
        registry._client = self.client
        return registry.fetch(schema_id)


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def decode_records(producer, records):
    """Fetches what the batch turns out to need, then decodes it: as the driver and its workers do."""
    values = pa.array([value for value, _ in records], pa.binary())
    headers = pa.array([[{"key": k, "value": v} for k, v in pairs] for _, pairs in records], HEADERS)
    unknown = BatchDecoder(plan_of()).decode(values, headers).unknown
    plan = plan_of(*(producer.fetch(i) for i in sorted({i for i, _ in unknown}, key=str)))
    return plan, BatchDecoder(plan).decode(values, headers)


@pytest.mark.parametrize("in_header", [False, True])
def test_records_of_all_three_serializers_share_one_batch_and_its_columns(in_header):
    producer = Producer(f"mixed-{in_header}", in_header)
    kinds = list(EXPECTED) * 20
    random.Random(3).shuffle(kinds)  # noqa: S311 - not for secrets
    plan, decoded = decode_records(producer, [producer.produce(kind) for kind in kinds])
    assert not decoded.rejected
    assert not decoded.unknown
    assert_each_row_once(decoded, range(len(kinds)))
    assert [rows_by_position(decoded)[i] for i in range(len(kinds))] == [EXPECTED[kind] for kind in kinds]
    assert set(plan.columns.columns) == {"game_name", "gamer_id", "event_timestamp", "level", "weapon", "score"}
    assert all(isinstance(i, str if in_header else int) for i, _ in decoded.types)
    assert {path for _, path in decoded.types} == {(0,), ()}


def test_a_header_and_a_prefix_of_one_schema_are_the_same_columns():
    in_header, in_value = Producer("both", True), Producer("both", False)
    _, decoded = decode_records(in_header, [p.produce(kind) for kind in EXPECTED for p in (in_header, in_value)])
    assert list(rows_by_position(decoded).values()).count(EXPECTED["AVRO"]) == 2
    assert not decoded.rejected


@pytest.mark.parametrize("kind", list(EXPECTED))
def test_a_damaged_record_of_one_format_costs_none_of_the_others(kind):
    producer = Producer(f"damage-{kind}", False)
    records = [producer.produce(k) for k in EXPECTED]
    value, headers = producer.produce(kind)
    _, decoded = decode_records(producer, [*records, (value[:-3], headers), *records])
    assert set(reasons_by_position(decoded)) == {3}
    assert len(rows_by_position(decoded)) == 6


def test_a_header_that_is_longer_than_its_identity_is_rejected():
    producer = Producer("long", True)
    value, ((key, identity),) = producer.produce("AVRO")
    plan, _ = decode_records(producer, [(value, [(key, identity)])])
    headers = pa.array([[{"key": key, "value": identity + b"\0"}]], HEADERS)
    decoded = BatchDecoder(plan).decode(pa.array([value], pa.binary()), headers)
    assert reasons_by_position(decoded) == {0: Reason.BAD_INDEX}


def test_references_come_from_the_registry_with_their_names():
    client = SchemaRegistryClient.new_client({"url": "mock://references"})
    city = {"type": "record", "name": "geo.City", "fields": [{"name": "name", "type": "string"}]}
    client.register_schema("city", Schema(json.dumps(city), "AVRO"))
    main = {"type": "record", "name": "g.E", "fields": [{"name": "at", "type": "geo.City"}]}
    number = client.register_schema("e", Schema(json.dumps(main), "AVRO", [SchemaReference("geo.City", "city", 1)]))
    place = {"title": "Place", "type": "object", "properties": {"name": {"type": "string"}}}
    client.register_schema("place", Schema(json.dumps(place), "JSON"))
    outer = {"title": "E", "type": "object", "properties": {"at": {"$ref": "place.json"}}}
    other = client.register_schema("j", Schema(json.dumps(outer), "JSON", [SchemaReference("place.json", "place", 1)]))
    producer = SimpleNamespace(url="mock://references", client=client)
    schemas = [Producer.fetch(producer, i) for i in (number, other)]
    values = [framed(b"\x04ab", number), framed(b'{"at":{"name":"ab"}}', other)]
    decoded = BatchDecoder(plan_of(*schemas)).decode(pa.array(values, pa.binary()))
    assert rows_by_position(decoded) == {0: {"at": {"name": "ab"}}, 1: {"at": {"name": "ab"}}}


def test_nullable_maps_lists_and_structs_of_different_versions_keep_null_and_empty_apart():
    def avro(inner):
        record = {"type": "record", "name": "In", "fields": [{"name": n, "type": "int"} for n in inner]}
        maps, lists = {"type": "map", "values": record}, {"type": "array", "items": "In"}
        fields = [{"name": "m", "type": ["null", maps]}, {"name": "l", "type": ["null", lists]}]
        return {"type": "record", "name": "E", "fields": fields}

    plan = plan_of(registered("AVRO", avro("a"), 1), registered("AVRO", avro("b"), 2))
    payloads = [b"\x00\x00", b"\x02\x00\x02\x00", b"\x02\x02\x02k\x06\x00\x02\x02\x08\x00"]
    decoded = BatchDecoder(plan).decode(pa.array([framed(p, i) for i in (1, 2) for p in payloads], pa.binary()))
    rows = rows_by_position(decoded)
    for start, full in ((0, {"a": 3, "b": None}), (3, {"a": None, "b": 3})):
        assert rows[start] == {"m": None, "l": None}
        assert rows[start + 1] == {"m": [], "l": []}
        assert rows[start + 2]["m"] == [("k", full)]


def test_a_format_that_nobody_knows_is_refused_by_name():
    with pytest.raises(DataError, match="schema id 1 is XML"):
        compile_schema(RegistrySchema(1, "XML", "<a/>"))


LISTS = {"type": "record", "name": "L", "fields": [{"name": "l", "type": {"type": "array", "items": "string"}}]}
LISTED = {"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"}}}}


@pytest.mark.parametrize("limit", [0, 8, 40])
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (registered("AVRO", LISTS), b"\x04\x02a\x02b\x00", b"\x04\x02a\x02\xff\x00"),
        (registered("JSON", LISTED), b'{"l":["a","b"]}', b'{"l":["a",1]}'),
    ],
    ids=["AVRO", "JSON"],
)
def test_many_arrow_arrays_of_one_batch_hold_the_same_rows_as_one(schema, good, bad, limit):
    plan = plan_of(schema)
    decoder = make_decoder(plan.schemas[schema.schema_id], ())
    decoded = decoder.decode(pa.array([good, bad, good] * 5, pa.binary()), plan.columns, batch_bytes=limit)
    assert decoded.table.column("l").num_chunks > 1
    assert decoded.table.to_pylist() == [{"l": ["a", "b"]}] * 10
    assert [n for n in range(15) if n not in decoded.good] == list(range(1, 15, 3))
    assert [rows.tolist() for _, _, rows in decoded.bad] == [list(range(1, 15, 3))]
