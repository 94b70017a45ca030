"""Avro payloads that no writer writes: each is rejected with its reason, and costs only itself."""

import io
import json
import subprocess
import sys

import fastavro
import pytest

from game_events.decoding.avro_decoder import MAX_EMPTY_ITEMS, MAX_LEVELS
from game_events.decoding.frame import Reason
from game_events_tests.support.decoding.format_helpers import (
    decode_one,
    framed,
    plan_of,
    registered,
    rejection,
    same_schema_rejections,
)
from game_events_tests.support.decoding.helpers import decode, reasons_by_position, rows_by_position
from game_events_tests.support.work import counted


def record(type_, name="R"):
    return {"type": "record", "name": name, "fields": [{"name": "x", "type": type_}]}


def zigzag(number):
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}
NUMBERS, NULLS = {"type": "array", "items": "long"}, {"type": "array", "items": "null"}
MAP = {"type": "map", "values": "null"}
EMPTY = {"type": "array", "items": {"type": "record", "name": "Q", "fields": []}}
HUGE = zigzag(2**62)

DAMAGE = {
    "no bytes at all": ("long", b"", Reason.TRUNCATED),
    "a byte after the value": ("long", b"\x02\x00", Reason.MALFORMED),
    "a number that does not end": ("long", b"\x80\x80", Reason.TRUNCATED),
    "a number of 65 bits": ("long", b"\xff" * 9 + b"\x02", Reason.MALFORMED),
    "a number of eleven bytes": ("long", b"\xff" * 10 + b"\x01", Reason.MALFORMED),
    "an int of 33 bits": ("int", zigzag(2**31), Reason.OUT_OF_RANGE),
    "half a double": ("double", b"\0" * 5, Reason.TRUNCATED),
    "half a float": ("float", b"\0" * 3, Reason.TRUNCATED),
    "a boolean of 2": ("boolean", b"\x02", Reason.MALFORMED),
    "a text that ends early": ("string", b"\x0aabc", Reason.TRUNCATED),
    "a text of negative length": ("string", b"\x05abc", Reason.MALFORMED),
    "a text of 2^62 bytes": ("string", HUGE + b"abc", Reason.TRUNCATED),
    "a text that is no UTF-8": ("string", b"\x04\xff\xfe", Reason.BAD_UTF8),
    "half of a surrogate pair": ("string", b"\x06\xed\xa0\x80", Reason.BAD_UTF8),
    "bytes of negative length": ("bytes", b"\x01", Reason.MALFORMED),
    "a fixed that ends early": (FIXED, b"abc", Reason.TRUNCATED),
    "a symbol past the last": (ENUM, b"\x04", Reason.MALFORMED),
    "a symbol before the first": (ENUM, b"\x01", Reason.MALFORMED),
    "a branch past the last": (["null", "string"], b"\x04\x02a", Reason.MALFORMED),
    "a branch before the first": (["null", "string"], b"\x01\x02a", Reason.MALFORMED),
    "a branch of a wide union before the first": (["null", "string", "long"], b"\x01\x02", Reason.MALFORMED),
    "an array without its end": (NUMBERS, b"\x02\x02", Reason.TRUNCATED),
    "an array of 2^62 numbers": (NUMBERS, HUGE + b"\x02\x00", Reason.TRUNCATED),
    "an array of -2^63 numbers": (NUMBERS, zigzag(-(2**63)) + b"\x02\x02\x00", Reason.TRUNCATED),
    "an array of 2^62 nulls": (NULLS, HUGE + b"\x00", Reason.MALFORMED),
    "an array of 2^62 empty records": (EMPTY, HUGE + b"\x00", Reason.MALFORMED),
    "a map of 2^62 nulls": (MAP, HUGE + b"\x00", Reason.TRUNCATED),
    "a key that is no UTF-8": (MAP, b"\x02\x02\xff\x00", Reason.BAD_UTF8),
    "a block whose size is wrong": (NUMBERS, b"\x01\x06\x02\x00", Reason.MALFORMED),
    "a date after 9999": ({"type": "int", "logicalType": "date"}, zigzag(2_932_897), Reason.OUT_OF_RANGE),
    "a date before 1": ({"type": "int", "logicalType": "date"}, zigzag(-719_163), Reason.OUT_OF_RANGE),
    "a time of day of 24 hours": ({"type": "int", "logicalType": "time-millis"}, zigzag(86_400_000), Reason.OUT_OF_RANGE),
    "a negative time of day": ({"type": "long", "logicalType": "time-micros"}, zigzag(-1), Reason.OUT_OF_RANGE),
    "a timestamp after 9999": (
        {"type": "long", "logicalType": "timestamp-micros"},
        zigzag(253_402_300_800_000_000),
        Reason.OUT_OF_RANGE,
    ),
    "a timestamp that would overflow": (
        {"type": "long", "logicalType": "timestamp-millis"},
        zigzag(2**63 - 1),
        Reason.OUT_OF_RANGE,
    ),
    "a local timestamp before 1": (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        zigzag(-62_135_596_800_001),
        Reason.OUT_OF_RANGE,
    ),
    "a decimal with a digit too many": (
        {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1},
        b"\x04" + (1_000).to_bytes(2, "big"),
        Reason.OUT_OF_RANGE,
    ),
    "a decimal of 200 digits": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38},
        zigzag(90) + b"\x7f" * 90,
        Reason.OUT_OF_RANGE,
    ),
    "a decimal of more digits than Python makes text of": (
        {"type": "bytes", "logicalType": "decimal", "precision": 150, "scale": 2},
        zigzag(2_100) + b"\x7f" * 2_100,
        Reason.OUT_OF_RANGE,
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_rejected_with_its_reason_and_the_place_and_costs_only_itself(name):
    type_, payload, reason = DAMAGE[name]
    found, detail = rejection("AVRO", record(type_), payload)
    assert found is reason
    assert detail.startswith("R")
    assert name == "a byte after the value" or detail.startswith("R.x: ")


def test_the_last_values_that_fit_are_read():
    fits = [
        ("long", zigzag(2**63 - 1), 2**63 - 1),
        ("long", zigzag(-(2**63)), -(2**63)),
        ("long", b"\x80\x80\x00", 0),  # longer than needed, and legal
        ("int", zigzag(-(2**31)), -(2**31)),
        ({"type": "long", "logicalType": "time-micros"}, zigzag(86_399_999_999), 86_399_999_999),
        ({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 39}, b"\x02\xff", "-0." + "0" * 38 + "1"),
        (NULLS, zigzag(MAX_EMPTY_ITEMS) + b"\0", [None] * MAX_EMPTY_ITEMS),
    ]
    for type_, payload, value in fits:
        assert decode_one("AVRO", record(type_), payload) == {"x": value}


@pytest.mark.parametrize(
    "blocks",
    [
        b"\x06\x02\x04\x06\x00",  # one block
        b"\x02\x02\x04\x04\x06\x00",  # two
        b"\x05\x06\x02\x04\x06\x00",  # one that says how many bytes it has
    ],
)
def test_arrays_may_come_in_blocks(blocks):
    assert decode_one("AVRO", record(NUMBERS), blocks) == {"x": [1, 2, 3]}


def test_of_a_key_that_a_map_has_twice_the_last_value_counts():
    longs = {"type": "map", "values": ["null", "long"]}
    payload = b"\x06" + b"\x02a\x02\x02" + b"\x02b\x00" + b"\x02a\x02\x06" + b"\x00"
    assert decode_one("AVRO", record(longs), payload) == {"x": [("a", 3), ("b", None)]}
    assert fastavro.schemaless_reader(io.BytesIO(payload), fastavro.parse_schema(record(longs)), None) == {
        "x": {"a": 3, "b": None}
    }


EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "game", "type": "string"},
        {"name": "items", "type": {"type": "array", "items": {"type": "map", "values": ["null", "long", "string"]}}},
        {"name": "inner", "type": ["null", {"type": "record", "name": "In", "fields": [{"name": "at", "type": "double"}]}]},
    ],
}


