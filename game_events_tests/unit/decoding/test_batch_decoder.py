"""Rows to columns, each by its own writer's schema; a bad row costs only itself."""

import pickle
import random
import subprocess
import sys

import pyarrow as pa
import pytest
from google.protobuf.internal import encoder

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import MAX_UNKNOWN_PATHS, BatchDecoder, DecodePlan
from game_events.decoding.frame import Reason
from game_events.decoding.protobuf.decoder import GUARDED_BYTES, ProtobufDecoder
from game_events.errors import DataError
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

HEAD = 'syntax = "proto3"; package g; import "google/protobuf/timestamp.proto"; message Event {'
TEXTS = {
    11: HEAD + "string game = 1; int32 level = 2; }",
    12: HEAD + "string game_name = 1; int64 level = 2; optional string device = 3; }",
    13: HEAD + "string game_name = 1; string level = 2; optional string device = 3; google.protobuf.Timestamp at = 4; }",
}
VERSIONS = {i: compiled(text, i) for i, text in TEXTS.items()}
PLAN = plan_for(*((schema, (0,)) for schema in VERSIONS.values()))


def event(schema_id, **fields):
    return frame(schema_id, (0,), python_class(VERSIONS[schema_id])(**fields))


def test_interleaved_versions_are_each_decoded_by_their_own_schema():
    values = [
        event(11, game="a", level=1),
        event(13, game_name="b", level="two", device="", at={"seconds": 1, "nanos": 5_000}),
        event(12, game_name="c", level=3, device="d"),
        event(11, game="d", level=-4),
        event(13),
        event(12),
    ] * 20
    decoded = decode(PLAN, values)
    assert_each_row_once(decoded, range(len(values)))
    assert decoded.types == {(11, (0,)), (12, (0,)), (13, (0,))}
    assert len(decoded.good) == 3
    rows = rows_by_position(decoded)
    one_epoch = pa.scalar(1_000_005, pa.timestamp("us", tz="UTC")).as_py()
    expected = [
        {"game": "a", "level": 1},
        {"game": "b", "level__string": "two", "device": "", "at": one_epoch},
        {"game": "c", "level": 3, "device": "d"},
        {"game": "d", "level": -4},
        {"game": "", "level__string": "", "device": None, "at": None},
        {"game": "", "level": 0, "device": None},
    ]
    for position, row in rows.items():
        assert row == expected[position % 6]


def test_every_good_group_says_its_schema_id_and_its_rows():
    decoded = decode(PLAN, [event(12), event(11), event(12)])
    assert {i: rows.tolist() for rows, i, _, _ in decoded.good} == {11: [1], 12: [0, 2]}


def test_one_corrupt_row_among_a_hundred_thousand_costs_only_itself():
    good = event(12, game_name="rummy", level=5, device="phone")
    values = [good] * 100_000
    values[77_777] = good[:-2]
    decoded = decode(PLAN, values)
    assert reasons_by_position(decoded) == {77_777: Reason.TRUNCATED}
    ((rows, _, table, _),) = decoded.good
    assert len(rows) == table.num_rows == 99_999
    assert 77_777 not in rows
    assert table.column("game").unique().to_pylist() == ["rummy"]


def test_half_of_the_rows_bad_leaves_the_other_half():
    chance = random.Random(5)  # noqa: S311 - not for secrets
    values = [event(12, game_name=f"g{i}", level=i) + (b"\xff" if chance.random() < 0.5 else b"") for i in range(3_000)]
    decoded = decode(PLAN, values)
    bad = {i for i, value in enumerate(values) if value.endswith(b"\xff")}
    assert reasons_by_position(decoded) == dict.fromkeys(bad, Reason.TRUNCATED)
    assert {i: row["game"] for i, row in rows_by_position(decoded).items()} == {
        i: f"g{i}" for i in range(3_000) if i not in bad
    }
    assert_each_row_once(decoded, range(3_000))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x10\x80", Reason.TRUNCATED),  # varint without an end
        (b"\x10" + b"\xff" * 11, Reason.MALFORMED),  # varint of 77 bits
        (b"\x0a\x05ab", Reason.TRUNCATED),  # length past the end
        (b"\x0a\x02\xff\xfe", Reason.BAD_UTF8),
        (b"\x02\x00", Reason.MALFORMED),  # field number 0
        (b"\x0c", Reason.MALFORMED),  # group that was never opened
        (b"\x9b\x06", Reason.MALFORMED),  # group that is never closed
        (b"\x0f\x00", Reason.MALFORMED),  # wire type 7
        (b"\x22\x02\x08\x80", Reason.TRUNCATED),  # damage inside a nested message
    ],
)
def test_damaged_payloads_are_rejected_with_what_is_wrong_and_their_neighbours_good(payload, reason):
    prefix = event(13)[:6]
    decoded = decode(PLAN, [event(13), prefix + payload, event(12)])
    assert reasons_by_position(decoded) == {1: reason}
    assert set(rows_by_position(decoded)) == {0, 2}
    assert all("Event" in r.detail and r.schema_id == 13 for r in decoded.rejected)


