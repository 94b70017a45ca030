"""Records of few bytes that would be millions of values: refused before they are decoded, beside others that are."""

import itertools
import json

import pyarrow as pa
import pytest

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import compile_schema, make_decoder
from game_events.decoding.frame import Reason
from game_events.decoding.projection import MAX_RECORD_CELLS
from game_events_tests.support.decoding.format_helpers import framed, plan_of, registered
from game_events_tests.support.decoding.helpers import decode, reasons_by_position

WIDTH = 1_000
HEAD = 'syntax = "proto3"; message E { string game_name = 1; '
NUMBERS = range(1, WIDTH + 1)
IMPORT = 'import "google/protobuf/struct.proto"; message'
WIDE = "message I {" + " ".join(f"int64 f{n} = {n};" for n in NUMBERS) + "}"
#: Just fits, and just does not.
FITS = MAX_RECORD_CELLS // (WIDTH + 2)
OVER = FITS + 1


def field(number, content):
    """A delimited field."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(value):
    return (bytes([value & 127 | 128]) + varint(value >> 7)) if value > 127 else bytes([value])


def elements(decoded, column="i"):
    """Position -> elements of the list, of the good rows."""
    lengths = {}
    for rows, _, table, _ in decoded.good:
        offsets = [chunk.offsets.to_pylist() for chunk in table.column(column).chunks if len(chunk)]
        counts = [end - begin for part in offsets for begin, end in itertools.pairwise(part)]
        lengths |= dict(zip(rows.tolist(), counts, strict=True))
    return lengths


GAME = field(1, b"rummy")
EMPTY = b"\x22\x00"
#: The tag of field 1001.
R = b"\xca\x3e"
PROTOBUF = {
    "list": ("repeated I i = 4; }" + WIDE, lambda n: EMPTY * n),
    "map": ("map<string, I> i = 4; }" + WIDE, lambda n: EMPTY * n),
    "in a message": ("M m = 4; } message M { repeated I i = 4; }" + WIDE, lambda n: field(4, EMPTY * n)),
    "in a message that is merged": ("M m = 4; } message M { repeated I i = 4; }" + WIDE, lambda n: field(4, EMPTY) * n),
    "in a list": ("repeated M m = 4; } message M { repeated I i = 4; }" + WIDE, lambda n: field(4, EMPTY * n)),
    "in a map": ("map<int32, M> m = 4; } message M { repeated I i = 4; }" + WIDE, lambda n: field(4, field(2, EMPTY * n))),
    # Kept as bytes, or text, but parsed.
    "in itself": (
        "R r = 4; } message R { repeated R r = 1001; " + WIDE[11:],
        lambda n: field(4, R + varint(3 * n) + (R + b"\0") * n),
    ),
    "JSON": ("google.protobuf.ListValue v = 4; }", lambda n: field(4, b"\x0a\x00" * 15 * n)),
    "lists": (
        "repeated I i = 4; } message I {" + " ".join(f"repeated int64 f{n} = {n};" for n in NUMBERS) + "}",
        lambda n: EMPTY * n,
    ),
}


@pytest.mark.parametrize("name", PROTOBUF)
def test_a_small_protobuf_record_of_too_many_values_is_refused_alone(name):
    schema, make = PROTOBUF[name]
    plan = plan_of(registered("PROTOBUF", HEAD.replace("message", IMPORT) + schema))
    good, large = framed(b"\0" + GAME), framed(b"\0" + GAME + make(100_000))
    decoded = decode(plan, [good, large, good])
    assert reasons_by_position(decoded) == {1: Reason.TOO_MANY_VALUES}
    assert [at for rows, _, _, _ in decoded.good for at in rows] == [0, 2]
    (rejected,) = decoded.rejected
    assert rejected.detail.startswith(f"E: more than {MAX_RECORD_CELLS:,} values")


@pytest.mark.parametrize("damage", [b"", b"\x0a\x7f"], ids=["whole", "cut off"])
def test_a_group_of_too_many_values_is_refused(damage):
    groups = " ".join(f"optional int64 f{n} = {n};" for n in NUMBERS)
    text = f'syntax = "proto2"; message E {{ repeated group I = 4 {{ {groups} }} }}'
    decoded = decode(plan_of(registered("PROTOBUF", text)), [framed(b"\0" + b"\x23\x24" * n + damage) for n in (1, 100_000)])
    assert reasons_by_position(decoded)[1] == Reason.TOO_MANY_VALUES


def test_the_bound_is_exact():
    plan = plan_of(registered("PROTOBUF", HEAD + PROTOBUF["list"][0]))
    decoded = decode(plan, [framed(b"\0" + EMPTY * n) for n in (FITS, OVER)])
    assert reasons_by_position(decoded) == {1: Reason.TOO_MANY_VALUES}
    assert elements(decoded) == {0: FITS}


def test_a_long_damaged_record_that_ends_a_group_which_was_not_opened_is_refused_alone():
    plan = plan_of(registered("PROTOBUF", HEAD + PROTOBUF["list"][0]))
    long = EMPTY * (FITS - 1)
    decoded = decode(plan, [framed(b"\0" + text) for text in (long, long + b"\4\0", EMPTY)])
    assert reasons_by_position(decoded) == {1: Reason.MALFORMED}
    assert elements(decoded) == {0: FITS - 1, 2: 1}


@pytest.mark.parametrize("kind", ["int32", "double"])
def test_numbers_that_are_packed_count_by_what_they_are(kind):
    one = b"\0" * (8 if kind == "double" else 1)
    plan = plan_of(registered("PROTOBUF", HEAD + f"repeated {kind} n = 4; }}"))
    texts = [field(4, one * n) for n in (MAX_RECORD_CELLS, MAX_RECORD_CELLS + 1)]
    decoded = decode(plan, [framed(b"\0" + text) for text in texts])
    assert reasons_by_position(decoded) == {1: Reason.TOO_MANY_VALUES}


def test_elements_count_as_wide_as_another_version_has_made_their_column():
    old = registered("PROTOBUF", HEAD + "repeated I i = 4; } message I { int64 f1 = 1; }", 1)
    new = registered("PROTOBUF", HEAD + PROTOBUF["list"][0], 2)
    decoded = decode(plan_of(old, new), [framed(b"\0" + EMPTY * n, 1) for n in (FITS, OVER)])
    assert reasons_by_position(decoded) == {1: Reason.TOO_MANY_VALUES}


RECORD = {"type": "record", "name": "I", "fields": [{"name": f"f{n}", "type": ["null", "long"]} for n in range(WIDTH)]}
AVRO = {"type": "record", "name": "E", "fields": [{"name": "i", "type": {"type": "array", "items": ["null", RECORD]}}]}
JSON = {
    "title": "E",
    "type": "object",
    "properties": {
        "i": {"type": "array", "items": {"type": "object", "properties": {f"f{n}": {"type": "integer"} for n in range(WIDTH)}}}
    },
}
OTHERS = {
    "AVRO": (AVRO, lambda n: varint(2 * n) + b"\0" * n + b"\0"),
    "JSON": (JSON, lambda n: json.dumps({"i": [{}] * n}).encode()),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_records_of_other_formats_are_refused_alone(kind):
    schema, make = OTHERS[kind]
    plan = plan_of(registered(kind, schema))
    decoded = decode(plan, [framed(make(n)) for n in (1, 100_000, OVER, FITS, 2)])
    assert reasons_by_position(decoded) == {1: Reason.TOO_MANY_VALUES, 2: Reason.TOO_MANY_VALUES}
    assert elements(decoded) == {0: 1, 3: FITS, 4: 2}


WIDE_ROW = {
    "type": "record",
    "name": "W",
    "fields": [{"name": "v", "type": "boolean"}, *({"name": f"f{n}", "type": "null"} for n in range(WIDTH))],
}
#: A type inside itself is JSON text, in which each value has its name.
TREE = {
    "type": "record",
    "name": "T",
    "fields": [{"name": "rows", "type": {"type": "array", "items": WIDE_ROW}}, {"name": "next", "type": ["null", "T"]}],
}


def tree(number):
    return b"\0\2" + varint(2 * number) + b"\1" * number + b"\0\0"


def test_an_avro_record_of_too_many_values_in_json_text_is_refused_alone():
    decoded = decode(plan_of(registered("AVRO", TREE)), [framed(tree(n)) for n in (1, 9_000, 2)])
    assert reasons_by_position(decoded) == {1: Reason.TOO_MANY_VALUES}


def test_texts_of_a_batch_are_one_array_only_up_to_its_bound():
    compiled = compile_schema(registered("AVRO", TREE))
    decoder = make_decoder(compiled, ())
    columns = ColumnMap().with_message(decoder.message, decoder.fields)
    payloads = pa.array([tree(10)] * 40, pa.binary())
    texts = decoder.decode(payloads, columns, batch_bytes=500_000).table.column("next")
    longest = max(len(text) for text in texts.to_pylist())
    assert len(texts) == len(payloads)
    assert max(chunk.nbytes for chunk in texts.chunks) < 2 * 500_000 + longest
