"""Parser of JSON documents, and their values as JSON text."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from game_events.decoding.core.reasons import DamageError, Reason

#: Levels of nesting at most.
MAX_LEVELS = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_escaped = json.encoder.encode_basestring


class Real(str):
    """A number with a fraction or an exponent as text: a float would round it."""

    __slots__ = ()


def parse(payload: bytes) -> object:
    """Parse one UTF-8 JSON document, nested up to `MAX_LEVELS`; `DAMAGE` for others.

    Returns Python's values, numbers with fractions as `Real`; the last value of a repeated name.
    """
    text = payload.decode()
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        ended = error.pos >= len(text.rstrip()) and not error.msg.startswith("Extra")
        reason = Reason.TRUNCATED if ended or error.msg.startswith("Unterminated string") else Reason.MALFORMED
        raise DamageError(reason, f"no JSON document: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise DamageError(Reason.TOO_DEEP, f"nested more than {MAX_LEVELS} levels") from None
    except ValueError:
        raise DamageError(Reason.OUT_OF_RANGE, "a number of thousands of digits") from None
    if text.count("{") + text.count("[") > MAX_LEVELS:
        _check_depth(document)
    if "\\u" in text and _SURROGATE.search(text):
        _check_surrogates(document)
    return document


def _constant(name: str) -> NoReturn:
    raise DamageError(Reason.MALFORMED, f"no JSON document: {name} is no JSON number")


_INNER: dict[type, Callable[[Any], Iterable[Any]]] = {dict: dict.values, list: iter}
_DECODER = json.JSONDecoder(parse_float=Real, parse_constant=_constant)


def _check_depth(document: object) -> None:
    level = [document]
    for _ in range(MAX_LEVELS):
        level = [inner for value in level if type(value) in _INNER for inner in _INNER[type(value)](value)]
    if any(type(value) in _INNER for value in level):
        raise DamageError(Reason.TOO_DEEP, f"nested more than {MAX_LEVELS} levels")


def _check_surrogates(document: object) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DamageError(Reason.BAD_UTF8, "half of a surrogate pair is no text") from None


def json_text(value: object) -> str:
    """A value as JSON text without spaces, with the original order of members and digits of fractions."""
    match value:
        case Real():
            return str(value)
        case str():
            return str(_escaped(value))
        case dict():
            return "{" + ",".join(f"{_escaped(name)}:{json_text(inner)}" for name, inner in value.items()) + "}"
        case list():
            return "[" + ",".join(map(json_text, value)) + "]"
        case _:
            return json.dumps(value)