@pytest.mark.parametrize(
    ("payload", "level"),
    [
        (b"\x0a\x01x\x12\x01y", 0),  # a wire type that the schema has not: an unknown field, as Python has it
        (b"\x0a\x01x\x9b\x06\x9c\x06", 0),  # an unknown group
        (b"\x0a\x01x\xf8\xff\xff\xff\x0f\x01", 0),  # the greatest field number
        (b"\x0a\x01y\x10\x01\x0a\x01x\x10\x02", 2),  # said twice: the last one counts
    ],
)
def test_unknown_fields_are_no_damage(payload, level):
    (row,) = rows_by_position(decode(PLAN, [event(12)[:6] + payload])).values()
    assert row == {"game": "x", "level": level, "device": None}


@pytest.mark.parametrize("seconds", [2**62, -(2**62), 253_402_300_800, -62_135_596_801])
@pytest.mark.parametrize("where", ["at", "inner", "list", "map"])
def test_a_time_outside_protobufs_range_is_rejected_not_changed(where, seconds):
    schema = compiled(
        HEAD + "google.protobuf.Timestamp at = 1; Event inner2 = 2; Inner inner = 3; repeated Inner list = 4;"
        "map<string, google.protobuf.Timestamp> map = 5; message Inner { google.protobuf.Timestamp at = 1; } }",
        31,
    )
    new = python_class(schema)

    def of(value):
        at = {"seconds": value}
        return {"at": new(at=at), "inner": new(inner={"at": at}), "list": new(list=[{}, {"at": at}]), "map": new(map={"k": at})}

    decoded = decode(plan_for((schema, (0,))), [frame(31, (0,), of(s)[where]) for s in (0, seconds, 253_402_300_799)])
    assert reasons_by_position(decoded) == {1: Reason.OUT_OF_RANGE}
    assert set(rows_by_position(decoded)) == {0, 2}
    assert "range" in decoded.rejected[0].detail


def test_a_duration_outside_protobufs_range_is_rejected():
    schema = compiled(
        'syntax = "proto3"; import "google/protobuf/duration.proto"; message E { google.protobuf.Duration d = 1; }', 32
    )
    new = python_class(schema)
    decoded = decode(plan_for((schema, (0,))), [frame(32, (0,), new(d={"seconds": s})) for s in (-7, 2**62, 315_576_000_000)])
    assert reasons_by_position(decoded) == {1: Reason.OUT_OF_RANGE}
    assert {i: row["d"] for i, row in rows_by_position(decoded).items()} == {0: -7_000_000, 2: 315_576_000_000_000_000}


DEEP = """
import pyarrow as pa
from game_events_tests.unit.decoding.test_batch_decoder import PLAN, event
from game_events.decoding.decoder import BatchDecoder
deep = event(12)[:6] + b"\\x9b\\x06" * 60_000 + b"\\x9c\\x06" * 60_000
many = event(12)[:6] + (b"\\x9b\\x06" * 90 + b"\\x9c\\x06" * 90) * 300
decoded = BatchDecoder(PLAN).decode(pa.array([event(12), deep, many, event(11)], pa.binary()))
print(len(deep), [(r.reason.value, r.rows.tolist()) for r in decoded.rejected])
print(sorted(i for g in decoded.good for i in g[0].tolist()))
"""


def test_nesting_that_would_kill_the_process_is_too_deep():
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "240006 [('TOO_DEEP', [1])]\n[0, 2, 3]\n"


def tree(depth):
    """A message that holds a message that holds ..., written inside out."""
    schema = compiled('syntax = "proto3"; message Tree { Tree child = 1; int32 n = 2; repeated string s = 3; }', 33)
    payload = b""
    for _ in range(depth):
        payload = b"\x0a" + encoder._VarintBytes(len(payload)) + payload
    return schema, b"\0\0\0\0\x21\0" + payload


@pytest.mark.parametrize(("damage", "reason"), [(b"\x12", Reason.TRUNCATED), (b"\x1a\x01\xff", Reason.BAD_UTF8)])
def test_known_messages_nested_past_protobufs_limit_are_too_deep_and_damage_in_shallow_ones_is_not(damage, reason):
    schema, shallow = tree(50)
    _, deep = tree(150)
    plan = plan_for((schema, (0,)), (VERSIONS[12], (0,)))
    decoded = decode(plan, [event(12), deep + damage, shallow + damage, shallow])
    assert reasons_by_position(decoded) == {1: Reason.TOO_DEEP, 2: reason}
    assert_each_row_once(decoded, range(4))


