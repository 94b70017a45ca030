"""JSON payloads that are no documents of their schema: each is rejected with its reason, and costs only itself."""

import json
import subprocess
import sys

import pytest

from game_events.decoding.frame import Reason
from game_events.decoding.json_decoder import MAX_LEVELS
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

DEFINED = {
    "i": {"type": "integer"},
    "n": {"type": "number"},
    "s": {"type": "string"},
    "b": {"type": "boolean"},
    "t": {"type": "string", "format": "date-time"},
    "d": {"type": "string", "format": "date"},
    "l": {"type": "array", "items": {"type": "integer"}},
    "m": {"type": "object", "additionalProperties": {"type": "integer"}},
    "o": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "f": {},
}
SCHEMA = {"title": "Event", "type": "object", "properties": DEFINED}

DAMAGE = {
    "no bytes": (b"", Reason.TRUNCATED),
    "spaces": (b"  ", Reason.TRUNCATED),
    "half an object": (b'{"i":1', Reason.TRUNCATED),
    "half a text": (b'{"s":"ab', Reason.TRUNCATED),
    "what would complete half an object in the row before": (b'}{"i":1}', Reason.MALFORMED),
    "two documents": (b'{"i":1}{"i":2}', Reason.MALFORMED),
    "two lines": (b'{"i":1}\n{"i":2}', Reason.MALFORMED),
    "a byte order mark": (b"\xef\xbb\xbf{}", Reason.MALFORMED),
    "UTF-16": ('{"s":"a"}'.encode("utf-16"), Reason.BAD_UTF8),
    "UTF-16 without a mark": ('{"s":"a"}'.encode("utf-16-le"), Reason.MALFORMED),
    "Latin-1": ('{"s":"é"}'.encode("latin-1"), Reason.BAD_UTF8),
    "an encoded surrogate": (b'{"s":"\xed\xa0\x80"}', Reason.BAD_UTF8),
    "half of a surrogate pair": (b'{"s":"\\ud800"}', Reason.BAD_UTF8),
    "half of a surrogate pair in a name": (b'{"\\uDfff":1}', Reason.BAD_UTF8),
    "half of a surrogate pair in free JSON": (b'{"f":["\\ud800x"]}', Reason.BAD_UTF8),
    "NaN": (b'{"n":NaN}', Reason.MALFORMED),
    "Infinity": (b'{"f":-Infinity}', Reason.MALFORMED),
    "a comma too many": (b'{"i":1,}', Reason.MALFORMED),
    "single quotes": (b"{'i':1}", Reason.MALFORMED),
    "a comment": (b'{"i":1/**/}', Reason.MALFORMED),
    "a control character": (b'{"s":"\n"}', Reason.MALFORMED),
    "a leading zero": (b'{"i":01}', Reason.MALFORMED),
    "an array instead of the object": (b"[]", Reason.MALFORMED),
    "null instead of the object": (b"null", Reason.MALFORMED),
    "a text instead of an integer": (b'{"i":"1"}', Reason.MALFORMED),
    "a boolean instead of an integer": (b'{"i":true}', Reason.MALFORMED),
    "a fraction instead of an integer": (b'{"i":1.5}', Reason.MALFORMED),
    "an almost integer": (b'{"i":9007199254740992.5}', Reason.MALFORMED),
    "an integer of 65 bits": (b'{"i":9223372036854775808}', Reason.OUT_OF_RANGE),
    "a float of 65 bits instead of an integer": (b'{"i":1e19}', Reason.OUT_OF_RANGE),
    "an integer of five thousand digits": (b'{"i":' + b"1" * 5_000 + b"}", Reason.OUT_OF_RANGE),
    "an integer with a huge exponent": (b'{"i":1e999999999}', Reason.OUT_OF_RANGE),
    "an integer with an exponent of twenty digits": (b'{"i":1e99999999999999999999}', Reason.OUT_OF_RANGE),
    "a boolean instead of a number": (b'{"n":false}', Reason.MALFORMED),
    "a text instead of a number": (b'{"n":"1.5"}', Reason.MALFORMED),
    "a number beyond float64": (b'{"n":1e400}', Reason.OUT_OF_RANGE),
    "an integer beyond float64": (b'{"n":1' + b"0" * 400 + b"}", Reason.OUT_OF_RANGE),
    "a number instead of a text": (b'{"s":1.5}', Reason.MALFORMED),
    "a number instead of a boolean": (b'{"b":1}', Reason.MALFORMED),
    "a time without a zone": (b'{"t":"2024-01-01T00:00:00"}', Reason.MALFORMED),
    "a time without seconds": (b'{"t":"2024-01-01T00:00Z"}', Reason.MALFORMED),
    "a number instead of a time": (b'{"t":1.5}', Reason.MALFORMED),
    "a time on 30 February": (b'{"t":"2024-02-30T00:00:00Z"}', Reason.OUT_OF_RANGE),
    "a time with a leap second": (b'{"t":"2016-12-31T23:59:60Z"}', Reason.OUT_OF_RANGE),
    "a time that its zone brings before year 1": (b'{"t":"0001-01-01T00:00:00+00:01"}', Reason.OUT_OF_RANGE),
    "a time that its zone brings after year 9999": (b'{"t":"9999-12-31T23:59:59-00:01"}', Reason.OUT_OF_RANGE),
    "digits of another script": (b'{"d":"\xef\xbc\x92024-01-01"}', Reason.MALFORMED),
    "a date of year 0": (b'{"d":"0000-01-01"}', Reason.OUT_OF_RANGE),
    "a week date": (b'{"d":"2024-W01-1"}', Reason.MALFORMED),
    "an object instead of an array": (b'{"l":{}}', Reason.MALFORMED),
    "a text in an array of integers": (b'{"l":[1,"a"]}', Reason.MALFORMED),
    "pairs instead of a map": (b'{"m":[["a",1]]}', Reason.MALFORMED),
    "pairs instead of an object": (b'{"o":[["x",1]]}', Reason.MALFORMED),
    "a text in a map of integers": (b'{"m":{"a":"1"}}', Reason.MALFORMED),
    "a text in an object inside": (b'{"o":{"x":"1"}}', Reason.MALFORMED),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_rejected_with_its_reason_and_costs_only_itself(name):
    payload, reason = DAMAGE[name]
    found, detail = rejection("JSON", SCHEMA, payload)
    assert found is reason, detail
    assert detail.startswith("Event")


def test_the_detail_names_the_field():
    assert rejection("JSON", SCHEMA, b'{"o":{"x":"1"}}')[1] == "Event.o.x: a string instead of integer"
    assert rejection("JSON", SCHEMA, b'{"m":{"a":[]}}')[1] == "Event.m: an array instead of integer"


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ('{"i":1.0}', {"i": 1}),
        ('{"i":-1.20e1}', {"i": -12}),
        ('{"i":9223372036854775807.0}', {"i": 2**63 - 1}),
        ('{"i":-9223372036854775808}', {"i": -(2**63)}),
        ('{"n":1}', {"n": 1.0}),
        ('{"n":0.1234567890123456789}', {"n": 0.12345678901234568}),
        ('{"i":1,"i":2}', {"i": 2}),
        ('{"m":{"a":1,"b":2,"a":3}}', {"m": [("a", 3), ("b", 2)]}),
        ('{"m":{"a":null}}', {"m": [("a", None)]}),
        ('{"l":[1,null]}', {"l": [1, None]}),
        ('{"s":null,"o":null,"l":null}', {}),
        ('{"unknown":{"x":[1]}}', {}),
        ('{"s":"\\ud83d\\ude00\\u0000"}', {"s": "😀\0"}),
        ('{"s":"\\\\ud800"}', {"s": "\\ud800"}),
        (" \n{}\t\r ", {}),
        ('{"f":0.1234567890123456789}', {"f": "0.1234567890123456789"}),
        ('{"f":{"b": [1E5, 123456789012345678901234567890, "é\\n", true, null]}}', None),
        ('{"d":"0001-01-01"}', "0001-01-01"),
    ],
)
def test_what_is_unusual_and_right_is_read_exactly(text, column):
    row = {name: value for name, value in decode_one("JSON", SCHEMA, text.encode()).items() if value is not None}
    match column:
        case None:
            assert row == {"f": '{"b":[1E5,123456789012345678901234567890,"é\\n",true,null]}'}
        case str():
            assert {name: str(value) for name, value in row.items()} == {"d": column}
        case _:
            assert row == column


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2024-01-31T10:20:30Z", "2024-01-31 10:20:30+00:00"),
        ("2024-01-31t10:20:30.5z", "2024-01-31 10:20:30.500000+00:00"),
        ("2024-01-31 10:20:30.123456999-01:30", "2024-01-31 11:50:30.123456+00:00"),
        ("1969-12-31T23:59:59.9999999+00:00", "1969-12-31 23:59:59.999999+00:00"),
        ("0001-01-01T00:00:00Z", "0001-01-01 00:00:00+00:00"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31 23:59:59.999999+00:00"),
    ],
)
def test_times_are_exact_to_the_microsecond_and_cut_behind_it(text, instant):
    assert str(decode_one("JSON", SCHEMA, json.dumps({"t": text}).encode())["t"]) == instant