def event(**values):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(EVENT))), values)
    return out.getvalue()


GOOD = event(game="rummy", items=[{"a": 1, "b": "x"}, {}, {"c": None}], inner={"at": 1.5})


def test_a_payload_cut_anywhere_leaves_its_neighbours_whole():
    cut = [GOOD[:end] for end in range(len(GOOD))]
    found = same_schema_rejections("AVRO", EVENT, GOOD, cut)
    assert set(found.values()) == {Reason.TRUNCATED}
    assert len(found) == len(cut)


@pytest.mark.parametrize("share", [100, 2])
def test_many_bad_rows_cost_little_more_than_good_ones(share):
    values = [framed(GOOD[:-1] if i % share == 1 else GOOD) for i in range(10_000)]
    plan = plan_of(registered("AVRO", EVENT))
    decoded, calls = counted(lambda: decode(plan, values))
    assert len(reasons_by_position(decoded)) == 10_000 // share
    assert len(rows_by_position(decoded)) == 10_000 - 10_000 // share
    # A row costs up to 93 of them, a bad one no more than a good one.
    assert calls < 200 * 10_000


NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "value", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}


def chain(length):
    return b"\x02\x02" * length + b"\x02\x00"


def test_a_type_that_contains_itself_is_json_text():
    row = decode_one("AVRO", NODE, chain(2))
    assert row["value"] == 1
    assert json.loads(row["next"]) == {"value": 1, "next": {"Node": {"value": 1, "next": None}}}


