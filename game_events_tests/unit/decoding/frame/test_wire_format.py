"""The frame of a record's value, against the Confluent serializer and against a slow reader that is plainly right."""

import struct
import uuid

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import example, given, settings
from hypothesis import strategies as st

from game_events.decoding.frame import ID_HEADER, MAX_INDEXES, Reason, SchemaRef, parse_indexes, payloads, split
from game_events_tests.support.decoding.helpers import compiled, frame, python_class

NESTED = """syntax = "proto3"; package p;
message First { string name = 1; }
message Second { string name = 1; message Inner { string name = 1; message Deepest { string name = 1; } } }
"""
MANY = 'syntax = "proto3";' + "".join(f"message M{i} {{ string name = 1; }}" for i in range(300))


def reference(value):  # noqa: PLR0911 - one for each way to be no frame
    """(schema id, path, payload) or the reason, byte by byte as the wire format is written down."""
    if value is None:
        return Reason.TOMBSTONE
    if value == b"":
        return Reason.TOO_SHORT
    if value[0] not in (0, 1):
        return Reason.BAD_MAGIC
    at = 5 if value[0] == 0 else 17
    if len(value) <= at:
        return Reason.TOO_SHORT
    schema_id = struct.unpack(">I", value[1:5])[0] if value[0] == 0 else str(uuid.UUID(bytes=value[1:17]))

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            octet = value[at]
            at += 1
            number |= (octet & 0x7F) << shift
            shift += 7
            if octet < 0x80:
                return (number >> 1) ^ -(number & 1)

    try:
        count = varint()
        if not 0 <= count <= MAX_INDEXES:
            return Reason.BAD_INDEX
        path = tuple(varint() for _ in range(count)) or (0,)
    except IndexError:
        return Reason.BAD_INDEX
    return Reason.BAD_INDEX if min(path) < 0 else (schema_id, path, value[at:])


def found(values):
    """What `split` makes of each row; fails if a row is in no group, or in two."""
    array = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    groups, bad = split(array)
    seen = {}

    def put(position, what):
        assert position not in seen, "a row in two places"
        seen[position] = what

    for group, found in zip(groups, payloads(array, groups), strict=True):
        for position, payload in zip(group.rows.tolist(), found.to_pylist(), strict=True):
            put(position, (group.schema_id, group.path, payload))
    for frames in bad:
        for position in frames.rows.tolist():
            put(position, frames.reason)
    assert sorted(seen) == list(range(len(array)))
    return [seen[position] for position in range(len(array))]


def zigzag(number):
    number = number * 2 if number >= 0 else -number * 2 - 1
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def framed(indexes, payload=b"payload", schema_id=7):
    return b"\0" + struct.pack(">I", schema_id) + indexes + payload


@pytest.mark.parametrize("path", [(0,), (1,), (1, 0), (1, 0, 0)])
def test_what_the_serializer_itself_registers_and_writes_is_read(path):
    client = SchemaRegistryClient.new_client({"url": f"mock://frames{len(path)}{path[0]}"})
    message = python_class(compiled(NESTED), path)(name="x")
    value = ProtobufSerializer(type(message), client, {})(message, SerializationContext("t", MessageField.VALUE))
    assert found([value]) == [(int.from_bytes(value[1:5], "big"), path, message.SerializeToString())]


@pytest.mark.parametrize("path", [(63,), (64,), (299,), (1, 2, 3), (0, 0), (8191, 1)])
@pytest.mark.parametrize("schema_id", [1, 2**31 - 1, 2**32 - 1])
def test_any_path_the_serializer_frames_is_read(path, schema_id):
    message = python_class(compiled(MANY), (0,))(name="x")
    assert found([frame(schema_id, path, message)]) == [(schema_id, path, message.SerializeToString())]


def test_a_path_past_63_finds_its_message():
    schema = compiled(MANY)
    for index in (63, 64, 299):
        message = python_class(schema, (index,))(name="x")
        ((_, path, _),) = found([frame(1, (index,), message)])
        assert schema.message(path).name == f"M{index}"


