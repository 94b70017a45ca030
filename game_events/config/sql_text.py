"""SQL expressions that users write in settings, searched as texts: what is quoted in them, and whether they read the clock."""

import re

_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`"""
_TEXT_OR_COMMENT = re.compile(rf"{_TEXT}|--[^\n]*|/\*.*?\*/", re.DOTALL)
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
    """The expression with `x` for each text and quoted name."""
    return re.sub(_TEXT, " x ", sql)


def without_texts_and_comments(sql: str) -> str:
    """As `without_texts`, with `x` for each comment, too."""
    return _TEXT_OR_COMMENT.sub(" x ", sql)


def reads_clock(sql: str) -> bool:
    """Whether the result depends on when the expression is evaluated."""
    return bool(_CLOCK.search(without_texts_and_comments(sql)) or _CLOCK_TEXT.search(sql))
