"""What each protobuf type becomes, where Spark has no such type or the native decoder would get it wrong."""

import json
import logging
import subprocess
import sys

import pyarrow as pa
import pytest
from google.protobuf import json_format, message_factory, struct_pb2

from game_events.decoding.columns import ColumnMap
from game_events.decoding.protobuf.decoder import ProtobufDecoder
from game_events_tests.support.decoding.helpers import compiled, decode, frame, plan_for, python_class, rows_by_position
from game_events_tests.support.work import counted


def decoded(schema, *messages, path=(0,)):
    """Rows of one message type, all of them good."""
    batch = decode(plan_for((schema, path)), [frame(schema.schema_id, path, message) for message in messages])
    assert not batch.rejected
    return [row for _, row in sorted(rows_by_position(batch).items())]


def types(schema, path=(0,)):
    return {f.name: str(f.type) for f in ProtobufDecoder(schema, path).fields}


def test_dates_and_times_of_day_are_their_fields_as_partial_ones_are_no_date():
    text = """syntax = "proto3"; import "google/type/date.proto"; import "google/type/timeofday.proto";
    message E { google.type.Date d = 1; google.type.TimeOfDay t = 2; }"""
    schema = compiled(text, 501)
    new = python_class(schema)
    rows = decoded(schema, new(d={"year": 2024}, t={"hours": 25}), new(d={"year": 2024, "month": 13, "day": 99}), new())
    assert rows == [
        {"d": {"year": 2024, "month": 0, "day": 0}, "t": {"hours": 25, "minutes": 0, "seconds": 0, "nanos": 0}},
        {"d": {"year": 2024, "month": 13, "day": 99}, "t": None},
        {"d": None, "t": None},
    ]


JSON = """syntax = "proto3"; import "google/protobuf/struct.proto"; message E { google.protobuf.Struct s = 1;
  google.protobuf.Value v = 2; google.protobuf.ListValue l = 3; repeated google.protobuf.Value rv = 4;
  map<string, google.protobuf.Struct> m = 5; string other = 6; }"""


def known(schema, name):
    """A new message of one of Google's types, as this schema's own pool has it."""
    return message_factory.GetMessageClass(schema.pool.FindMessageTypeByName(f"google.protobuf.{name}"))()


def test_struct_value_and_list_value_are_json():
    schema = compiled(JSON, 502)
    new = python_class(schema)
    assert types(schema) == {
        "s": "string", "v": "string", "l": "string", "rv": "list<item: string>", "m": "map<string, string>", "other": "string",
    }  # fmt: skip
    value = {"a": 1, "b": 1.5, "c": None, "d": [True, 'é"\n', {}], "e": {"f": -3}}
    struct = json_format.ParseDict(value, known(schema, "Struct"))
    numbers = json_format.ParseDict([1, "x"], known(schema, "ListValue"))
    fields = {"s": struct, "v": {"number_value": 2**60}, "l": numbers, "rv": [{"bool_value": False}, {}], "m": {"k": struct}}
    first, second = decoded(schema, new(**fields), new())
    assert json.loads(first["s"]) == value
    assert json.loads(first["v"]) == 2**60
    assert (first["l"], first["rv"]) == ('[1,"x"]', ["false", "null"])
    assert [(k, json.loads(v)) for k, v in first["m"]] == [("k", value)]
    assert second == {"s": None, "v": None, "l": None, "rv": [], "m": [], "other": ""}


NAMES = [f"name {number * 7 % 20:02}" for number in range(20)]


def test_members_of_a_struct_are_in_the_order_of_their_names():
    """Protobuf's own order is another one in each process: a record that is decoded again would have another value."""
    schema = compiled(JSON, 502)
    struct = json_format.ParseDict(dict.fromkeys(NAMES, 1), known(schema, "Struct"))
    assert list(json.loads(decoded(schema, python_class(schema)(s=struct))[0]["s"])) == sorted(NAMES)


def test_entries_of_a_map_that_python_encodes_again_are_in_the_order_of_their_keys():
    schema = compiled(
        'syntax = "proto2"; message E { optional group G = 1 { optional int32 a = 1; } map<string, int32> m = 2; }', 503
    )
    message = python_class(schema)(g={"a": 1}, m=dict.fromkeys(NAMES, 1))
    assert [key for key, _ in decoded(schema, message)[0]["m"]] == sorted(NAMES)


