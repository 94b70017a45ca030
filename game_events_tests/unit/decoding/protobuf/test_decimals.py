"""Messages that are decimals: exact decimals if the setting asks for them, else structs of their fields."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

import pytest

from game_events.config.settings import load_settings
from game_events.decoding.columns import ValueRules
from game_events.decoding.frame import Reason
from game_events_tests.support.decoding.helpers import compiled, decode, frame, plan_for, python_class, rows_by_position

TYPES = (
    (
        "confluent/type/decimal.proto",
        "confluent.type",
        "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
    ),
    ("google/type/decimal.proto", "google.type", "message Decimal { string value = 1; }"),
    ("google/type/money.proto", "google.type", "message Money { string currency_code = 1; int64 units = 2; int32 nanos = 3; }"),
)
TEXT = (
    'syntax = "proto3"; package d;'
    + "".join(f'import "{name}";' for name, _, _ in TYPES)
    + "message E { string gamer_id = 1; confluent.type.Decimal price = 2; google.type.Decimal rate = 3;"
    "google.type.Money paid = 4; repeated google.type.Decimal many = 5; map<string, google.type.Money> by_shop = 6; }"
)
REFERENCES = tuple((name, f'syntax = "proto3"; package {package}; {text}') for name, package, text in TYPES)
STRUCTS = compiled(TEXT, 5, REFERENCES)
DECIMALS = replace(STRUCTS, decimals=True)


def read(messages, schema=DECIMALS, **chosen):
    plan = replace(plan_for((schema, (0,))), values=ValueRules.of(load_settings(**chosen)))
    decoded = decode(plan, [frame(5, (0,), python_class(STRUCTS)(**fields)) for fields in messages])
    rows = rows_by_position(decoded)
    return [rows.get(at) for at in range(len(messages))], decoded


def price(unscaled, scale, precision=38):
    return {"value": unscaled.to_bytes(20, "big", signed=True), "precision": precision, "scale": scale}


def test_by_default_they_are_the_structs_that_they_are():
    (row,), _ = read([{"price": price(125, 2), "rate": {"value": "1.25"}}], STRUCTS)
    assert row["price"]["scale"] == 2
    assert row["rate"] == {"value": "1.25"}


@pytest.mark.parametrize(
    ("unscaled", "scale", "exact"),
    [
        (125, 2, "1.25"),
        (-125, 2, "-1.25"),
        (0, 0, "0"),
        (7, -3, "7000"),
        (1, 18, "0.000000000000000001"),
        (10**20 - 1, 0, str(10**20 - 1)),
        (5 * 10**30, 40, "0.0000000005"),
    ],
)
def test_confluents_decimals_are_exact_whatever_their_scale(unscaled, scale, exact):
    (row,), decoded = read([{"price": price(unscaled, scale)}])
    assert (row["price"], decoded.rejected) == (Decimal(exact), [])


@pytest.mark.parametrize(
    "text", ["1.25", "-0.5", "+7", ".5", "5.", "1e3", "2.5E-3", "00012", "99999999999999999999.999999999999999999"]
)
def test_googles_decimals_are_exact(text):
    (row,), _ = read([{"rate": {"value": text}}])
    assert row["rate"] == Decimal(text)


def test_fields_that_are_not_set_count_as_zero_also_where_they_have_presence():
    optional = [(name, package, re.sub(r"(?<=[{;] )(?=\w)", "optional ", text)) for name, package, text in TYPES]
    references = tuple((name, f'syntax = "proto3"; package {package}; {text}') for name, package, text in optional)
    schema = replace(compiled(TEXT, 5, references), decimals=True)
    messages = [{"price": {"value": b"\x05"}}, {"paid": {"units": 3}}, {"paid": {"currency_code": "EUR"}}, {"price": {}}]
    rows, _ = read(messages, schema)
    assert [row["price"] for row in rows] == [5, None, None, 0]
    assert [row["paid"] and row["paid"]["amount"] for row in rows] == [None, 3, 0, None]


def test_money_keeps_its_currency_and_has_an_amount():
    paid = {"currency_code": "EUR", "units": -(2**63), "nanos": -999_999_999}
    (row, other), _ = read([{"paid": paid, "by_shop": {"a": {"currency_code": "USD", "units": 1, "nanos": 750_000_000}}}, {}])
    assert row["paid"] == {"currency_code": "EUR", "amount": Decimal("-9223372036854775808.999999999")}
    assert dict(row["by_shop"]) == {"a": {"currency_code": "USD", "amount": Decimal("1.750000000")}}
    assert (other["paid"], other["price"], other["rate"], other["many"]) == (None, None, None, [])


BAD = {
    "more digits than a decimal has": {"price": price(10**20, 0)},
    "more digits behind the point": {"price": price(1, 19)},
    "a scale of two thousand million": {"price": price(1, 2**31 - 1)},
    "a negative scale of that size": {"price": price(1, -(2**31))},
    "a value of a thousand bytes": {"price": {"value": b"\x01" * 1_000, "scale": 2}},
    "no number": {"rate": {"value": "abc"}},
    "nothing": {"rate": {"value": ""}},
    "NaN": {"rate": {"value": "NaN"}},
    "digits of another script": {"rate": {"value": "\u0661"}},
    "an exponent of millions": {"rate": {"value": "1e99999"}},
    "a million digits": {"rate": {"value": "1" * 1_000_000}},
    "one of many": {"many": [{"value": "1"}, {"value": "x"}]},
    "two signs": {"paid": {"units": 1, "nanos": -1}},
    "too many nanos": {"paid": {"units": 1, "nanos": 10**9}},
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_exact_costs_its_record_or_is_null_as_the_setting_says(name):
    (bad, good), decoded = read([{"gamer_id": "a"} | BAD[name], {"gamer_id": "b", "rate": {"value": "1"}}])
    assert (bad, good["rate"]) == (None, 1)
    assert [item.reason for item in decoded.rejected] == [Reason.OUT_OF_RANGE]
    (column,) = BAD[name]
    (row, good), decoded = read([{"gamer_id": "a"} | BAD[name], {"gamer_id": "b"}], on_bad_value="null")
    assert (row["gamer_id"], good["gamer_id"], decoded.rejected, decoded.nulled) == ("a", "b", [], {column: 1})
    value = row[column]
    assert value in (None, [Decimal(1), None]) or value["amount"] is None


def test_a_message_of_that_name_with_other_fields_stays_a_struct():
    other = compiled(
        'syntax = "proto3"; package google.type; message E { Decimal rate = 1; }'
        "message Decimal { string value = 1; int32 more = 2; }",
        6,
    )
    plan = plan_for((replace(other, decimals=True), (0,)))
    assert str(plan.columns.columns["rate"]).startswith("struct")
