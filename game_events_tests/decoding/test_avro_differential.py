"""Our Avro columns against the Apache `avro` package, on generated schemas and values that fastavro or `avro` wrote."""

import copy
import io
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import avro.io
import avro.schema
import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.decoding.decoder import BatchDecoder
from game_events.decoding.protobuf_times import TIMESTAMP_RANGE
from game_events_tests.decoding.format_helpers import framed, plan_of, registered
from game_events_tests.decoding.helpers import assert_each_row_once, reasons_by_position, rows_by_position
from game_events_tests.decoding.test_differential import normal, spoil

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
    "uuid": "string",
}
PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}


class Branch(tuple):
    """A union's value with the index of its branch."""


class Reader(avro.io.DatumReader):
    """Apache's reader, which says which branch it took."""

    def read_union(self, writers_schema, _, decoder):
        index = int(decoder.read_long())
        chosen = writers_schema.schemas[index]
        return Branch((index, self.read_data(chosen, chosen, decoder)))


class Writer(avro.io.DatumWriter):
    """Apache's writer, which is told which branch to take."""

    def write_union(self, writers_schema, datum, encoder):
        encoder.write_long(datum[0])
        self.write_data(writers_schema.schemas[datum[0]], datum[1], encoder)


class Schemas:
    """Draws schemas; every named type gets a name of its own."""

    def __init__(self, draw):
        self.draw, self.named = draw, {}

    def name(self, letter):
        return f"{letter}{len(self.named)}"

    def any(self, depth, above=(), in_union=False):
        kinds = ["primitive"] * 4 + ["logical", "decimal", "fixed", "enum"]
        kinds += ["array", "map", "record"] if depth else []
        kinds += ["union", "union"] if depth and not in_union else []
        kinds += ["recursive"] if above and in_union else []
        return getattr(self, self.draw(st.sampled_from(kinds)))(depth, above)

    def primitive(self, *_):
        return self.draw(st.sampled_from(PRIMITIVES))

    def logical(self, *_):
        name = self.draw(st.sampled_from([*LOGICAL, "duration", "uuid16", "unheard-of"]))
        if name in ("duration", "uuid16"):
            made = {"type": "fixed", "name": self.name("F"), "size": 12 if name == "duration" else 16}
            self.named[made["name"]] = made
            return made | {"logicalType": name[:8].removesuffix("16")}
        return {"type": LOGICAL.get(name, "long"), "logicalType": name}

    def decimal(self, *_):
        precision = self.draw(st.integers(1, 45))
        scale = self.draw(st.integers(0, precision))
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}

    def fixed(self, *_):
        made = {"type": "fixed", "name": self.name("F"), "size": self.draw(st.integers(0, 5))}
        self.named[made["name"]] = made
        return made

    def enum(self, *_):
        made = {"type": "enum", "name": self.name("E"), "symbols": ["A", "B", "C"][: self.draw(st.integers(1, 3))]}
        self.named[made["name"]] = made
        return made

    def array(self, depth, above):
        return {"type": "array", "items": self.any(depth - 1, above)}

    def map(self, depth, above):
        return {"type": "map", "values": self.any(depth - 1, above)}

    def record(self, depth, above, least=0):
        made = {"type": "record", "name": self.name("R"), "namespace": "g.n", "fields": []}
        self.named["g.n." + made["name"]] = made
        inside = (*above, "g.n." + made["name"])
        for number in range(self.draw(st.integers(least, 4))):
            made["fields"].append({"name": f"f{number}", "type": self.any(depth - 1, inside)})
        return made

    def recursive(self, _, above):
        return self.draw(st.sampled_from(above))

    def union(self, depth, above):
        branches = {}
        for _ in range(self.draw(st.integers(1, 4))):
            item = self.any(depth - 1, above, in_union=True)
            branches.setdefault(type_name(item), item)
        if len(branches) == 1 and self.draw(st.booleans()):
            branches.setdefault("null", "null")
        # A value must be able to end.
        if any(isinstance(b, str) and b in above for b in branches.values()):
            branches.setdefault("null", "null")
        return list(branches.values())


