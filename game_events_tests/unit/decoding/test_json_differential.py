"""Our JSON columns against Python's own `json`, on generated schemas and documents."""

import json
import string
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import jsonschema
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.decoding.decoder import BatchDecoder
from game_events_tests.support.decoding.format_helpers import framed, plan_of, registered
from game_events_tests.support.decoding.helpers import assert_each_row_once, rows_by_position
from game_events_tests.unit.decoding.protobuf.test_native import spoil

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@dataclass
class Case:
    """A schema, documents of it, and what the column holds of a document that `json` has read."""

    schema: Any
    values: st.SearchStrategy
    column: Any
    is_text: bool = False


def same(value):
    return value


def as_json(value):
    """Marks what must be JSON text that means the same."""
    return ("json", json.dumps(value))


def instants():
    zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
    return st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC) | zones).map(written)


def written(at):
    return at.isoformat().replace("+00:00", "Z")


SCALARS = [
    Case({"type": "string"}, TEXT, same),
    Case({"type": "integer"}, INTEGERS, same),
    Case({"type": "integer", "minimum": 5}, INTEGERS, same),
    Case({"type": "number"}, FLOATS | st.integers(-(2**80), 2**80), float),
    Case({"type": "boolean"}, st.booleans(), same),
    Case({"type": "string", "format": "date-time"}, instants(), lambda v: datetime.fromisoformat(v).astimezone(UTC)),
    Case({"type": "string", "format": "date"}, st.dates().map(str), date.fromisoformat),
    Case({"type": "string", "format": "uuid"}, st.uuids().map(str), same),
    Case({"enum": ["a", "b", None]}, st.sampled_from(["a", "b"]), same),
    Case({"const": 5}, st.just(5), same),
    Case({"$ref": "#/$defs/name"}, TEXT, same),
    Case({"allOf": [{"$ref": "#/$defs/name"}, {"minLength": 0}]}, TEXT, same),
    Case({"anyOf": [{"type": "integer"}, {"type": "number"}]}, FLOATS, as_json, is_text=True),
    Case({}, ANYTHING, as_json, is_text=True),
    Case(True, ANYTHING, as_json, is_text=True),
    Case({"type": ["string", "integer"]}, TEXT | st.integers(), as_json, is_text=True),
    Case({"type": "object"}, st.dictionaries(TEXT, ANYTHING, max_size=2), as_json, is_text=True),
    Case({"type": "array"}, st.lists(ANYTHING, max_size=2), as_json, is_text=True),
    Case({"$ref": "#"}, st.dictionaries(TEXT, ANYTHING, max_size=2), as_json, is_text=True),
]
DEFINITIONS = {"name": {"type": "string"}}


