"""Records of topics without frames: by the rule of their topic, each row once, a bad one alone."""

import io
import json
import os
import uuid
import zlib

import fastavro
import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import DecodePlan
from game_events.decoding.frame import Reason, RegistrySchema, schema_guid
from game_events.decoding.unframed.topics import TopicPlan, TopicRules
from game_events.lakehouse.data.columns import StoredType
from game_events.workers.records import RecordDecoder
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.decoding.topics import Registry, catalog_of, decoded, reasons_of, records, rows_of

TEXT = """syntax = "proto3"; package t; message A { int32 n = 1; string s = 2; }
message B { string who = 1; message In { bool b = 1; } }"""
AVRO = {"type": "record", "name": "Visit", "fields": [{"name": "page", "type": "string"}, {"name": "n", "type": "long"}]}
JSON = {"title": "Seen", "type": "object", "properties": {"n": {"type": "integer"}}}


def proto(schema_id=1):
    return RegistrySchema(schema_id, "PROTOBUF", TEXT)


def a(**fields):
    return python_class(compiled(TEXT))(**fields)


def compiled_b(**fields):
    return python_class(compiled(TEXT), (1,))(**fields)


def visit(page, n):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), {"page": page, "n": n})
    return out.getvalue()


@pytest.fixture
def world(tmp_path):
    registry = Registry(
        [proto(1), RegistrySchema(2, "AVRO", json.dumps(AVRO)), RegistrySchema(3, "JSON", json.dumps(JSON))],
        {"a": [1], "visits": [2], "seen": [3]},
    )

    def decode(entry, values, topics="events", **more):
        catalog = catalog_of(tmp_path, registry, decoding=entry if "format" not in entry else {"events": entry})
        return decoded(catalog, records(values, topics, **more))[0]

    decode.registry = registry
    return decode


def test_a_message_type_is_found_by_its_name_nested_ones_too(world, tmp_path):
    file = tmp_path / "a.proto"
    file.write_text(TEXT)
    entry = {"format": "protobuf", "schema": str(file)}
    guid = schema_guid("PROTOBUF", TEXT)
    batch = world(entry, [a(n=1).SerializeToString(), b"", None])
    assert rows_of(batch) == {0: ("t.A", {"n": 1, "s": ""}), 1: ("t.A", {"n": 0, "s": ""})}, "nothing is a message of defaults"
    assert {schema_id for _, schema_id, _, _ in batch.good} == {guid}
    assert reasons_of(batch) == {2: (Reason.TOMBSTONE, "the record has no value at all")}
    assert rows_of(world(entry | {"message_type": "t.B.In"}, [b"\x08\x01"])) == {0: ("t.B.In", {"b": True})}


def test_topics_of_a_batch_are_decoded_each_by_its_rule_and_the_others_by_their_frames(world):
    entries = {
        "visits": {"format": "avro", "schema": "subject:visits@1"},
        "seen.*|visits": {"format": "json", "schema": "subject:seen"},
    }
    topics = ["visits", "framed", "seen-1", "framed", "visits"]
    values = [visit("x", 1), frame(1, (0,), a(n=5)), b'{"n": 2}', b"bare", visit("y", 2)]
    batch = world(entries, values, topics)
    assert rows_of(batch) == {
        0: ("Visit", {"page": "x", "n": 1}), 1: ("t.A", {"n": 5, "s": ""}),
        2: ("Seen", {"n": 2}), 4: ("Visit", {"page": "y", "n": 2}),
    }  # fmt: skip
    ((where, (reason, detail)),) = reasons_of(batch).items()
    assert (where, reason) == (3, Reason.BAD_MAGIC)
    assert "GAME_EVENTS_DECODING says how" in detail