def type_name(item):
    if isinstance(item, str):
        return item
    kind = item["type"]
    return full_name(item) if kind in ("record", "enum", "fixed") else kind


def full_name(item):
    # Everything stands below a record in g.n, whose namespace a named type without one inherits.
    return "g.n." + item["name"]


def without_logical(item):
    """The schema as bytes alone need it: what the other implementations read and write."""
    if isinstance(item, dict):
        return {k: without_logical(v) for k, v in item.items() if k not in ("logicalType", "precision", "scale")}
    return [without_logical(v) for v in item] if isinstance(item, list) else item


def resolved(item, named):
    return named.get(item, item) if isinstance(item, str) else item


def values(item, named, depth=3):  # noqa: PLR0911 - one for each type
    """Values of a schema, unions as Branch."""
    item = resolved(item, named)
    if isinstance(item, list):
        simple = [i for i, b in enumerate(item) if not (isinstance(b, str) and b in named)]
        usable = range(len(item)) if depth > 0 else simple
        return st.sampled_from(list(usable)).flatmap(lambda i: values(item[i], named, depth - 1).map(lambda v: Branch((i, v))))
    kind = item if isinstance(item, str) else item["type"]
    logical = item.get("logicalType") if isinstance(item, dict) else None
    if kind == "record":
        return st.fixed_dictionaries({f["name"]: values(f["type"], named, depth - 1) for f in item["fields"]})
    if kind == "array":
        return st.lists(values(item["items"], named, depth - 1), max_size=3)
    if kind == "map":
        return st.dictionaries(TEXT, values(item["values"], named, depth - 1), max_size=3)
    if logical == "decimal":
        limit = 10 ** item["precision"] - 1
        return st.integers(-limit, limit).map(lambda n: n.to_bytes(n.bit_length() // 8 + 1, "big", signed=True))
    if logical == "date":
        return st.dates().map(lambda d: (d - date(1970, 1, 1)).days)
    if logical in ("time-millis", "time-micros"):
        return st.integers(0, 86_400 * PER_SECOND[logical[5:]] - 1)
    if logical and "timestamp" in logical:
        per = PER_SECOND[logical.rpartition("-")[2]]
        low, high = (bound // 10**6 * per for bound in TIMESTAMP_RANGE)
        return st.integers(max(low, -(2**63)), min(high, 2**63 - 1))
    if logical == "uuid" and kind == "string":
        return st.uuids().map(str)
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32),
        "double": st.floats(),
        "bytes": st.binary(max_size=5),
        "string": TEXT,
        "fixed": st.binary(min_size=item["size"], max_size=item["size"]) if kind == "fixed" else None,
        "enum": st.sampled_from(item["symbols"]) if kind == "enum" else None,
    }[kind]


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)


def plain(value):
    """Without branches: fastavro chooses its own."""
    if isinstance(value, Branch):
        return plain(value[1])
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def expected(item, value, named, above=()):  # noqa: PLR0911 - one for each type
    """What our column holds, from what Apache's reader read."""
    if isinstance(item, str) and item in above:
        return json.loads(json.dumps(as_text(item, value, named)))
    name, item = item, resolved(item, named)
    if isinstance(item, list):
        index, inner = value
        branches = [b for b in item if b != "null"]
        got = expected(item[index], inner, named, above)
        if len(branches) < 2:
            return got
        if item[index] == "null":
            return None
        struct = {type_name(resolved(b, named)).rpartition(".")[2]: None for b in branches}
        return struct | {type_name(resolved(item[index], named)).rpartition(".")[2]: got}
    if isinstance(item, str):
        return value
    kind, logical = item["type"], item.get("logicalType")
    if kind == "record":
        me = name if isinstance(name, str) else "g.n." + item["name"]
        inside = (*above, me)
        return {f["name"]: expected(f["type"], value[f["name"]], named, inside) for f in item["fields"]} or True
    if kind == "array":
        return [expected(item["items"], v, named, above) for v in value]
    if kind == "map":
        return [(k, expected(item["values"], v, named, above)) for k, v in value.items()]
    return of_logical(logical, item, value)