@pytest.mark.parametrize(
    ("number", "text"), [("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"'), ("-0.0", "-0.0")]
)
def test_numbers_that_json_has_not_are_strings_in_it(number, text):
    schema = compiled(JSON, 502)
    assert decoded(schema, python_class(schema)(v={"number_value": float(number)}))[0]["v"] == text


def test_json_nested_past_protobufs_limit_is_rejected_as_in_python():
    value = struct_pb2.Value(number_value=1)
    for _ in range(49):
        value = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[value]))
    schema = compiled(JSON, 502)
    good = python_class(schema).FromString(b"\x12" + _delimited(value.SerializeToString()))
    assert json.loads(decoded(schema, good)[0]["v"]) is not None
    deeper = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[value])).SerializeToString()
    batch = decode(plan_for((schema, (0,))), [b"\0\0\0\x01\xf6\0\x12" + _delimited(deeper)])
    assert [r.reason for r in batch.rejected] == ["TOO_DEEP"]


def _delimited(content):
    assert len(content) < 2**14
    return bytes([len(content) & 0x7F | 0x80, len(content) >> 7]) + content


PROTO2 = """syntax = "proto2"; package p; message E {
  optional group G = 1 { optional int32 a = 1; repeated group H = 2 { optional string s = 1; } }
  repeated group L = 3 { optional int32 a = 1; } optional int32 d = 4 [default = 7]; required string r = 5;
  optional Color c = 6; repeated Color cs = 7; optional int32 far = 536870911; extensions 100 to 200; }
  enum Color { RED = 1; BLUE = 2; } enum Shade { DARK = 0; LIGHT = 1; }
  extend E { optional string x = 100; repeated int64 ys = 101; optional E e = 102; }
  message Flat { required string r = 5; optional Color c = 6; repeated Color cs = 7; map<string, Shade> cm = 8; }"""


def test_groups_extensions_and_the_greatest_field_number_are_columns():
    schema = compiled(PROTO2, 503)
    new = python_class(schema)
    message = new(g={"a": 1, "h": [{"s": "x"}, {}]}, l=[{"a": 2}, {}], r="r", far=9)
    message.Extensions[schema.pool.FindExtensionByName("p.x")] = "ext"
    message.Extensions[schema.pool.FindExtensionByName("p.ys")].extend([1, 2])
    (row,) = decoded(schema, message)
    assert row == {
        "g": {"a": 1, "h": [{"s": "x"}, {"s": None}]}, "l": [{"a": 2}, {"a": None}], "d": None, "r": "r", "c": None, "cs": [],
        "x": "ext", "ys": [1, 2], "e": None, "far": 9,
    }  # fmt: skip


def test_the_greatest_field_number_does_not_take_the_memory_of_all_numbers():
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from game_events_tests.support.decoding.helpers import *
fields = "string s = 1; int32 far = 536870911; In in = 2; message In { bool b = 300000000; }"
schema = compiled(f'syntax = "proto3"; message E {{ {fields} }}', 1)
message = python_class(schema)(s="a", far=5, **{"in": {"b": True}})
print(rows_by_position(decode(plan_for((schema, (0,))), [frame(1, (0,), message)])))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "{0: {'s': 'a', 'in': {'b': True}, 'far': 5}}\n", done.stderr


def test_the_slow_path_is_logged_once_for_each_type(caplog):
    schema = compiled(PROTO2, 503)
    with caplog.at_level(logging.WARNING):
        decoder = ProtobufDecoder(schema, (0,))
        columns = ColumnMap().with_message(decoder.message, decoder.fields)
        for _ in range(3):
            decoder.decode(pa.array([b"", b"\x20\x01"], pa.binary()), columns)
        ProtobufDecoder(schema, (1,))
    (record,) = caplog.records
    assert "slow_decoding=true" in record.getMessage()
    assert "p.E" in record.getMessage()


def test_a_version_that_comes_to_the_slow_path_keeps_its_columns():
    head = 'syntax = "proto2"; package k; import "google/protobuf/timestamp.proto"; message E {'
    body = "optional int32 a = 1; map<string, uint64> m = 2; optional google.protobuf.Timestamp at = 3; repeated bytes bs = 4;"
    plain, grouped = (
        compiled(head + body + "}", 504),
        compiled(head + body + "optional group G = 5 { optional bool b = 1; } }", 505),
    )
    fields = {"a": -1, "m": {"k": 2**64 - 1}, "at": {"seconds": 5}, "bs": [b"x"]}
    plan = plan_for((plain, (0,)), (grouped, (0,)))
    values = [frame(504, (0,), python_class(plain)(**fields)), frame(505, (0,), python_class(grouped)(g={"b": True}, **fields))]
    one, other = (row for _, row in sorted(rows_by_position(decode(plan, values)).items()))
    assert other == one | {"g": {"b": True}}
    assert list(plan.columns.columns) == ["a", "m", "at", "bs", "g"]