@pytest.mark.parametrize(("kind", "schema", "payload"), [("protobuf", "a", b"\x08\x07"), ("json", "seen", b'{"n": 7}')])
def test_both_kinds_in_one_topic_are_told_apart_by_the_first_byte(world, kind, schema, payload):
    entry = {"format": kind, "schema": f"subject:{schema}", "framed": "auto"}
    headers = [[], [], [("__value_schema_id", b"\0\0\0\0\1\0")], [], []]
    values = [payload, frame(1, (0,), a(n=3)), b"\x08\x04", b"\0\0\0\0\x63\0", b"\1short"]
    batch = world(entry, values, headers=headers)
    assert {at: row["n"] for at, (_, row) in rows_of(batch).items()} == {0: 7, 1: 3, 2: 4}
    found = reasons_of(batch)
    assert found[3][0] == Reason.UNKNOWN_SCHEMA, "a frame all the same: its schema may be registered one day"
    assert found[4][0] in (Reason.MALFORMED, Reason.TRUNCATED)
    assert f"subject:{schema}" in found[4][1]


def test_the_header_of_a_frame_is_one_in_every_topic(world):
    entry = {".*": {"format": "json"}}
    headers = [[("__value_schema_id", b"\0\0\0\0\1\0")], [("other", None)], []]
    batch = world(entry, [b"\x08\x04", b'{"n": 1}', b'{"n": 2}'], "files", headers=headers)
    assert {at: name for at, (name, _) in rows_of(batch).items()} == {0: "t.A", 1: "files", 2: "files"}


def test_of_avro_a_frame_is_one_with_an_id_that_the_registry_knows(world):
    entry = {"format": "avro", "schema": "subject:visits", "framed": "auto"}
    like_frames = [visit("", n) + b"" for n in (1, 2, -3)]
    longer = [b"\0" + bytes([n]) + b"\2\2\2" for n in range(2)]
    values = [visit("x", 1), b"\0\0\0\0\2" + visit("y", 2), *like_frames, *longer]
    batch = world(entry, values)
    assert [row for _, (_, row) in sorted(rows_of(batch).items())] == [
        {"page": "x", "n": 1}, {"page": "y", "n": 2}, {"page": "", "n": 1}, {"page": "", "n": 2}, {"page": "", "n": -3},
    ]  # fmt: skip
    assert set(reasons_of(batch)) == {5, 6}, "longer than the schema says, and no frames"
    assert all("subject:visits" in detail for _, detail in reasons_of(batch).values())


def test_records_name_schemas_and_what_they_name_is_asked_for_once(world):
    entry = {"format": "avro", "schema": "header:s"}
    named = [b"visits", b"2", b" visits ", b"nobody", None, b"x" * 300, b"\xff", b"visits"]
    headers = [[("s", b"nobody"), ("s", name)] for name in named]
    batch = world(entry, [visit("x", n) for n in range(8)], headers=headers)
    assert {at: row["n"] for at, (_, row) in rows_of(batch).items()} == {0: 0, 1: 1, 2: 2, 7: 7}
    found = reasons_of(batch)
    assert {why for why, _ in found.values()} == {Reason.UNKNOWN_SCHEMA}
    assert "no subject 'nobody'" in found[3][1] and "header 's'" in found[4][1] and "header 's'" in found[5][1]
    assert world.registry.asked.count(("nobody", None)) == 1


def test_keys_that_are_no_names_cost_a_bounded_number_of_requests(world):
    values = [visit("x", n) for n in range(300)]
    batch = world({"format": "avro", "schema": "key"}, values, keys=[f"player {n}".encode() for n in range(300)])
    assert len(reasons_of(batch)) == 300
    assert len(world.registry.asked) <= 60