def test_short_unknown_groups_below_the_guard_are_harmless():
    payload = b"\x9b\x06" * 200 + b"\x9c\x06" * 200
    assert len(payload) < GUARDED_BYTES
    assert_each_row_once(decode(PLAN, [event(12), event(12)[:6] + payload]), range(2))


def test_a_record_of_ten_megabytes_is_an_ordinary_record():
    decoded = decode(PLAN, [event(12, game_name="x" * 10_000_000), event(12)])
    assert [len(row["game"]) for row in rows_by_position(decoded).values()] == [10_000_000, 0]


def test_a_hundred_thousand_repeated_elements_are_an_ordinary_record():
    schema = compiled('syntax = "proto3"; message R { repeated int32 n = 1; }', 34)
    values = [frame(34, (0,), python_class(schema)(n=range(100_000))), frame(34, (0,), python_class(schema)())]
    rows = rows_by_position(decode(plan_for((schema, (0,))), values))
    assert rows[0]["n"] == list(range(100_000))
    assert rows[1]["n"] == []


def test_a_type_the_plan_does_not_know_is_reported_and_never_guessed():
    values = [event(11, game="a"), event(12, game_name="b"), frame(11, (4,), python_class(VERSIONS[11])())]
    decoded = decode(plan_for((VERSIONS[11], (0,))), values)
    assert decoded.unknown == {(12, (0,))}
    assert set(rows_by_position(decoded)) == {0}
    assert reasons_by_position(decoded) == {2: Reason.BAD_INDEX}


def test_damaged_indexes_of_a_schema_nobody_has_looked_up_yet_are_reported_not_judged():
    values = [b"\0\0\0\0\x0c\x01payload", b"\0\0\0\0\x0c"]
    decoded = decode(plan_for((VERSIONS[11], (0,))), values)
    assert decoded.unknown == {(12, ())}
    assert not decoded.good
    assert not decoded.rejected


def test_made_up_types_of_an_unknown_schema_are_reported_within_a_limit():
    message = python_class(VERSIONS[11])()
    decoded = decode(plan_for((VERSIONS[11], (0,))), [frame(12, (index,), message) for index in range(1_000)])
    assert (12, ()) in decoded.unknown
    assert len(decoded.unknown) == MAX_UNKNOWN_PATHS + 1


def test_types_and_ids_that_the_plan_rejects_carry_its_reason_and_detail():
    plan = DecodePlan(
        PLAN.schemas,
        PLAN.types - {(12, (0,))},
        {
            (77, ()): (Reason.UNKNOWN_SCHEMA, "no 77"),
            (12, (0,)): (Reason.BAD_SCHEMA, "no 12"),
            (11, (9,)): (Reason.BAD_INDEX, "no 9"),
        },
        PLAN.columns,
    )
    message = python_class(VERSIONS[11])()
    values = [frame(77, (0,), message), frame(77, (3, 1), message), event(12), event(11), frame(11, (9,), message)]
    decoded = decode(plan, values)
    assert_each_row_once(decoded, range(5))
    told = {(r.schema_id, r.reason, r.detail, tuple(r.rows.tolist())) for r in decoded.rejected}
    assert told == {
        (77, Reason.UNKNOWN_SCHEMA, "no 77", (0, 1)),
        (12, Reason.BAD_SCHEMA, "no 12", (2,)),
        (11, Reason.BAD_INDEX, "no 9", (4,)),
    }


def test_rows_without_a_frame_say_what_the_reason_means():
    decoded = decode(PLAN, [None, b"", b"{}", event(11), b"\0\0\0\0\x0b\x01"])
    assert reasons_by_position(decoded) == {
        0: Reason.TOMBSTONE, 1: Reason.TOO_SHORT, 2: Reason.BAD_MAGIC, 4: Reason.BAD_INDEX,
    }  # fmt: skip
    assert all(r.detail == r.reason.explanation for r in decoded.rejected)


def test_every_reason_is_explained():
    assert all(reason.explanation for reason in Reason)


def test_a_slice_of_a_batch_decodes_as_the_slice():
    values = [event(11, game="before"), event(11, game="a"), event(11, game="b"), event(11, game="after")]
    decoded = BatchDecoder(PLAN).decode(pa.array(values, pa.binary()).slice(1, 2))
    assert {i: row["game"] for i, row in rows_by_position(decoded).items()} == {0: "a", 1: "b"}


def test_an_empty_batch_is_no_rows():
    decoded = decode(PLAN, [])
    assert (decoded.good, decoded.rejected, decoded.types, decoded.unknown) == ([], [], set(), set())


def test_one_decoder_serves_batch_after_batch():
    decoder = BatchDecoder(PLAN)
    for number in range(3):
        decoded = decoder.decode(pa.array([event(11, game=f"g{number}")], pa.binary()))
        assert rows_by_position(decoded)[0]["game"] == f"g{number}"


