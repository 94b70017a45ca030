"""Decoder of JSON payloads of one schema into Arrow columns: parser of documents, and exact conversion of their values.

msgspec parses, which refuses what is no JSON and keeps all digits of a number; Python's own parser reads once more what it
refuses, for the reason. pyarrow's and DuckDB's readers take a batch as one text, round numbers, and do not report bad rows.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

import msgspec

from game_events.decoding.columns import NO_RULES, ColumnRules
from game_events.decoding.frame import DamageError, Reason
from game_events.decoding.json_schema import JsonSchema, JsonType
from game_events.decoding.projection import VALUE, CellBudget, RowDecoder, cells_of_element

#: Levels of nesting at most.
MAX_LEVELS = 100
#: Opening brackets of a document that msgspec parses: a level takes some 400 bytes of the stack, and a thread may have 512 KiB.
MAX_BRACKETS = 500
_escaped = json.encoder.encode_basestring
LONG_RANGE = (-(2**63), 2**63 - 1)
#: Limits of a number with fraction or exponent that is read as an integer: few characters can mean a million digits.
MAX_EXPONENT = 400
MAX_DIGITS = 1_000
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
#: RFC 3339, "date-time"; truncated to microseconds, without leap seconds. Also with ISO 8601's short offsets (`+0000`, `+02`,
#: as Jackson and PostgreSQL write them), with a zone's name behind the offset (Java's ZonedDateTime), or without a zone.
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)(:\d\d(?:\.\d+)?)?(?:([Zz]|[+-]\d\d(?::?\d\d)?)(?:\[[\w+/-]{1,64}\])?)?",
    re.ASCII,
)
_A_TIME = "date-time with a zone (RFC 3339)"
NAIVE = "GAME_EVENTS_NAIVE_TIMES_ZONE"
_REAL = re.compile(r"-?\d+(?:\.\d+)?(?:[eE]([+-]?\d{1,9}))?", re.ASCII)
Convert = Callable[[Any], Any]
Guard = Callable[[Convert], Convert]


class JsonDecoder(RowDecoder):
    """Decodes one schema id.

    Members of an object become columns, any other value the column ``value``; members that are not in the schema are ignored.
    """

    def __init__(self, compiled: JsonSchema, rules: ColumnRules = NO_RULES) -> None:
        described = compiled.type
        self._is_object = described.kind == "struct"
        root = described if self._is_object else JsonType("struct", ((VALUE, described),))
        super().__init__(compiled.message, root.children, root.arrow, CellBudget())
        zone = ZoneInfo(rules.rules.zone) if rules.rules.zone is not None else None
        nullable = rules.nullable(self.message, self.fields)
        members: list[tuple[str, Convert]] = []
        for (name, inner), item in zip(root.fields, self.fields, strict=True):
            guard = _or_null(self.nulled, nullable[item.id]) if item.id in nullable else None
            members.append((name, converter(inner, self.budget, zone, guard)))
        self._convert = _struct(members)
        self._second_parser = _LENIENT if nullable else _STRICT

    def _read(self, payload: bytes) -> object:
        document = parse(payload, self._second_parser)
        return self._convert(document if self._is_object else {VALUE: document})


class Real(str):
    """A number with a fraction or an exponent as text: a float would round it."""

    __slots__ = ()


class Constant(str):
    """NaN, Infinity or -Infinity, which JSON does not have."""

    __slots__ = ()


def _constant(name: str) -> NoReturn:
    raise DamageError(Reason.MALFORMED, f"no JSON document: {name} is no JSON number")


_parsed: Callable[[bytes], object] = msgspec.json.Decoder(float_hook=Real).decode
_STRICT = json.JSONDecoder(parse_float=Real, parse_constant=_constant)
#: NaN and infinities, which Python and JavaScript libraries write, are bad values instead of no JSON.
_LENIENT = json.JSONDecoder(parse_float=Real, parse_constant=Constant)
_CONTAINERS: dict[type, Callable[[Any], Iterable[Any]]] = {dict: dict.values, list: iter}


def parse(payload: bytes, second_parser: json.JSONDecoder = _STRICT) -> object:
    """Parse one UTF-8 JSON document, nested up to `MAX_LEVELS`; `DAMAGE` for others.

    Returns Python's values, numbers with fractions as `Real`; the last value of a repeated name. `second_parser`: reads what
    msgspec refuses.
    """
    brackets = payload.count(b"{") + payload.count(b"[")
    if brackets > MAX_BRACKETS:
        return _parsed_by_python(payload, second_parser)
    try:
        document = _parsed(payload)
    except msgspec.MsgspecError:
        return _parsed_by_python(payload, second_parser)
    if brackets > MAX_LEVELS:
        _check_depth(document)
    return document


def _parsed_by_python(payload: bytes, parser: json.JSONDecoder) -> object:
    """As Python's parser reads it, with checks of what that allows; raises `DAMAGE`."""
    text = payload.decode()
    try:
        document = parser.decode(text)
    except json.JSONDecodeError as error:
        ended = error.pos >= len(text.rstrip()) and not error.msg.startswith("Extra")
        reason = Reason.TRUNCATED if ended or error.msg.startswith("Unterminated string") else Reason.MALFORMED
        raise DamageError(reason, f"no JSON document: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise DamageError(Reason.TOO_DEEP, f"nested more than {MAX_LEVELS} levels") from None
    except ValueError:
        raise DamageError(Reason.OUT_OF_RANGE, "a number of thousands of digits") from None
    _check_depth(document)
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DamageError(Reason.BAD_UTF8, "half of a surrogate pair is no text") from None
    return document


def _check_depth(document: object) -> None:
    level = [document]
    for _ in range(MAX_LEVELS):
        level = [inner for value in level if type(value) in _CONTAINERS for inner in _CONTAINERS[type(value)](value)]
    if any(type(value) in _CONTAINERS for value in level):
        raise DamageError(Reason.TOO_DEEP, f"nested more than {MAX_LEVELS} levels")


def json_text(value: object) -> str:
    """A value as JSON text without spaces, with the original order of members and digits of fractions."""
    match value:
        case Real():
            return str(value)
        case Constant():
            raise _wrong(value, "JSON")
        case str():
            return str(_escaped(value))
        case dict():
            return "{" + ",".join(f"{_escaped(name)}:{json_text(inner)}" for name, inner in value.items()) + "}"
        case list():
            return "[" + ",".join(map(json_text, value)) + "]"
        case _:
            return json.dumps(value)


def converter(type_: JsonType, budget: CellBudget, zone: ZoneInfo | None = None, guard: Guard | None = None) -> Convert:
    """A function from a value, not null, to the value of a column of this type; DamageError for other types.

    `zone`: of times without one; `guard`: changes this function and those of the values inside.
    """
    if type_.item is not None:
        item = converter(type_.item, budget, zone, guard)
        cells = cells_of_element(type_.arrow)

        def spend(values: Collection[object]) -> None:
            budget.spend(len(values) * cells)

        convert = _list(item, spend) if type_.kind == "list" else _map(item, spend)
    elif type_.kind == "struct":
        convert = _struct([(name, converter(inner, budget, zone, guard)) for name, inner in type_.fields])
    elif type_.kind == "timestamp":
        convert = partial(_timestamp, zone)
    else:
        convert = _SCALARS[type_.kind]
    return convert if guard is None else guard(convert)


def _or_null(nulled: list[str], column: str) -> Guard:
    """Makes NULL of the values that a function refuses, and notes the column of each."""

    def guard(convert: Convert) -> Convert:
        def converted(value: object) -> object:
            try:
                return convert(value)
            except DamageError as damage:
                if damage.reason is Reason.TOO_MANY_VALUES:
                    raise
                nulled.append(column)
                return None

        return converted

    return guard


def _of_type(kind: type, name: str) -> Convert:
    def convert(value: object) -> object:
        if type(value) is not kind:
            raise _wrong(value, name)
        return value

    return convert


def _struct(members: list[tuple[str, Convert]]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
        if type(value) is not dict:
            raise _wrong(value, "object")
        row: dict[str, Any] = {}
        for name, inner in members:
            member = value.get(name)
            if member is not None:
                try:
                    row[name] = inner(member)
                except DamageError as damage:
                    damage.path.append(name)
                    raise
        return row

    return convert


def _list(item: Convert, spend: Convert) -> Convert:
    def convert(values: Any) -> list[Any]:  # noqa: ANN401 - any JSON
        if type(values) is not list:
            raise _wrong(values, "array")
        spend(values)
        return [None if v is None else item(v) for v in values]

    return convert


def _map(item: Convert, spend: Convert) -> Convert:
    def convert(value: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - any JSON
        if type(value) is not dict:
            raise _wrong(value, "object")
        spend(value)
        return [(k, None if v is None else item(v)) for k, v in value.items()]

    return convert


def _integer(value: object) -> int:
    if type(value) is Real:
        value = _whole(value)
    if type(value) is not int:
        raise _wrong(value, "integer")
    if not LONG_RANGE[0] <= value <= LONG_RANGE[1]:
        raise DamageError(Reason.OUT_OF_RANGE, "an integer of more than 64 bits")
    return value


def _whole(written: Real) -> int | Real:
    """The integer of ``1.0`` or ``1e3``, as in JSON Schema; other numbers unchanged."""
    number = _REAL.fullmatch(written)
    if number is None or len(written) > MAX_DIGITS or abs(int(number[1] or 0)) > MAX_EXPONENT:
        raise DamageError(Reason.OUT_OF_RANGE, f"a number with an exponent beyond {MAX_EXPONENT}, or {MAX_DIGITS} digits")
    exact = Decimal(written)
    return int(exact) if exact == exact.to_integral_value() else written


def _number(value: object) -> float:
    if type(value) is not Real and type(value) is not int:
        raise _wrong(value, "number")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if math.isinf(result):
        raise DamageError(Reason.OUT_OF_RANGE, "a number beyond the greatest float64")
    return result


def _timestamp(naive: ZoneInfo | None, value: object) -> datetime:
    """A time in UTC; `naive`: the zone of one that names none."""
    written = _TIME.fullmatch(value) if type(value) is str else None
    if written is None:
        raise _wrong(value, _A_TIME)
    day, minutes, seconds, zone = written.groups()
    if zone is None:
        if naive is None:
            raise DamageError(
                Reason.MALFORMED, f"a date-time without a zone (RFC 3339 wants one): {NAIVE} says which one it is in"
            )
        zone = ""
    elif seconds is None:
        raise _wrong(value, _A_TIME)
    try:
        time = datetime.fromisoformat(f"{day}T{minutes}{(seconds or '')[:10]}{zone.upper()}")
        return (time if zone else time.replace(tzinfo=naive)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise DamageError(Reason.OUT_OF_RANGE, "a date-time that no calendar of the years 1 to 9999 has") from None


def _date(value: object) -> date:
    if type(value) is not str or _DATE.fullmatch(value) is None:
        if type(value) is str and _TIME.fullmatch(value) is not None:
            raise DamageError(Reason.MALFORMED, "a date-time instead of date")
        raise _wrong(value, "date")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise DamageError(Reason.OUT_OF_RANGE, "a date that no calendar of the years 1 to 9999 has") from None


_SCALARS: dict[str, Convert] = {
    "integer": _integer,
    "number": _number,
    "string": _of_type(str, "string"),
    "boolean": _of_type(bool, "boolean"),
    "date": _date,
    "text": json_text,
}
_NAMES = {
    dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "an integer", Real: "a number",
    Constant: "NaN or an infinity",
}  # fmt: skip


def _wrong(value: object, wanted: str) -> DamageError:
    name = "an empty string" if value == "" else _NAMES.get(type(value), "null")
    return DamageError(Reason.MALFORMED, f"{name} instead of {wanted}")