def test_frames_of_aws_glue_are_stripped_and_unpacked_within_bounds(world):
    head = b"\3\0" + uuid.uuid4().bytes
    packed = b"\3\5" + uuid.uuid4().bytes
    good = a(n=1, s="x").SerializeToString()
    bomb = zlib.compress(b"\x12\x80\x80\x80\x01" + bytes(2**21))
    values = [
        head + good,
        packed + zlib.compress(good),
        good,
        packed + b"no zlib",
        packed + zlib.compress(good)[:-3],
        packed + bomb,
    ]
    entry = {"format": "protobuf", "schema": "subject:a", "framed": "glue"}
    catalog = catalog_of("/nowhere", world.registry, decoding={"events": entry}, max_record_bytes=2**20)
    batch, _, _ = decoded(catalog, records(values))
    assert rows_of(batch) == dict.fromkeys((0, 1), ("t.A", {"n": 1, "s": "x"}))
    assert {at: why for at, (why, _) in reasons_of(batch).items()} == {
        2: Reason.BAD_MAGIC, 3: Reason.MALFORMED, 4: Reason.TRUNCATED, 5: Reason.TOO_LARGE,
    }  # fmt: skip


def parts_of(values, columns=None, framed="glue"):
    """Rows of the parts that values are decoded in."""
    rules = TopicRules.of_settings(load_settings(decoding={"events": {"format": "json", "framed": framed}}))
    decoder = RecordDecoder(DecodePlan(columns=columns or ColumnMap(), topics=TopicPlan(rules)))
    return [len(part) for part in decoder.parts(pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}), "value")]


