"""Protobuf's encoding: its corner cases are read as Python's protobuf reads them, and each kind of damage has its name."""

import random

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.decoding.frame import Reason
from game_events.decoding.protobuf import wire as protobuf_faults
from game_events.decoding.protobuf.wire import FaultFinder
from game_events_tests.support.decoding.helpers import (
    assert_each_row_once,
    compiled,
    decode,
    frame,
    plan_for,
    python_class,
    reasons_by_position,
    rows_by_position,
)
from game_events_tests.support.decoding.protobuf_worlds import Writer, spoilt, varint
from game_events_tests.support.work import counted

SCHEMA = compiled(
    """syntax = "proto3"; package e; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
    message E { int32 n = 1; string s = 2; repeated int32 p = 3; repeated int32 u = 4 [packed = false];
      map<string, int32> m = 5;
      oneof o { int32 a = 6; string b = 7; In c = 8; } In in = 9; google.protobuf.Timestamp at = 10; bool t = 11; uint32 w = 12;
      repeated fixed32 x = 13; sint32 z = 14; google.protobuf.Int32Value v = 15; E e = 16;
      message In { int32 i = 1; int32 j = 2; } }""",
    401,
)
PLAN = plan_for((SCHEMA, (0,)))
NEW = python_class(SCHEMA)
HEAD = b"\0\0\0\x01\x91\0"


def rows(*payloads):
    """Decoded rows, all of them good, and each what Python's protobuf reads."""
    decoded = decode(PLAN, [HEAD + payload for payload in payloads])
    assert not decoded.rejected
    return [row for _, row in sorted(rows_by_position(decoded).items())]


def fault(payload):
    """Reason and detail of the only bad row among good ones."""
    with pytest.raises(DecodeError):
        NEW.FromString(payload)
    good = frame(401, (0,), NEW(n=1))
    decoded = decode(PLAN, [good, HEAD + payload, good])
    assert_each_row_once(decoded, range(3))
    (rejected,) = decoded.rejected
    assert rejected.rows.tolist() == [1]
    return rejected.reason, rejected.detail


# --- legal, and easily misread


@pytest.mark.parametrize(
    "payload", [b"\x08\x85\x00", b"\x88\x00\x05", b"\x88\x80\x80\x80\x00\x85\x80\x80\x80\x80\x80\x80\x80\x80\x00"]
)
def test_over_long_varints_are_the_numbers_they_are(payload):
    assert [row["n"] for row in rows(payload)] == [5]


@pytest.mark.parametrize("payload", [b"\x08\x85\x80\x80\x80\x10", b"\x08\x85\x80\x80\x80\xf0\xff\xff\xff\xff\x01"])
def test_of_numbers_too_great_for_32_bits_the_upper_bits_are_cut_off(payload):
    assert NEW.FromString(payload).n == 5
    assert [row["n"] for row in rows(payload)] == [5]


def test_a_negative_number_in_five_bytes_is_negative():
    assert [row["n"] for row in rows(b"\x08\xff\xff\xff\xff\x0f", NEW(n=-1).SerializeToString())] == [-1, -1]


def test_the_last_value_of_a_field_wins():
    assert [(row["n"], row["s"]) for row in rows(b"\x08\x01\x12\x01a\x08\x02\x12\x01b")] == [(2, "b")]


def test_the_last_member_of_a_oneof_wins():
    first, second, third = rows(b"\x30\x01\x3a\x01x", b"\x3a\x01x\x30\x01", b"\x30\x01\x42\x02\x08\x07")
    assert (first["a"], first["b"]) == (None, "x")
    assert (second["a"], second["b"]) == (1, None)
    assert (third["a"], third["c"]) == (None, {"i": 7, "j": 0})


def test_the_last_of_two_values_of_a_map_key_wins_and_a_missing_one_is_the_default():
    payload = b"\x2a\x05\x0a\x01k\x10\x01" + b"\x2a\x05\x0a\x01k\x10\x02" + b"\x2a\x03\x0a\x01j" + b"\x2a\x02\x10\x03"
    (row,) = rows(payload)
    assert sorted(row["m"]) == [("", 3), ("j", 0), ("k", 2)]


def test_messages_said_twice_are_merged_times_and_wrappers_too():
    (row,) = rows(b"\x4a\x02\x08\x01\x4a\x02\x10\x02" + b"\x52\x02\x08\x05\x52\x03\x10\xe8\x07" + b"\x7a\x02\x08\x07\x7a\x00")
    assert row["in"] == {"i": 1, "j": 2}
    assert row["at"] == pa.scalar(5_000_001, pa.timestamp("us", tz="UTC")).as_py()
    assert row["v"] == 7