def of_logical(logical, item, value):  # noqa: PLR0911 - one for each type
    if logical == "decimal":
        exact = Decimal((0, (), 0)) if not value else Decimal(int.from_bytes(value, "big", signed=True))
        digits = exact.as_tuple()
        exact = Decimal((digits.sign, digits.digits, -item["scale"]))
        return exact if item["precision"] <= 38 else f"{exact:f}"
    if logical == "date":
        return date(1970, 1, 1) + timedelta(days=value)
    if logical in ("time-millis", "time-micros"):
        return value * 10**6 // PER_SECOND[logical[5:]]
    if logical and "timestamp" in logical:
        at = EPOCH + timedelta(microseconds=value * 10**6 // PER_SECOND[logical.rpartition("-")[2]])
        return at if logical.startswith("timestamp") else at.replace(tzinfo=None).isoformat(timespec="microseconds")
    if logical == "duration":
        numbers = [int.from_bytes(value[i : i + 4], "little") for i in (0, 4, 8)]
        return dict(zip(("months", "days", "milliseconds"), numbers, strict=True))
    if logical == "uuid" and item["type"] == "fixed":
        digits = value.hex()
        return "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])
    return value


def as_text(item, value, named):  # noqa: PLR0911 - one for each type
    """Avro's JSON encoding."""
    item = resolved(item, named)
    if isinstance(item, list):
        index, inner = value
        branch = resolved(item[index], named)
        return None if branch == "null" else {type_name(branch): as_text(branch, inner, named)}
    kind = item if isinstance(item, str) else item["type"]
    if kind == "record":
        return {f["name"]: as_text(f["type"], value[f["name"]], named) for f in item["fields"]}
    if kind == "array":
        return [as_text(item["items"], v, named) for v in value]
    if kind == "map":
        return {k: as_text(item["values"], v, named) for k, v in value.items()}
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def comparable(item, value, named, above=()):  # noqa: PLR0911 - one for each type
    """Our row, JSON text parsed where the schema is recursive."""
    if value is None or (isinstance(item, str) and item in above):
        return value if value is None else json.loads(value)
    name, item = item, resolved(item, named)
    if isinstance(item, list):
        branches = [b for b in item if b != "null"]
        if len(branches) < 2:
            return comparable((branches or item)[0], value, named, above)
        by_name = {type_name(resolved(b, named)).rpartition(".")[2]: b for b in branches}
        return {k: comparable(by_name[k], v, named, above) for k, v in value.items()}
    kind = item if isinstance(item, str) else item["type"]
    if kind == "record" and value is not True:
        inside = (*above, name if isinstance(name, str) else "g.n." + item["name"])
        return {f["name"]: comparable(f["type"], value[f["name"]], named, inside) for f in item["fields"]}
    if kind == "array":
        return [comparable(item["items"], v, named, above) for v in value]
    if kind == "map":
        return [(k, comparable(item["values"], v, named, above)) for k, v in value]
    return value


@st.composite
def cases(draw):
    """A schema, its named types, and values."""
    schemas = Schemas(draw)
    schema = schemas.record(3, (), least=1)
    named = {n if n.startswith("g.n.") else f"g.n.{n}": s for n, s in schemas.named.items()}
    return schema, named, draw(st.lists(values(schema, named, 6), min_size=1, max_size=5))


def written(schema, value, by_apache):
    out = io.BytesIO()
    if by_apache:
        parsed = avro.schema.parse(json.dumps(schema))
        Writer(parsed).write_data(parsed, value, avro.io.BinaryEncoder(out))
    else:
        fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(schema)), plain(value))
    return out.getvalue()


def apache_reads(schema, payload):
    parsed = avro.schema.parse(json.dumps(schema))
    return Reader(parsed, parsed).read_data(parsed, parsed, avro.io.BinaryDecoder(io.BytesIO(payload)))


@settings(max_examples=150, deadline=None)
@given(cases(), st.booleans())
def test_columns_are_what_apache_avro_reads_whoever_wrote(case, by_apache):
    schema, named, data = case
    bare = without_logical(schema)
    payloads = [written(bare, value, by_apache) for value in data]
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


@settings(max_examples=20, deadline=None)
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


@settings(max_examples=150, deadline=None)
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