@st.composite
def types(draw, depth=2):
    kinds = ["scalar"] * 4 + (["list", "map", "object", "nullable"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "scalar":
        return draw(st.sampled_from(SCALARS))
    if kind == "object":
        return draw(objects(depth - 1))
    inner = draw(types(depth - 1))
    if kind == "nullable":
        schema = draw(
            st.sampled_from([{"anyOf": [{"type": "null"}, inner.schema]}, {"oneOf": [inner.schema, {"const": None}]}])
        )
        return Case(schema, st.none() | inner.values, null_or(inner.column), inner.is_text)
    if kind == "list":
        column = same if inner.schema is True else lambda vs: [null_or(inner.column)(v) for v in vs]
        schema = {"type": "array", "items": inner.schema}
        values = st.lists(st.none() | inner.values, max_size=3)
        # `items: true` says nothing.
        return Case(schema, values, as_json if inner.schema is True else column, inner.is_text)
    # `additionalProperties: true`, or with an empty schema, says nothing either.
    says = inner.schema not in (True, {})
    column = (lambda vs: [(k, null_or(inner.column)(v)) for k, v in vs.items()]) if says else as_json
    schema = {"type": ["object", "null"], "additionalProperties": inner.schema}
    return Case(schema, st.dictionaries(TEXT, inner.values, max_size=3), column, not says or inner.is_text)


def null_or(column):
    return lambda value: None if value is None else column(value)


@st.composite
def objects(draw, depth=2):
    # One letter in one case: what becomes of names that clash is tested by itself.
    names = draw(st.lists(st.sampled_from(string.ascii_lowercase), min_size=1, max_size=4, unique=True))
    members = {name: draw(types(depth)) for name in names}
    values = st.fixed_dictionaries(
        {"Extra": ANYTHING}, optional={name: st.none() | member.values for name, member in members.items()}
    )
    return Case(
        {"type": "object", "properties": {name: member.schema for name, member in members.items()}},
        values,
        lambda v: {name: null_or(member.column)(v.get(name)) for name, member in members.items()},
    )


def comparable(value, wanted):
    """Our value, JSON text read again where JSON text is wanted."""
    if isinstance(wanted, tuple) and wanted[0] == "json":
        return as_json(json.loads(value))
    if isinstance(wanted, dict) and isinstance(value, dict):
        return {name: comparable(value[name], wanted[name]) for name in wanted} | {
            k: v for k, v in value.items() if k not in wanted
        }
    if isinstance(wanted, list) and isinstance(value, list) and len(value) == len(wanted):
        pairs = zip(value, wanted, strict=True)
        return [(v[0], comparable(v[1], w[1])) if is_entry(w) else comparable(v, w) for v, w in pairs]
    return value


def is_entry(wanted):
    return isinstance(wanted, tuple) and wanted[0] != "json"


@st.composite
def batches(draw):
    case = draw(objects())
    return case, draw(st.lists(case.values, min_size=1, max_size=6))


styles = st.sampled_from([{}, {"ensure_ascii": False}, {"indent": 1}, {"separators": (",", ":")}])


@settings(max_examples=200)
@given(batches(), styles)
def test_columns_are_what_pythons_json_reads(batch, style):
    case, documents = batch
    schema = case.schema | {"$defs": DEFINITIONS}
    payloads = [json.dumps(document, **style).encode() for document in documents]
    decoded = BatchDecoder(plan_of(registered("JSON", schema))).decode(pa.array([framed(p) for p in payloads], pa.binary()))
    assert not decoded.rejected
    rows = rows_by_position(decoded)
    for position, payload in enumerate(payloads):
        wanted = case.column(json.loads(payload))
        assert comparable(rows[position], wanted) == wanted


def refuse(name):
    raise AssertionError(f"{name} is no JSON")


@settings(max_examples=200)
@given(batches(), st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(0, 255)), min_size=1, max_size=3))
def test_spoilt_documents_are_rejected_or_read_as_pythons_json_does_and_cost_only_themselves(batch, changes):
    case, documents = batch
    schema = case.schema | {"$defs": DEFINITIONS}
    payloads = []
    for document in documents:
        good = json.dumps(document).encode()
        payloads += [good, spoil(good, changes)]
    decoded = BatchDecoder(plan_of(registered("JSON", schema))).decode(pa.array([framed(p) for p in payloads], pa.binary()))
    assert_each_row_once(decoded, range(len(payloads)))
    rows = rows_by_position(decoded)
    assert set(range(0, len(payloads), 2)) <= set(rows)
    for position, row in rows.items():
        document = json.loads(payloads[position].decode(), parse_constant=refuse)
        wanted = case.column(document)
        assert comparable(row, wanted) == wanted


@settings(max_examples=100)
@given(st.sampled_from([c for c in SCALARS if not c.is_text and c.schema != {"$ref": "#"}]), ANYTHING)
def test_values_that_the_schema_refuses_for_their_type_are_rejected_and_others_read(case, value):
    """jsonschema, the second implementation, says which values have the type."""
    plain = {"type": case.schema["type"]} if isinstance(case.schema, dict) and "type" in case.schema else None
    if plain is None or "format" in case.schema:
        return
    document = {"$defs": DEFINITIONS, "properties": {"x": case.schema}}
    valid = jsonschema.Draft202012Validator(plain).is_valid(value)
    too_big = plain["type"] == "integer" and valid and not -(2**63) <= value < 2**63
    decoded = BatchDecoder(plan_of(registered("JSON", document))).decode(
        pa.array([framed(json.dumps({"x": value}).encode())], pa.binary())
    )
    # NULL is no type that a column could have instead.
    assert bool(decoded.rejected) == (value is not None and (not valid or too_big))