def test_lists_are_read_packed_unpacked_and_mixed_whatever_the_schema_says():
    payload = b"\x18\x01\x1a\x02\x02\x03\x18\x04" + b"\x20\x01\x22\x02\x02\x03\x20\x04" + b"\x6d\x01\0\0\0\x6a\x04\x02\0\0\0"
    (row,) = rows(payload)
    assert (row["p"], row["u"], row["x"]) == ([1, 2, 3, 4], [1, 2, 3, 4], [1, 2])


def test_a_wrong_wire_type_is_an_unknown_field_and_no_value():
    (row,) = rows(b"\x0a\x01x" + b"\x10\x05" + b"\x4d\0\0\0\0" + b"\x2d\0\0\0\0" + b"\x53\x08\x05\x54")
    assert (row["n"], row["s"], row["in"], row["m"], row["at"]) == (0, "", None, [], None)


def test_any_number_but_nought_is_true():
    assert [row["t"] for row in rows(b"\x58\x02", b"\x58\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x58\x80\x00")] == [
        True,
        True,
        False,
    ]


def test_unknown_groups_and_fields_with_the_greatest_number_are_passed_over():
    assert [row["n"] for row in rows(b"\x9b\x06\x08\x05\x9c\x06\x08\x01", b"\xfa\xff\xff\xff\x0f\x01a\x08\x01")] == [1, 1]


# --- damage, by name


@pytest.mark.parametrize(
    ("payload", "reason", "what"),
    [
        (b"\x08\x80", Reason.TRUNCATED, "field n: the varint runs past the end at byte 1"),
        (b"\x08\x01\x92", Reason.TRUNCATED, "the varint runs past the end at byte 2"),
        (b"\x12\x05ab", Reason.TRUNCATED, "field s: the length runs past the end at byte 0"),
        (b"\x4a\x02\x08\x80\x08\x01", Reason.TRUNCATED, "field in.i: the varint runs past the end at byte 3"),
        (b"\x4a\x03\x0a\x09a", Reason.TRUNCATED, "field in.i: the length runs past the end at byte 2"),
        (b"\xa5\x06\x01", Reason.TRUNCATED, "field 100: the value runs past the end at byte 0"),
        (b"\x1a\x02\x01\x80", Reason.TRUNCATED, "field p: the last varint of a packed list runs past its end at byte 3"),
        (b"\x6a\x05\0\0\0\0\0", Reason.TRUNCATED, "field x: the last value of a packed list runs past its end at byte 6"),
        (b"\x12\x02a\xff", Reason.BAD_UTF8, "field s: not UTF-8 at byte 3"),
        (b"\x2a\x05\x0a\x01\xff\x10\x01", Reason.BAD_UTF8, "field m.key: not UTF-8 at byte 4"),
        (b"\x08" + b"\xff" * 10 + b"\x01", Reason.MALFORMED, "field n: a varint of more than ten bytes at byte 1"),
        (b"\x1a\x0b" + b"\xff" * 10 + b"\x01", Reason.MALFORMED, "field p: a varint of more than ten bytes at byte 2"),
        (b"\x08\x01\x02\x00", Reason.MALFORMED, "field number 0 at byte 2"),
        (b"\x4a\x02\x00\x01", Reason.MALFORMED, "field in: field number 0 at byte 2"),
        (b"\x88\x80\x80\x80\x80\x00\x01", Reason.MALFORMED, "the field number is too great at byte 0"),
        (b"\xf8\xff\xff\xff\x1f\x01", Reason.MALFORMED, "the field number is too great at byte 0"),
        (b"\x0e\x00", Reason.MALFORMED, "field n: wire type 6 at byte 0"),
        (b"\x9c\x06", Reason.MALFORMED, "field 99: the end of a group that was not opened at byte 0"),
        (b"\x9b\x06\x08\x01", Reason.MALFORMED, "field 99: the group is never closed at byte 4"),
        (b"\x9b\x06\xa4\x06", Reason.MALFORMED, "field 99.100: the end of a group that was not opened at byte 2"),
        (b"\x12" + b"\xff" * 9 + b"\x01", Reason.MALFORMED, "field s: the length is impossible at byte 0"),
        (b"\x9b\x06" * 101 + b"\x9c\x06" * 101, Reason.TOO_DEEP, "more than 100 levels at byte 200"),
    ],
)
def test_damage_is_named_and_located(payload, reason, what):
    found, detail = fault(payload)
    assert found == reason
    assert detail.startswith("e.E: ")
    assert detail.endswith(what)