def test_nesting_up_to_the_limit_is_read_and_what_is_deeper_is_rejected():
    assert decode_one("AVRO", NODE, chain(MAX_LEVELS))["next"].count("Node") == MAX_LEVELS - 1
    assert rejection("AVRO", NODE, chain(MAX_LEVELS + 1))[0] is Reason.TOO_DEEP
    assert rejection("AVRO", NODE, chain(5_000_000))[0] is Reason.TOO_DEEP


def test_a_record_that_must_contain_itself_has_no_value_and_no_end():
    assert rejection("AVRO", record("R"), b"")[0] is Reason.TOO_DEEP


def test_recursion_with_wide_levels_does_not_end_the_process():
    # A level here is a record, a union, an array and a map: more calls than levels.
    type_ = ["null", {"type": "array", "items": {"type": "map", "values": ["null", "R"]}}]
    level = b"\x02\x02\x02\x02a\x02"
    program = (
        "import json, sys, threading\n"
        "from game_events_tests.support.decoding.format_helpers import rejection\n"
        f"def run(): print(rejection('AVRO', {record(type_)!r}, {level!r} * 1_000_000)[0])\n"
        "t = threading.Thread(target=run); t.start(); t.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "TOO_DEEP"), done.stderr


def test_a_record_of_ten_megabytes_is_read():
    type_ = {"type": "array", "items": {"type": "record", "name": "I", "fields": [{"name": "t", "type": "string"}]}}
    payload = zigzag(100_000) + (zigzag(100) + b"x" * 100) * 100_000 + b"\0"
    row = decode_one("AVRO", record(type_), payload)
    assert row == {"x": [{"t": "x" * 100}] * 100_000}


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("int", zigzag(491701234567)),
        ({"type": "long", "logicalType": "time-micros"}, zigzag(491701234567)),
        ("string", zigzag(491701234567)),
        ("string", zigzag(-491701234567)),
        ({"type": "array", "items": "string"}, zigzag(491701234567)),
        ({"type": "enum", "name": "e", "symbols": ["a"]}, zigzag(491701234567)),
        (["null", "string"], zigzag(491701234567)),
    ],
)
def test_what_is_said_of_a_damaged_record_holds_none_of_its_values(kind, payload):
    _, detail = rejection("AVRO", {"type": "record", "name": "r", "fields": [{"name": "phone", "type": kind}]}, payload)
    assert "1701234567" not in detail
    assert "phone" in detail
