"""Generated schemas of all formats: each is compiled, or refused by a DataError that names it."""

import json

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.decoding.columns import ColumnMap
from game_events.decoding.comments import read_comments
from game_events.decoding.decoder import compile_schema, first_decoders
from game_events.decoding.frame import RegistrySchema
from game_events.errors import DataError
from game_events_tests.support.decoding.hostile_schemas import EMPTY, MAIN, as_base64, described

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
WORDS = [
    "type",
    "properties",
    "items",
    "$ref",
    "#",
    "#/properties/a",
    "allOf",
    "oneOf",
    "anyOf",
    "enum",
    "const",
    "$id",
    "$anchor",
]
WORDS += [
    "record",
    "fields",
    "name",
    "array",
    "map",
    "values",
    "enum",
    "symbols",
    "fixed",
    "size",
    "bytes",
    "decimal",
    "precision",
]
WORDS += ["logicalType", "union", "string", "long", "null", "object", "scale", "namespace", "aliases", "additionalProperties"]
SCHEMA_LIKE = st.recursive(
    st.sampled_from(WORDS) | st.integers(-2, 2**70) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6),
    max_leaves=30,
)
PROTO_WORDS = [
    "message",
    "M",
    "{",
    "}",
    ";",
    "=",
    "1",
    "string",
    "a",
    "map<string,M>",
    "option",
    "map_entry",
    "true",
    "oneof",
    "enum",
]
PROTO_WORDS += [
    "import",
    '"google/protobuf/any.proto"',
    '"x"',
    "repeated",
    "group",
    "extend",
    "reserved",
    "package",
    ".",
    "[",
    "]",
]
PROTO_TEXT = st.lists(st.sampled_from(PROTO_WORDS), max_size=40).map(lambda words: 'syntax = "proto3"; ' + " ".join(words))


@st.composite
def descriptors(draw):
    """Serialized descriptors of a good file, in which bytes were changed."""
    file = described(dependency=draw(st.lists(st.text(max_size=5), max_size=2)))
    inner = file.message_type[0].nested_type.add(name=draw(st.text(max_size=4)))
    inner.options.map_entry = draw(st.booleans())
    numbers, kinds = st.integers(-1, 2**31 - 1), st.integers(1, 18)
    names = st.sampled_from([".M", ".nope", "M", ""])
    for _ in range(draw(st.integers(0, 4))):
        inner.field.add(name=draw(st.text(max_size=4)), number=draw(numbers), type=draw(kinds), type_name=draw(names), label=1)
    raw = bytearray(file.SerializeToString())
    for at, octet in draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=4)):
        raw[at] = octet
    return as_base64(type("Raw", (), {"SerializeToString": lambda _: bytes(raw)})())


SCHEMAS = st.one_of(
    st.tuples(st.sampled_from(["AVRO", "JSON"]), (JSON | SCHEMA_LIKE).map(json.dumps)),
    st.tuples(st.sampled_from(["AVRO", "JSON", "PROTOBUF"]), st.text(max_size=30)),
    st.tuples(st.just("PROTOBUF"), PROTO_TEXT | descriptors()),
)


@settings(max_examples=400)
@given(SCHEMAS, st.lists(st.tuples(st.text(max_size=10), st.sampled_from([EMPTY, MAIN, "{}", '"string"'])), max_size=2))
def test_whatever_is_registered_is_compiled_or_refused(schema, references):
    kind, text = schema
    registered = RegistrySchema(1, kind, text, tuple(references))
    read_comments(registered)
    try:
        made = compile_schema(registered)
        decoders = first_decoders(made, made.paths()[:3])
    except DataError as error:
        assert str(error).startswith("schema id 1")
        return
    for decoder in decoders:
        columns = ColumnMap().with_message(decoder.message, decoder.fields)
        payloads = pa.array([b"", b"\0", b"{}", b"\x02\x02\x02"], pa.binary())
        decoded = decoder.decode(payloads, columns)
        assert sorted([*decoded.good.tolist(), *(int(r) for _, _, rows in decoded.bad for r in rows)]) == [0, 1, 2, 3]