def test_extensions_keep_their_simple_names_unless_those_are_taken():
    schema = compiled(
        """syntax = "proto2"; package p; message E { optional int32 d = 4; extensions 100 to 200; }
        message In { extend E { optional string d = 103; } } extend E { optional string f = 104; }""",
        506,
    )
    message = python_class(schema)(d=1)
    message.Extensions[schema.pool.FindExtensionByName("p.In.d")] = "x"
    assert decoded(schema, message) == [{"d": 1, "p_In_d": "x", "f": None}]


def test_numbers_a_closed_enum_does_not_know_are_unknown_fields_and_an_open_one_keeps_their_digits():
    closed = compiled(PROTO2, 503)
    payload = (
        b"\x2a\x01r\x30\x02\x30\x09" + b"\x38\x01\x38\x09\x38\x02" + b"\x42\x05\x0a\x01k\x10\x09" + b"\x42\x05\x0a\x01j\x10\x01"
    )
    batch = decode(plan_for((closed, (1,))), [b"\0\0\0\x01\xf7\x02\x02" + payload])
    (row,) = rows_by_position(batch).values()
    assert (row["c"], row["cs"], row["cm"]) == ("BLUE", ["RED", "BLUE"], [("j", "LIGHT")])
    text = 'syntax = "proto3"; message E { Color c = 1; repeated Color cs = 2; } enum Color { NONE = 0; RED = 1; }'
    schema = compiled(text, 507)
    assert decoded(schema, python_class(schema)(c=9, cs=[1, -5])) == [{"c": "9", "cs": ["RED", "-5"]}]


def test_a_message_inside_itself_is_its_bytes_and_damage_in_them_is_found():
    schema = compiled(
        'syntax = "proto3"; message T { T left = 1; repeated T all = 2; map<int32, T> by = 3; string s = 4; }', 508
    )
    new = python_class(schema)
    leaf = new(s="x")
    (row,) = decoded(schema, new(left=leaf, all=[leaf, new()], by={1: leaf}))
    assert row == {"left": b"\x22\x01x", "all": [b"\x22\x01x", b""], "by": [(1, b"\x22\x01x")], "s": ""}
    batch = decode(plan_for((schema, (0,))), [b"\0\0\0\x01\xfc\0\x0a\x03\x22\x01\xff"])
    assert [(r.reason, r.detail) for r in batch.rejected] == [("BAD_UTF8", "T: field left.s: not UTF-8 at byte 4")]


def test_types_that_refer_to_one_another_without_end_are_cut_off_at_a_depth_and_a_number():
    messages = " ".join(f"message M{i} {{ M{i + 1} a = 1; M{i + 1} b = 2; int32 n = 3; }}" for i in range(60))
    schema = compiled(f'syntax = "proto3"; {messages} message M60 {{ int32 n = 1; }}', 509)
    (row,), calls = counted(lambda: decoded(schema, python_class(schema)(a={"a": {"n": 5}}, b={})))
    # 6.5 million; without the bounds it does not end.
    assert calls < 20_000_000
    assert row["a"]["a"]["n"] == 5


def test_names_do_not_matter_to_decoding():
    body = "string Level = 1; string level = 2; In class = 3; In Class = 4; int32 None = 5;"
    schema = compiled(f'syntax = "proto3"; message E {{ {body} message In {{ int32 A = 1; int32 a = 2; }} }}', 510)
    new = python_class(schema)
    inner = {"A": 1, "a": 2}
    (row,) = decoded(schema, new(**{"Level": "x", "level": "y", "class": inner, "Class": inner, "None": 5}))
    assert list(row.values()) == ["x", "y", {"A": 1, "a__bigint": 2}, {"A": 1, "a__bigint": 2}, 5]


def test_a_message_of_two_thousand_fields_takes_a_bounded_number_of_calls_a_field():
    kinds = ["string", "int32", "uint64", "double", "bool"]
    fields = " ".join(f"{kinds[i % 5]} f_{i} = {i + 1};" for i in range(2_000))
    schema = compiled(f'syntax = "proto3"; message E {{ {fields} }}', 511)

    def planned():
        decoder = ProtobufDecoder(schema, (0,))
        columns = ColumnMap().with_message(decoder.message, decoder.fields)
        return decoder, columns, ColumnMap.from_metadata((n, t, columns.metadata(n)) for n, t in columns.columns.items())

    (decoder, columns, stored), calls = counted(planned)
    # 110 a field; it was 40 times as much.
    assert calls < 400 * 2_000
    assert stored.names == columns.names
    message = python_class(schema)(f_0="a", f_1999=True)
    payloads = [message.SerializeToString()] * 500 + [b"\x0a"] * 500
    result, calls = counted(lambda: decoder.decode(pa.array(payloads, pa.binary()), columns))
    assert len(result.good) == 500
    # 110 a row; by halving alone it was a hundred times as much.
    assert calls < 400 * 1_000