@pytest.mark.parametrize(
    ("indexes", "path"),
    [
        (b"\x00", (0,)),
        (b"\x02\x00", (0,)),
        (b"\x02\x02", (1,)),
        (b"\x02\x04", (2,)),
        (b"\x04\x02\x00", (1, 0)),
        (b"\x06\x02\x00\x00", (1, 0, 0)),
        (b"\x02\x80\x01", (64,)),
        (b"\x80\x00", (0,)),  # zero, written in two bytes
        (b"\x82\x00\x02", (1,)),  # one, written in two bytes
        (zigzag(MAX_INDEXES) + b"\x02" * MAX_INDEXES, (1,) * MAX_INDEXES),
    ],
)
@pytest.mark.parametrize("payload", [b"", b"payload", b"\x80\x80"])
def test_every_form_of_the_indexes_is_read(indexes, path, payload):
    assert found([framed(indexes, payload)]) == [(7, path, payload)]


@pytest.mark.parametrize(
    "indexes",
    [
        b"\x02",  # one index announced, none there
        b"\x04\x02",
        b"\x80",  # a varint that does not end
        b"\x02\x80",
        b"\x01",  # minus one indexes
        b"\x7f",
        b"\x02\x01",  # index minus one
        b"\x04\x00\x03",
        zigzag(MAX_INDEXES + 1) + b"\x02" * (MAX_INDEXES + 1),
        zigzag(2**31) + b"\x02" * 100,
        zigzag(2**63) + b"\x02" * 100,
        b"\xff" * 1000,
    ],
)
def test_damaged_indexes_are_told_with_their_schema_id(indexes):
    (bad,) = split(pa.array([framed(indexes, b"")], pa.binary()))[1]
    assert (bad.reason, bad.schema_id, bad.rows.tolist()) == (Reason.BAD_INDEX, 7, [0])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, Reason.TOMBSTONE),
        (b"", Reason.TOO_SHORT),
        *((b"\0" * length, Reason.TOO_SHORT) for length in range(1, 6)),
        (b"\x02" + b"\0" * 20, Reason.BAD_MAGIC),  # a GUID frame
        (b"{", Reason.BAD_MAGIC),
        (b'{"game_name": "rummy"}', Reason.BAD_MAGIC),
        (b"\x0a\x05rummy", Reason.BAD_MAGIC),  # protobuf without a frame
    ],
)
def test_a_value_without_a_frame_says_why(value, reason):
    assert found([value]) == [reason]
    assert found([framed(b"\0"), value, framed(b"\0")])[1] == reason


def test_a_frame_of_six_bytes_is_an_empty_message():
    assert found([b"\0\0\0\0\x01\0"]) == [(1, (0,), b"")]


@pytest.mark.parametrize("values", [[], [None, None], [b"", b""], [None, b"", b"\0"]])
def test_a_batch_without_a_single_frame_is_no_fault(values):
    assert found(values) == [reference(value) for value in values]


def test_a_slice_of_an_array_is_read_from_its_own_offset():
    values = [framed(b"\0", b"first", 1), None, framed(b"\x02\x02", b"second", 2), framed(b"\x02\x80\x01", b"third", 3), b"{"]
    array = pa.array([b"before", None, *values, framed(b"\0", b"after", 9)], pa.binary())
    assert found(array.slice(2, len(values))) == [reference(value) for value in values]
    assert found(array.slice(2, 1)) == [reference(values[0])]
    assert found(array.slice(3, 0)) == []


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view()])
def test_values_of_arrows_other_binary_types_are_read_as_well(kind):
    values = [framed(b"\0", letter * 5, number) for number, letter in enumerate((b"A", b"B", b"C", b"D"))] + [None, b"x"]
    array = pa.array(values, kind)
    assert found(array) == found(values)
    assert found(array[1:]) == found(values[1:])
    groups, _ = split(array)
    assert {payload.type for payload in payloads(array, groups)} == {pa.binary()}


