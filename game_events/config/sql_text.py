"""SQL expressions that users write in settings, searched as texts: what is quoted in them, and what they must not do.

Spark would evaluate anything in them. Who writes settings is no author of code: an expression reads one row (or the rows of one
key), and neither other tables and files nor the environment of the process, with its secrets.
"""

import re
from collections.abc import Iterable

from game_events.column_names import folded

_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`"""
_BRACKET = re.compile(r"\s*\(")
_TEXT_OR_COMMENT = re.compile(rf"{_TEXT}|--[^\n]*|/\*.*?\*/", re.DOTALL)
_QUERY = re.compile(r"\bselect\b|\(\s*(?:from|table|with)\s+\w|\(\s*values\s*[(\w']", re.IGNORECASE)
#: Methods of Java, which read the process's environment or end it; functions that are named by a text.
_FOREIGN = re.compile(r"\b(reflect|try_reflect|java_method|identifier)\s*\(", re.IGNORECASE)
_CLOCK = re.compile(
    r"\b(?:current_timestamp|current_date|localtimestamp)\b|\b(?:now|curdate|current_time|unix_timestamp)\s*\(\s*\)",
    re.IGNORECASE,
)
_MOMENT = r"'\s*(?:now|today|yesterday|tomorrow)\b"
#: A text that becomes a time: `timestamp'now'`, `CAST('now' AS ...)`, `to_date('now')`, `'now'::timestamp`.
_CLOCK_TEXT = re.compile(
    rf"\b(?:date|timestamp\w*|(?:(?:try_)?cast|(?:try_)?to_(?:date|timestamp\w*))\s*\()\s*{_MOMENT}|{_MOMENT}\s*'\s*::",
    re.IGNORECASE,
)


def without_texts(sql: str) -> str:
    """The expression with `x` for each text and quoted name; a quoted name that is called is left, without its quotes."""
    return re.sub(_TEXT, _left, sql)


def without_texts_and_comments(sql: str) -> str:
    """As `without_texts`, with `x` for each comment, too."""
    return _TEXT_OR_COMMENT.sub(_left, sql)


def _left(found: re.Match[str]) -> str:
    called = found[0].startswith("`") and _BRACKET.match(found.string, found.end()) is not None
    return found[0].strip("`") if called else " x "


def holds_query(sql: str) -> bool:
    """Whether it reads more than the rows that it is evaluated for: other tables, or files."""
    return bool(_QUERY.search(without_texts_and_comments(sql)))


def foreign_call(sql: str) -> str | None:
    """The function of an expression that runs any other code; None if there is none."""
    found = _FOREIGN.search(without_texts_and_comments(sql))
    return None if found is None else found[1]


def reads_clock(sql: str) -> bool:
    """Whether the result depends on when the expression is evaluated."""
    return bool(_CLOCK.search(without_texts_and_comments(sql)) or _CLOCK_TEXT.search(sql))


def columns_in(sql: str, columns: Iterable[str]) -> set[str]:
    """The columns that an expression may use: those whose names it has; for a `*`, all of them."""
    found = words(sql)
    return {name for name in columns if "*" in sql or words(name) <= found}


def words(sql: str) -> set[str]:
    """Its words, as Spark compares names."""
    return set(re.findall(r"\w+", folded(sql)))