GOOD = json.dumps({"i": 1, "s": "é", "l": [1, 2], "m": {"a": 1}, "o": {"x": 5}, "f": {"y": [1.5]}}).encode()


def test_a_document_cut_anywhere_leaves_its_neighbours_whole():
    found = same_schema_rejections("JSON", SCHEMA, GOOD, [GOOD[:end] for end in range(len(GOOD))])
    assert len(found) == len(GOOD)


@pytest.mark.parametrize("share", [100, 2])
def test_many_bad_rows_cost_little_more_than_good_ones(share):
    values = [framed(GOOD[:-1] if i % share == 1 else GOOD) for i in range(10_000)]
    plan = plan_of(registered("JSON", SCHEMA))
    decoded, calls = counted(lambda: decode(plan, values))
    assert len(reasons_by_position(decoded)) == 10_000 // share
    assert len(rows_by_position(decoded)) == 10_000 - 10_000 // share
    # A row costs up to 93 of them, a bad one no more than a good one.
    assert calls < 200 * 10_000


def test_nesting_up_to_the_limit_is_read_and_what_is_deeper_is_rejected():
    deep = MAX_LEVELS - 1
    assert decode_one("JSON", SCHEMA, b'{"f":' + b"[" * deep + b"]" * deep + b"}")["f"] == "[" * deep + "]" * deep
    for levels in (deep + 1, 500, 5_000, 5_000_000):
        assert rejection("JSON", SCHEMA, b'{"f":' + b"[" * levels + b"]" * levels + b"}")[0] is Reason.TOO_DEEP
    assert rejection("JSON", SCHEMA, b'{"f":' * MAX_LEVELS + b"{}" + b"}" * MAX_LEVELS)[0] is Reason.TOO_DEEP


def test_deep_nesting_does_not_end_the_process_in_a_thread_with_a_small_stack():
    program = (
        "import threading\n"
        "from game_events_tests.support.decoding.format_helpers import rejection\n"
        "threading.stack_size(512 * 1024)\n"
        "def run():\n"
        "    for text in (b'[' * 3_000_000, b'{\"a\":' * 3_000_000):\n"
        "        print(rejection('JSON', {}, text)[0])\n"
        "t = threading.Thread(target=run); t.start(); t.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["TOO_DEEP", "TOO_DEEP"]), done.stderr


def test_a_document_of_ten_megabytes_is_read():
    document = {"l": list(range(1_000_000)), "f": ["x" * 1_000] * 3_000}
    row = decode_one("JSON", SCHEMA, json.dumps(document).encode())
    assert row["l"] == document["l"]
    assert json.loads(row["f"]) == document["f"]
