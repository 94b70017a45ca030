"""ptars behind our projection, against Python's protobuf, on generated messages."""

import math
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.decoding.columns import TIMESTAMP_RANGE
from game_events.decoding.decoder import BatchDecoder
from game_events_tests.support.decoding.helpers import (
    assert_each_row_once,
    compiled,
    frame,
    plan_for,
    python_class,
    reasons_by_position,
    rows_by_position,
)

SCHEMA = compiled(
    """syntax = "proto3"; package d; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
message Event {
  enum Kind { NONE = 0; ONE = 1; TWO = 2; }
  message Inner { int32 a = 1; optional string b = 2; repeated uint64 c = 3; map<int32, Leaf> d = 4;
    google.protobuf.Timestamp at = 5; }
  message Leaf { bool x = 1; bytes y = 2; Kind k = 3; }
  string s = 1; optional string os = 2; int32 i = 3; optional int64 oi = 4; uint64 u = 5; optional uint64 ou = 6;
  double f = 7; float g = 8; bool b = 9; bytes by = 10; Kind kind = 11; optional Kind okind = 12;
  google.protobuf.Timestamp at = 13; repeated google.protobuf.Timestamp ats = 14;
  repeated string rs = 15; repeated sint64 ri = 16; repeated uint64 ru = 17; repeated Kind rk = 18;
  map<string, uint64> mu = 19; map<int64, Inner> mi = 20; map<bool, Kind> mk = 21;
  Inner in = 22; repeated Inner ins = 23;
  oneof choice { string cs = 24; Inner ci = 25; uint32 cu = 26; }
  google.protobuf.StringValue w = 27; fixed64 fx = 28; sfixed32 sx = 29;
}""",
    61,
)
PLAN = plan_for((SCHEMA, (0,)))
EVENT = python_class(SCHEMA)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
uint64 = st.integers(0, 2**64 - 1)
seconds = st.integers(TIMESTAMP_RANGE[0] // 1_000_000, TIMESTAMP_RANGE[1] // 1_000_000)
at = st.fixed_dictionaries({"seconds": seconds, "nanos": st.integers(0, 999_999).map(lambda us: us * 1_000)})
kind = st.sampled_from([0, 1, 2])
leaf = st.fixed_dictionaries({}, optional={"x": st.booleans(), "y": st.binary(max_size=4), "k": kind})
few = {"max_size": 3}
inner = st.fixed_dictionaries(
    {},
    optional={
        "a": int32, "b": text, "c": st.lists(uint64, **few), "d": st.dictionaries(int32, leaf, **few), "at": at,
    },
)  # fmt: skip
event = st.fixed_dictionaries(
    {},
    optional={
        "s": text, "os": text, "i": int32, "oi": int64, "u": uint64, "ou": uint64, "f": st.floats(), "g": st.floats(width=32),
        "b": st.booleans(), "by": st.binary(max_size=5), "kind": st.sampled_from([0, 1, 2, 77, -5]), "okind": kind,
        "at": at, "ats": st.lists(at, **few), "rs": st.lists(text, **few), "ri": st.lists(int64, **few),
        "ru": st.lists(uint64, **few), "rk": st.lists(kind, **few), "mu": st.dictionaries(text, uint64, **few),
        "mi": st.dictionaries(int64, inner, max_size=2), "mk": st.dictionaries(st.booleans(), kind, **few),
        "in": inner, "ins": st.lists(inner, **few), "w": st.fixed_dictionaries({"value": text}),
        "fx": uint64, "sx": int32,
    },
)  # fmt: skip
choice = st.one_of(st.just({}), text.map(lambda v: {"cs": v}), inner.map(lambda v: {"ci": v}), st.just({"cu": 0}))


def expected(message):
    """The row that Python's protobuf gives: NULL where there is presence and no value."""
    row = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            item = field.message_type.fields_by_name["value"]
            row[field.name] = sorted((k, one(item, v)) for k, v in value.items())
        elif field.is_repeated:
            row[field.name] = [one(field, v) for v in value]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = one(field, value)
    return row


def one(field, value):
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    if field.message_type is None:
        return value
    if field.message_type.full_name == "google.protobuf.Timestamp":
        return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    if field.message_type.full_name == "google.protobuf.StringValue":
        return value.value
    return expected(value)


def normal(value):
    """Maps sorted, NaN equal to itself, decimals as integers."""
    if isinstance(value, dict):
        return {key: normal(inside) for key, inside in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return sorted(((normal(k), normal(v)) for k, v in value), key=lambda pair: pair[0])
        return [normal(inside) for inside in value]
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value


@settings(max_examples=40)
@given(st.lists(st.builds(lambda e, c: e | c, event, choice), min_size=1, max_size=12))
def test_decoded_rows_are_what_pythons_protobuf_reads(values):
    messages = [EVENT(**value) for value in values]
    decoded = BatchDecoder(PLAN).decode(pa.array([frame(61, (0,), m) for m in messages], pa.binary()))
    assert not decoded.rejected
    assert_each_row_once(decoded, range(len(messages)))
    rows = rows_by_position(decoded)
    for position, message in enumerate(messages):
        assert normal(rows[position]) == normal(expected(message))


def spoil(payload, edits):
    """Bytes changed, removed, or added."""
    spoilt = bytearray(payload)
    for at_, octet in edits:
        if octet is None:
            del spoilt[at_ % (len(spoilt) + 1) :]
        elif spoilt:
            spoilt[at_ % len(spoilt)] = octet
        else:
            spoilt.append(octet)
    return bytes(spoilt)


edits = st.lists(st.tuples(st.integers(0, 200), st.none() | st.integers(0, 255)), max_size=3)


def python_reads(payload):
    try:
        EVENT.FromString(payload)
    except DecodeError:
        return False
    return True


@settings(max_examples=60)
@given(st.lists(st.tuples(event, edits), min_size=1, max_size=12))
def test_spoilt_payloads_are_rejected_or_read_as_pythons_protobuf_does_and_cost_only_themselves(values):
    payloads = [spoil(EVENT(**value).SerializeToString(), changes) for value, changes in values]
    decoded = BatchDecoder(PLAN).decode(pa.array([b"\0\0\0\0\x3d\0" + p for p in payloads], pa.binary()))
    assert_each_row_once(decoded, range(len(payloads)))
    rejected = reasons_by_position(decoded)
    for position, payload in enumerate(payloads):
        if not python_reads(payload):
            assert position in rejected
        if python_reads(payload) and position in rejected:
            (detail,) = {r.detail for r in decoded.rejected if position in r.rows}
            assert "range" in detail, detail