def test_a_batch_that_may_be_compressed_is_cut_by_what_it_may_become():
    packed = b"\3\5" + os.urandom(400_000)
    assert parts_of([packed] * 40) == [16, 16, 8], "64 MiB each, as more are too large"
    assert parts_of([packed[: 300_000 // 1_032]] * 10_000) == [3587, 3587, 2826]
    assert parts_of([]) == [0]


def test_what_is_not_compressed_is_cut_as_without_aws_glue():
    for plain in (b"x" * 400_000, b"\3\0" + b"x" * 400_000):
        assert parts_of([plain] * 40) == [40]
    lists = ColumnMap().with_columns({"items": pa.list_(pa.string())})
    many = [b"x" * 1_000_000] * 60
    assert parts_of(many, lists) == parts_of(many, lists, framed="auto")
    assert len(parts_of(many, lists)) > 1
    mixed = [b"x" * 1_000, b"\3\5" + b"x" * 100_000] * 3
    assert len(parts_of(mixed, lists)) > len(parts_of(mixed)), "cells are bounded, too"


def test_stored_rows_of_a_topic_without_a_rule_keep_the_schema_that_they_were_decoded_with(world):
    stored = (pa.array([1, 2, None], pa.int64()), pa.array([None] * 3, pa.string()), pa.array(["t.B", None, None]))
    batch = world({}, [b"\x0a\x03ann", visit("x", 1), b"{}"], stored=stored)
    assert rows_of(batch) == {0: ("t.B", {"who": "ann"}), 1: ("Visit", {"page": "x", "n": 1})}
    assert reasons_of(batch)[2][0] == Reason.BAD_MAGIC


def test_payloads_of_stored_rows_that_begin_like_frames_are_decoded_by_the_schema_of_before(world):
    guid = str(uuid.UUID(int=9))
    world.registry.schemas[guid] = RegistrySchema(guid, "AVRO", json.dumps(AVRO))
    short, longer = visit("", 1), visit("", 300_000_000_000)
    assert short[0] == longer[0] == 0 and len(short) < 5 < len(longer), "both begin as a frame does"
    values = [
        short,
        longer,
        short,
        longer,
        b"\0\0\0\0\2" + visit("x", 2),
        b"\1" + bytes([*[0] * 15, 9]) + visit("y", 3),
        None,
        short,
    ]
    ids = pa.array([2, 2, None, None, 2, None, 2, None], pa.int64())
    guids = pa.array([None, None, guid, guid, None, guid, None, None], pa.string())
    batch = world({}, values, stored=(ids, guids, pa.array(["Visit"] * 8)))
    pages = {at: (row["page"], row["n"]) for at, (_, row) in rows_of(batch).items()}
    many = ("", 300_000_000_000)
    assert pages == {0: ("", 1), 1: many, 2: ("", 1), 3: many, 4: ("x", 2), 5: ("y", 3)}
    assert {at: why for at, (why, _) in reasons_of(batch).items()} == {6: Reason.TOMBSTONE, 7: Reason.TOO_SHORT}


def test_stored_rows_of_a_subject_stay_with_their_version_and_others_get_the_newest(world):
    wider = AVRO | {"fields": [*AVRO["fields"], {"name": "os", "type": "string"}]}
    world.registry.schemas[4] = RegistrySchema(4, "AVRO", json.dumps(wider))
    world.registry.subjects["visits"] = [2, 4]
    world.registry.versions = lambda subject: [
        type("V", (), {"schema_id": i, "version": n})() for n, i in enumerate(world.registry.subjects[subject], 1)
    ]
    stored = (pa.array([2, 4, 1, None], pa.int64()), pa.array([None] * 4, pa.string()), pa.array([None] * 4, pa.string()))
    new = visit("y", 2) + b"\x02z"
    batch = world({"format": "avro", "schema": "subject:visits"}, [visit("x", 1), new, new, new], stored=stored)
    assert {at: row.get("os") for at, (_, row) in rows_of(batch).items()} == {0: None, 1: "z", 2: "z", 3: "z"}


def test_rows_are_decoded_again_with_one_plan(tmp_path, world):
    """Their types are known from what they were decoded with, and from the rules of now."""
    wider = AVRO | {"fields": [*AVRO["fields"], {"name": "os", "type": "string"}]}
    world.registry.schemas[4] = RegistrySchema(4, "AVRO", json.dumps(wider))
    world.registry.subjects["visits"] = [2, 4]
    world.registry.versions = lambda subject: [
        type("V", (), {"schema_id": i, "version": n})() for n, i in enumerate(world.registry.subjects[subject], 1)
    ]
    file = tmp_path / "a.proto"
    file.write_text(TEXT)
    entries = {
        "files": {"format": "protobuf", "schema": str(file), "message_type": "t.B"},
        "visits": {"format": "avro", "schema": "subject:visits"},
        "clicks": {"format": "json", "cloudevents": True},
    }
    guid = schema_guid("PROTOBUF", TEXT)
    rows = [
        ("files", b"\x0a\x03ann", StoredType(None, "files", guid, "t.B")),
        ("visits", visit("x", 1), StoredType(None, "visits", 2, "Visit")),
        ("clicks", b'{"specversion": "1.0"}', StoredType(None, "clicks", None, None)),
        ("framed", frame(1, (1,), compiled_b(who="bob")), StoredType(None, "framed", 1, "t.B")),
    ]
    topics, values, stored = zip(*rows, strict=True)
    ids = pa.array([item.schema_id if isinstance(item.schema_id, int) else None for item in stored], pa.int64())
    guids = pa.array([item.schema_id if isinstance(item.schema_id, str) else None for item in stored], pa.string())
    sent = records(values, topics, stored=(ids, guids, pa.array([item.message_type for item in stored])))
    catalog = catalog_of(tmp_path / "l", world.registry, decoding=entries)
    planned = catalog.types_of_stored(stored)
    batch, columns, times = decoded(catalog, sent, planned=planned)
    assert (times, reasons_of(batch)) == (1, {})
    assert {name for name, _ in rows_of(batch).values()} == {"t.B", "Visit", "clicks"}
    assert dict(catalog.plan(ColumnMap(), planned).columns.columns) == dict(columns.columns), "no type that does not occur"


def test_without_rules_nothing_is_looked_at():
    class NoTopics:
        """Fails whoever looks at it."""

    decoder = RecordDecoder(DecodePlan(topics=TopicPlan(TopicRules())))
    sent = records([b"bare"])._replace(topics=NoTopics(), keys=NoTopics())
    assert reasons_of(decoder.decode_records(sent))[0][0] == Reason.BAD_MAGIC