def test_rows_of_one_type_come_as_one_group_in_order():
    values = [frame(i % 3, (i % 2,), python_class(compiled(NESTED))(name=str(i))) for i in range(60)]
    groups, bad = split(pa.array(values, pa.binary()))
    assert not bad
    assert sorted((g.schema_id, g.path) for g in groups) == [(i, (p,)) for i in range(3) for p in range(2)]
    assert all(g.rows.tolist() == sorted(g.rows.tolist()) and len(g.rows) == 10 for g in groups)


def test_parsing_nothing_is_damage():
    assert parse_indexes(b"") is None


good = st.builds(
    lambda schema_id, path, payload: framed(zigzag(len(path)) + b"".join(map(zigzag, path)), payload, schema_id),
    st.sampled_from([0, 1, 5, 2**31, 2**32 - 1]),
    st.lists(st.integers(-2, 70) | st.sampled_from([8191, 8192, 2**31]), max_size=4),
    st.binary(max_size=5),
)
shaped = st.binary(max_size=14).map(lambda tail: b"\0\0\0\0" + tail)
cut = st.builds(lambda value, length: value[:length], good, st.integers(0, 14))
anything = st.one_of(st.none(), st.binary(max_size=12), shaped, good, cut)


@settings(max_examples=300)
@given(st.lists(anything, max_size=40), st.integers(0, 3))
@example([b"\0\0\0\0\x01" + b"\x80" * 80], 0)
def test_any_bytes_are_read_as_the_wire_format_says_and_each_row_once(values, skip):
    array = pa.array([b"\0other"] * skip + values, pa.binary()).slice(skip)
    assert found(array) == [reference(value) for value in values]


@pytest.mark.parametrize(
    ("schema_id", "stored"), [(7, (7, None)), (0, (0, None)), ("a-guid", (None, "a-guid")), (None, (None, None))]
)
def test_a_schema_is_stored_by_its_id_or_its_guid_and_read_back_from_them(schema_id, stored):
    assert tuple(SchemaRef.of(schema_id)) == stored
    assert SchemaRef(*stored).schema_id == schema_id


def test_of_several_schema_headers_the_last_one_counts():
    def header(schema_id):
        return {"key": ID_HEADER, "value": bytes([0, 0, 0, 0, schema_id, 0])}

    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[header(1), {"key": "other", "value": b""}, header(2)], [header(3)], [header(4), header(1)]], kind)
    groups, bad = split(pa.array([b"x", b"y", b"z"]), headers)
    assert bad == []
    assert sorted((g.schema_id, g.rows.tolist()) for g in groups) == [(1, [2]), (2, [0]), (3, [1])]


def test_frames_of_other_registries_are_named_in_the_detail():
    header = [{"key": "apicurio.value.globalId", "value": b"\0" * 8}]
    guid = uuid.uuid4().bytes
    values = [b"{}", b"\3\0" + guid + b"x", b"\x0a\1a", b"\3\5" + guid, b"\3\0short", b"\3\1" + guid, None, b"{}"]
    headers = [[], [], header, [], [], None, header, [{"key": "other", "value": None}]]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    _, bad = split(pa.array(values, pa.binary()), pa.array(headers, kind))
    said = {int(row): (b.reason, (b.detail or "")[:25]) for b in bad for row in b.rows}
    assert said == {
        **dict.fromkeys((0, 4, 5, 7), (Reason.BAD_MAGIC, "")),
        **dict.fromkeys((1, 3), (Reason.BAD_MAGIC, "the bytes of an AWS Glue ")),
        2: (Reason.BAD_MAGIC, "the schema's id is in a h"),
        6: (Reason.TOMBSTONE, ""),
    }
    _, bad = split(pa.array(values, pa.binary()))
    assert sum(len(b.rows) for b in bad) == len(values)