def test_a_plan_survives_the_way_to_a_worker_even_after_use():
    for schema in PLAN.schemas.values():
        assert schema.pool is not None
    there = pickle.loads(pickle.dumps(PLAN))  # noqa: S301 - our own bytes
    assert there == PLAN
    decoded = decode(there, [event(11, game="a"), event(13, level="x")])
    assert [row["game"] for row in rows_by_position(decoded).values()] == ["a", ""]


def test_messages_of_two_schemas_with_one_name_do_not_meet():
    texts = [
        'syntax = "proto3"; package g; message Event { string a = 1; }',
        'syntax = "proto3"; package g; message Event { int32 b = 1; }',
    ]
    one, two = compiled(texts[0], 41), compiled(texts[1], 42)
    values = [frame(41, (0,), python_class(one)(a="x")), frame(42, (0,), python_class(two)(b=7))]
    assert rows_by_position(decode(plan_for((one, (0,)), (two, (0,))), values)) == {0: {"a": "x"}, 1: {"b": 7}}


def test_a_nested_type_is_decoded_by_its_index_path():
    schema = compiled(
        'syntax = "proto3"; message A { string a = 1; } message B { message C { string c = 1; } string b = 1; }', 43
    )
    plan = plan_for((schema, (0,)), (schema, (1,)), (schema, (1, 0)))
    values = [
        frame(43, p, python_class(schema, p)(**f)) for p, f in (((1, 0), {"c": "x"}), ((0,), {"a": "y"}), ((1,), {"b": "z"}))
    ]
    assert rows_by_position(decode(plan, values)) == {0: {"c": "x"}, 1: {"a": "y"}, 2: {"b": "z"}}


@pytest.mark.parametrize("path", [(1,), (0, 0), (0, 5), (-1,)])
def test_a_path_to_no_message_is_an_error_that_names_it(path):
    with pytest.raises(DataError, match="schema id 11 has no message at index path"):
        ProtobufDecoder(VERSIONS[11], path)


def test_a_schema_in_an_edition_is_decoded():
    schema = compiled(
        'edition = "2023"; package e; message Event { string a = 1; int32 b = 2 [features.field_presence = IMPLICIT]; }', 44
    )
    values = [frame(44, (0,), python_class(schema)(a="x", b=1)), frame(44, (0,), python_class(schema)())]
    assert rows_by_position(decode(plan_for((schema, (0,))), values)) == {0: {"a": "x", "b": 1}, 1: {"a": None, "b": 0}}


EMPTY = """syntax = "proto3"; import "google/protobuf/empty.proto"; message Nothing {}
message Event { Nothing one = 1; repeated Nothing many = 2; map<int32, Nothing> by = 3; In in = 4;
  oneof o { google.protobuf.Empty e = 5; }
  message In { Nothing one = 1; string s = 2; } }"""


def test_messages_without_fields_keep_their_presence():
    schema = compiled(EMPTY, 45)
    new = python_class(schema, (1,))
    values = [
        frame(45, (1,), m)
        for m in (new(), new(one={}, many=[{}, {}], by={3: {}}, e={}, **{"in": {"one": {}}}), new(**{"in": {}}))
    ]
    assert rows_by_position(decode(plan_for((schema, (1,))), values)) == {
        0: {"one": None, "many": [], "by": [], "in": None, "e": None},
        1: {"one": True, "many": [True, True], "by": [(3, True)], "in": {"one": True, "s": ""}, "e": True},
        2: {"one": None, "many": [], "by": [], "in": {"one": None, "s": ""}, "e": None},
    }


def test_rows_of_a_message_without_fields_are_not_lost():
    schema = compiled(EMPTY, 45)
    decoded = decode(plan_for((schema, (0,))), [frame(45, (0,), python_class(schema, (0,))())] * 3)
    assert_each_row_once(decoded, range(3))
    assert decoded.good[0][2].column_names == []


def test_rows_of_a_message_without_fields_may_have_fields_of_later_versions():
    schema = compiled(EMPTY, 45)
    later = frame(45, (0,), python_class(schema, (0,)).FromString(b"\x08\x01"))
    decoded = decode(plan_for((schema, (0,))), [frame(45, (0,), python_class(schema, (0,))()), later])
    assert_each_row_once(decoded, range(2))
    assert not decoded.rejected


def test_the_columns_of_a_batch_have_the_types_of_the_map():
    decoded = decode(PLAN, [event(i) for i in VERSIONS])
    for _, _, table, _ in decoded.good:
        assert {f.name: f.type for f in table.schema} == {n: PLAN.columns.columns[n] for n in table.column_names}


def test_an_empty_map_knows_no_message():
    with pytest.raises(KeyError):
        ProtobufDecoder(VERSIONS[11], (0,)).decode(pa.array([b""], pa.binary()), ColumnMap())