#: Five lists of one element, written unpacked; a list of seven, written packed; a map entry without key and value.
SAVING = [
    (" ".join(f"repeated int32 l{i} = {i};" for i in range(2, 7)), b"".join(bytes([i << 3, 1]) for i in range(2, 7)), 1),
    ("repeated int32 l = 2 [packed = false];", b"\x12\x07\1\1\1\1\1\1\1", 1),
    ("map<int32, int32> m = 2;", b"\x12\0", 16),
]


@pytest.mark.parametrize(("fields", "spared", "number"), SAVING)
def test_bytes_saved_in_one_place_do_not_hide_what_is_wrong_in_another(fields, spared, number):
    schema = compiled(f'syntax = "proto3"; message E {{ int32 n = {number}; {fields} }}', 403)
    message = python_class(schema)
    # A tag of six bytes, which no protobuf reads: as many bytes too long as the rest is shorter than usual.
    tag = varint(number << 3)
    payload = varint(number << 3, extra=6 - len(tag)) + b"\1" + spared
    assert len(message.FromString(tag + b"\1" + spared).SerializeToString()) == len(payload)
    with pytest.raises(DecodeError):
        message.FromString(payload)
    decoded = decode(plan_for((schema, (0,))), [b"\0\0\0\x01\x93\0" + payload])
    assert reasons_by_position(decoded) == {0: Reason.MALFORMED}


@pytest.mark.parametrize("payload", [b"\x12\x06secret\x12\x07secret\xff", b"\x12\x06secret\x08\x80"])
def test_a_detail_holds_no_value(payload):
    assert "secret" not in fault(payload)[1]


def test_a_time_out_of_range_is_named_with_its_field():
    values = [frame(401, (0,), NEW(at=at)) for at in ({"seconds": 2**40}, {"seconds": 1, "nanos": -1}, {"nanos": 10**9}, {})]
    decoded = decode(PLAN, values)
    assert reasons_by_position(decoded) == dict.fromkeys(range(3), Reason.OUT_OF_RANGE)
    assert {r.detail for r in decoded.rejected} == {"e.E: field at: outside protobuf's range of a time at byte 0"}


def test_a_proto2_string_that_is_not_utf8_is_rejected_as_no_column_of_strings_holds_it():
    text = 'syntax = "proto2"; message E { optional string s = 1; map<string, int32> m = 2; repeated string r = 3; }'
    schema = compiled(text, 402)
    payloads = [b"\x0a\x01\xff", b"\x12\x03\x0a\x01\xff", b"\x1a\x01a\x1a\x01\xff", b"\x0a\x01a"]
    decoded = decode(plan_for((schema, (0,))), [b"\0\0\0\x01\x92\0" + payload for payload in payloads])
    assert reasons_by_position(decoded) == dict.fromkeys(range(3), Reason.BAD_UTF8)
    assert set(rows_by_position(decoded)) == {3}


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_fault_is_found_if_and_only_if_python_refuses(seed):
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    finder = FaultFinder(SCHEMA.message((0,)), SCHEMA.pool)
    writer = Writer(chance, SCHEMA.pool, chance.choice([0, 0.2]), chance.choice([0, 0.1]))
    for payload in (spoilt(chance, writer.message(SCHEMA.message((0,)))) for _ in range(10)):
        try:
            NEW.FromString(payload)
            readable = True
        except DecodeError:
            readable = False
        found = finder.first(payload)
        assert (found is None or found[0] == Reason.OUT_OF_RANGE) if readable else found is not None, (payload, found)


def test_looking_for_a_fault_is_bounded_and_the_row_is_rejected_all_the_same():
    payload = b"\x08\x01" * (protobuf_faults.MAX_STEPS * 5) + b"\x08"
    (found, detail), calls = counted(lambda: fault(payload))
    assert calls < 20 * protobuf_faults.MAX_STEPS
    assert (found, detail) == (Reason.MALFORMED, "e.E: Error parsing message with type 'e.E'")


# --- bad rows cost little


@pytest.mark.parametrize("every", [1, 2, 100])
def test_many_bad_rows_cost_a_bounded_number_of_calls_and_only_themselves(every):
    good = NEW(n=5, s="x" * 20, at={"seconds": 5}).SerializeToString()
    values = [HEAD + (good[:-1] if i % every == 0 else good) for i in range(20_000)]
    decoded, calls = counted(lambda: decode(PLAN, values))
    # Up to 41 a row.
    assert calls < 100 * 20_000
    assert reasons_by_position(decoded) == dict.fromkeys(range(0, 20_000, every), Reason.TRUNCATED)
    assert_each_row_once(decoded, range(20_000))
