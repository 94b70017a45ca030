"""The columns that the settings name hold what they are for, whichever record came first."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import pyarrow as pa
import pytest

from game_events.decoding.columns import UINT64, ColumnMap, Field, base_of, kept_columns
from game_events.lakehouse.tables import is_person
from game_events.plugins.catalog.schema_history import compare
from game_events_tests.support.decoding.helpers import compiled, decode, frame, plan_for, python_class, rows_by_position

TEXT, INT, REAL, TIME = pa.string(), pa.int64(), pa.float64(), pa.timestamp("us", tz="UTC")


def begun(key="gamer_id", time="event_timestamp"):
    """A map of no messages, as these settings have it."""
    settings = SimpleNamespace(entity_column="game_name", key_column=key, time_column=time)
    return ColumnMap(kept=kept_columns(settings))


def mapped(columns, *messages):
    for name, fields in messages:
        columns = columns.with_message(name, [Field(*field) for field in fields])
    return columns


def of(columns, message):
    """Field's name in the key -> its column."""
    return {key.partition("#")[2]: name for key, name in columns.names.items() if key.startswith(f"{message}#")}


STRAY = (
    "stray",
    [("game_name", "game_name", TEXT), ("gamer_id", "gamer_id", INT), ("event_timestamp", "event_timestamp", INT)],
)
FLOATS = ("floats", [("event_timestamp", "event_timestamp", REAL), ("gamer_id", "gamer_id", REAL), ("n", "n", TEXT)])
GOOD = ("good", [(1, "game_name", TEXT), (2, "gamer_id", TEXT), (3, "event_timestamp", TIME), (4, "n", INT)])


@pytest.mark.parametrize(
    "order", list(permutations([STRAY, FLOATS, GOOD])), ids=lambda order: ",".join(name for name, _ in order)
)
def test_whoever_comes_first_the_key_is_a_text_and_the_time_a_timestamp(order):
    columns = mapped(begun(), *order)
    kinds = {"game_name": TEXT, "gamer_id": TEXT, "event_timestamp": TIME}
    assert {name: columns.columns[name] for name in kinds} == kinds
    assert of(columns, "good") | {"4:bigint": "n"} == {
        "1:string": "game_name",
        "2:string": "gamer_id",
        "3:timestamp": "event_timestamp",
        "4:bigint": "n",
    }
    # 7 is "7", as an erasure has it, too; what is no time and no key has a column of its own.
    assert of(columns, "stray")["gamer_id:bigint"] == "gamer_id"
    assert of(columns, "stray")["event_timestamp:bigint"] == "event_timestamp__bigint"
    assert of(columns, "floats")["gamer_id:double"] == "gamer_id__double"
    assert of(columns, "floats")["event_timestamp:double"] == "event_timestamp__double"


def test_all_other_columns_are_of_the_kind_that_came_first():
    columns = mapped(begun(), FLOATS, GOOD)
    assert (of(columns, "floats")["n:string"], of(columns, "good")["4:bigint"]) == ("n", "n__bigint")


@pytest.mark.parametrize("kind", [INT, UINT64])
def test_a_domain_whose_keys_are_numbers_has_them_as_texts(kind):
    columns = mapped(begun(key="device"), ("m", [(1, "device", kind)]))
    assert columns.columns == {"device": TEXT}
    again = replace(ColumnMap.from_metadata([("device", TEXT, columns.metadata("device"))]), kept=columns.kept)
    assert mapped(again, ("m", [(1, "device", kind)]), ("o", [(5, "device", TEXT)])).columns == {"device": TEXT}


def test_numbers_are_decoded_to_their_digits():
    body = "message M { oneof key { int32 device = 1; } uint64 far = 2; }"
    schema = compiled(f'syntax = "proto3"; package k; {body}', 901)
    cls = python_class(schema)
    far = compiled(f'syntax = "proto3"; package k2; {body.replace("device", "d").replace("far", "device")}', 902)
    plan = plan_for((schema, (0,)), (far, (0,)), columns=begun(key="device"))
    values = [
        frame(901, (0,), cls(device=-(2**31))),
        frame(901, (0,), cls()),
        frame(902, (0,), python_class(far)(device=2**64 - 1)),
    ]
    found = rows_by_position(decode(plan, values))
    assert [found[n]["device"] for n in range(3)] == ["-2147483648", None, "18446744073709551615"]


def test_a_key_whose_type_or_number_changes_stays_in_its_column():
    old, new = [Field(1, "gamer_id", INT)], [Field(1, "gamer_id", TEXT), Field(2, "level", INT)]
    changes = compare({"m": old}, {"m": new}, begun())
    assert [(c.kind, c.effect) for c in changes] == [
        ("type changed", "the same column gamer_id"),
        ("added", "column level; NULL in rows of older versions"),
    ]
    moved = mapped(begun(), ("m", [(1, "gamer_id", TEXT)]), ("m", [(9, "gamer_id", TEXT)]))
    assert of(moved, "m") == {"1:string": "gamer_id", "9:string": "gamer_id"}


def test_no_two_fields_of_one_version_share_the_key():
    columns = mapped(begun(), ("m", [(1, "gamer_id", TEXT), (2, "GAMER_ID", TEXT), (3, "Gamer_Id", INT)]))
    assert of(columns, "m") == {"1:string": "gamer_id", "2:string": "GAMER_ID__string", "3:bigint": "Gamer_Id__bigint"}
    renamed = mapped(begun(), ("m", [(1, "gamer_id", TEXT)]), ("m", [(1, "player", TEXT), (2, "gamer_id", TEXT)]))
    assert of(renamed, "m") == {"1:string": "gamer_id", "2:string": "gamer_id__string"}


def test_a_table_that_was_begun_with_another_kind_goes_on_with_it():
    before = ColumnMap(kept={}).with_message("old", [Field(1, "gamer_id", INT), Field(2, "event_timestamp", INT)])
    old = replace(before, kept=begun().kept)
    columns = mapped(old, ("new", [(1, "gamer_id", INT), (2, "event_timestamp", INT)]), GOOD)
    assert of(columns, "new") == {"1:bigint": "gamer_id", "2:bigint": "event_timestamp"}
    assert (of(columns, "good")["2:string"], of(columns, "good")["3:timestamp"]) == (
        "gamer_id__string",
        "event_timestamp__timestamp",
    )


def test_a_setting_that_ends_in_a_kind_asks_for_fields_of_that_kind():
    columns = mapped(begun(key="gamer_id__bigint", time="event_timestamp__bigint"), STRAY, GOOD)
    assert of(columns, "stray")["gamer_id:bigint"] == "gamer_id__bigint"
    assert of(columns, "stray")["event_timestamp:bigint"] == "event_timestamp__bigint"
    assert (of(columns, "good")["2:string"], of(columns, "good")["3:timestamp"]) == ("gamer_id", "event_timestamp")


def test_whose_a_row_is_stands_in_the_columns_of_all_kinds_whichever_of_them_the_setting_names():
    assert [base_of(c) for c in ("gamer_id", "gamer_id__string", "a__b", "__string")] == [
        "gamer_id",
        "gamer_id",
        "a__b",
        "__string",
    ]
    for person in ("gamer_id", "gamer_id__string"):
        assert all(is_person(column, person) for column in ("gamer_id", "gamer_id__string", "gamer_id__bigint_4"))
        assert not any(is_person(column, person) for column in ("gamer", "gamer_idx", "other__string"))
