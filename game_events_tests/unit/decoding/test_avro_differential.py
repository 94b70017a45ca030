"""Our Avro columns against the Apache `avro` package, on generated schemas and values that fastavro or `avro` wrote."""

import copy
import io
import json
from datetime import date
from decimal import Decimal

import avro.io
import avro.schema
import fastavro
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from game_events.decoding.decoder import BatchDecoder
from game_events_tests.support.decoding.avro_reading import Reader, Writer, comparable, expected, plain
from game_events_tests.support.decoding.avro_worlds import (
    EPOCH,
    LOGICAL,
    PRIMITIVES,
    Branch,
    cases,
    values,
    without_logical,
)
from game_events_tests.support.decoding.format_helpers import framed, plan_of, registered
from game_events_tests.support.decoding.helpers import assert_each_row_once, reasons_by_position, rows_by_position
from game_events_tests.unit.decoding.protobuf.test_native import normal, spoil


def written(schema, value, by_apache):
    out = io.BytesIO()
    if by_apache:
        parsed = avro.schema.parse(json.dumps(schema))
        Writer(parsed).write_data(parsed, value, avro.io.BinaryEncoder(out))
    else:
        fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(schema)), plain(value))
    return out.getvalue()


def written_as_drawn(schema, value, by_apache):
    """In the branches of the value: fastavro goes by bare types, and a number for a `long` may be no `date`, an `int`, too."""
    payload = written(schema, value, by_apache)
    return payload if branches(apache_reads(schema, payload)) == branches(value) else written(schema, value, by_apache=True)


#: fastavro writes the number before year 1 as the date.
A_DATE_OR_A_NUMBER = {
    "type": "record",
    "name": "R",
    "namespace": "g.n",
    "fields": [{"name": "f", "type": [{"type": "int", "logicalType": "date"}, "long"]}],
}


def branches(value):
    """The branch of each union in a value."""
    if isinstance(value, tuple):
        return value[0], branches(value[1])
    if isinstance(value, dict):
        return {k: branches(v) for k, v in value.items()}
    return [branches(v) for v in value] if isinstance(value, list) else None


def apache_reads(schema, payload):
    parsed = avro.schema.parse(json.dumps(schema))
    return Reader(parsed, parsed).read_data(parsed, parsed, avro.io.BinaryDecoder(io.BytesIO(payload)))


@example((A_DATE_OR_A_NUMBER, {"g.n.R": A_DATE_OR_A_NUMBER}, [{"f": Branch((1, -719_163))}]), False)
@settings(max_examples=150)
@given(cases(), st.booleans())
def test_columns_are_what_apache_avro_reads_whoever_wrote(case, by_apache):
    schema, named, data = case
    bare = without_logical(schema)
    payloads = [written_as_drawn(bare, value, by_apache) for value in data]
    plan = plan_of(registered("AVRO", schema))
    decoded = BatchDecoder(plan).decode(pa.array([framed(p) for p in payloads], pa.binary()))
    assert not decoded.rejected
    rows = rows_by_position(decoded)
    for position, payload in enumerate(payloads):
        read = apache_reads(bare, payload)
        assert normal(comparable(schema, rows[position], named)) == normal(expected(schema, read, named))


SIMPLE = [
    *PRIMITIVES,
    *({"type": kind, "logicalType": name} for name, kind in LOGICAL.items()),
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 38},
    {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 2},
    {"type": "fixed", "name": "U", "namespace": "g.n", "size": 16, "logicalType": "uuid"},
    {"type": "fixed", "name": "D", "namespace": "g.n", "size": 12, "logicalType": "duration"},
]


@settings(max_examples=20)
@pytest.mark.parametrize("type_", SIMPLE, ids=lambda t: t if isinstance(t, str) else t["logicalType"])
@given(st.data())
def test_each_simple_type_holds_what_apache_avro_reads(type_, data):
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": type_}, {"name": "z", "type": ["null", "int"]}]}
    value = {"a": data.draw(values(type_, {})), "z": Branch((1, 7))}
    bare = without_logical(schema)
    payload = written(bare, value, by_apache=True)
    read = apache_reads(bare, payload)
    decoded = BatchDecoder(plan_of(registered("AVRO", schema))).decode(pa.array([framed(payload)], pa.binary()))
    assert normal(rows_by_position(decoded)[0]) == normal(expected(schema, read, {}))


edits = st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(0, 255)), min_size=1, max_size=3)


@settings(max_examples=150)
@given(cases(), edits)
def test_spoilt_payloads_are_rejected_or_read_as_apache_avro_does_and_cost_only_themselves(case, changes):
    schema, named, data = case
    bare = without_logical(schema)
    good = written(bare, data[0], by_apache=True)
    spoilt = [spoil(written(bare, value, by_apache=True), changes) for value in data]
    decoded = BatchDecoder(plan_of(registered("AVRO", schema))).decode(
        pa.array([framed(p) for payload in spoilt for p in (good, payload)], pa.binary())
    )
    rows, rejected = rows_by_position(decoded), reasons_by_position(decoded)
    assert_each_row_once(decoded, range(2 * len(spoilt)))
    for position, payload in enumerate(spoilt):
        assert 2 * position not in rejected
        if 2 * position + 1 in rows:
            read = apache_reads(bare, payload)
            assert normal(comparable(schema, rows[2 * position + 1], named)) == normal(expected(schema, read, named))


@pytest.mark.parametrize(
    ("type_", "value", "column"),
    [
        ({"type": "int", "logicalType": "date"}, date(1969, 7, 20), date(1969, 7, 20)),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            EPOCH.replace(microsecond=7_000),
            EPOCH.replace(microsecond=7_000),
        ),
        ({"type": "long", "logicalType": "timestamp-micros"}, EPOCH.replace(year=1), EPOCH.replace(year=1)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}, Decimal("-1.250"), Decimal("-1.250")),
        (
            {"type": "fixed", "name": "D", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 2},
            Decimal("-999999999999999999999999999999999999.99"),
            Decimal("-999999999999999999999999999999999999.99"),
        ),
    ],
)
def test_logical_types_hold_what_fastavro_was_given(type_, value, column):
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", type_]}]}
    payload = written(schema, {"x": value}, by_apache=False)
    decoded = BatchDecoder(plan_of(registered("AVRO", schema))).decode(pa.array([framed(payload)], pa.binary()))
    assert rows_by_position(decoded) == {0: {"x": column}}
