"""The parser of JSON documents against Python's own one with the same checks: equal documents, or equal reasons."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from game_events.decoding.frame import DAMAGE, DamageError, Reason, as_damage
from game_events.decoding.json_decoder import MAX_BRACKETS, MAX_LEVELS, Constant, Real, parse

ODD_NUMBERS = ["-0", "-0.0", "1e400", "1" * 4_300, "1" * 4_301, "18446744073709551616", "NaN", "-Infinity", "Infinity"]
NO_NUMBERS = ["01", "1.", ".5", "+1"]
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)
ODD_TEXTS = ['"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\n"', '"\x7f"', '"\\/"', '"\\x"']
NO_TEXTS = ['"\\u12', "'a'", '"']
TEXTS = st.text(max_size=6).map(json.dumps)
OTHERS = ["true", "false", "null", "nul", "", "/**/1"]
SCALARS = NUMBERS | TEXTS | st.sampled_from([*ODD_NUMBERS, *NO_NUMBERS, *ODD_TEXTS, *NO_TEXTS, *OTHERS])


def joined(inner):
    """Lists and objects of texts, with names that repeat."""
    names = st.sampled_from(['"a"', '"b"', '"\\u0061"', "1", '"\\ud800"'])
    spaces = st.sampled_from(["", " ", "\r\n", "\t", "\x0c", "\ufeff"])
    members = st.tuples(names, spaces, inner).map(lambda parts: f"{parts[0]}{parts[1]}:{parts[2]}")
    lists = st.lists(inner, max_size=4).map(lambda parts: f"[{','.join(parts)}]")
    objects = st.lists(members, max_size=4).map(lambda parts: f"{{{','.join(parts)}}}")
    nested = st.tuples(inner, st.integers(0, MAX_LEVELS + 2)).map(lambda pair: "[" * pair[1] + pair[0] + "]" * pair[1])
    return lists | objects | nested


@st.composite
def payloads(draw):
    """Documents, most of them whole: some are cut, or have a byte too many or another one."""
    payload = bytearray(draw(st.recursive(SCALARS, joined, max_leaves=8)).encode())
    match draw(st.sampled_from(["whole", "whole", "cut", "changed", "more"])):
        case "cut":
            del payload[draw(st.integers(0, len(payload))) :]
        case "changed" if payload:
            payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
        case "more":
            payload += draw(st.binary(min_size=1, max_size=3))
    return bytes(payload)


def depth(document):
    inner = document.values() if isinstance(document, dict) else document if isinstance(document, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def refuse(name):
    raise DamageError(Reason.MALFORMED, f"no JSON document: {name} is no JSON number")


def by_python(payload, *, lenient):
    """What Python's parser makes of a payload: a document, or a reason, or an error's text."""
    constant = Constant if lenient else refuse
    try:
        document = json.JSONDecoder(parse_float=Real, parse_constant=constant).decode(payload.decode())
    except json.JSONDecodeError as error:
        return error.msg
    except (UnicodeDecodeError, DamageError, RecursionError) as error:
        return as_damage(error).reason
    except ValueError:
        return Reason.OUT_OF_RANGE
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Reason.TOO_DEEP if depth(document) > MAX_LEVELS else Reason.BAD_UTF8
    return Reason.TOO_DEEP if depth(document) > MAX_LEVELS else document


def types_of(document):
    """The types of all values, in order."""
    inner = document.items() if isinstance(document, dict) else document if isinstance(document, list | tuple) else ()
    return [type(document), *(kind for value in inner for kind in types_of(value))]


@settings(max_examples=500)
@given(payloads(), st.booleans())
@example(b'{"a":1,"a":{"b":2}}', False)
@example(b'{"a":NaN,"b":"\\ud800"}', True)
@example(b"[" * 2_000 + b"]" * 2_000, False)
def test_documents_and_reasons_are_those_of_pythons_parser(payload, lenient):
    expected = by_python(payload, lenient=lenient)
    more = {"second_parser": json.JSONDecoder(parse_float=Real, parse_constant=Constant)} if lenient else {}
    try:
        document = parse(payload, **more)
    except DAMAGE as error:
        damage = as_damage(error)
        match expected:
            case Reason():
                assert damage.reason is expected
            case _:
                assert damage.reason in (Reason.TRUNCATED, Reason.MALFORMED)
                assert f"no JSON document: {expected} at character" in damage.what
        return
    assert (document, types_of(document)) == (expected, types_of(expected))


@pytest.mark.parametrize("text", ["1.50", "1E5", "-0.0", "1e400", "0.1234567890123456789", "1.0e+05"])
def test_each_digit_of_a_number_is_kept(text):
    number = parse(text.encode())
    assert (type(number), number) == (Real, text)


def test_integers_are_exact_whatever_their_length():
    assert parse(b"12345678901234567890123") == 12345678901234567890123
    assert parse(b"-" + b"9" * 4_300) == -int("9" * 4_300)


@pytest.mark.parametrize("count", [MAX_LEVELS, MAX_BRACKETS, 10 * MAX_BRACKETS])
def test_a_wide_document_is_read_whoever_parses_it(count):
    document = parse(b"[" + b",".join([b'{"a":[1.50]}'] * count) + b"]")
    assert document == [{"a": [Real("1.50")]}] * count
