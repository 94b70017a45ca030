"""Output as a page shows it, against what was printed: the same words in the same order; numbers and ids are examples."""

from __future__ import annotations

import re

#: `...` in a page: whatever stands there, in its line; alone in a line: any lines.
ELLIPSIS = "..."
#: Borders of tables, which are as wide as what stands in them.
_BORDERS = re.compile(r"[\u2500-\u257f]+")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def missing(shown: str, printed: str) -> str:
    """The first part of `shown` that was not printed, or was not in its place; empty if all of it was."""
    rest = _plain(printed)
    for part in re.split(rf"^\s*{re.escape(ELLIPSIS)}\s*$", shown, flags=re.MULTILINE):
        pattern = r"\s+".join(_pattern(word) for word in _plain(part).split())
        found = re.search(pattern, rest)
        if not found:
            return part.strip()
        rest = rest[found.end() :]
    return ""


def _plain(text: str) -> str:
    return _BORDERS.sub(" ", _COLORS.sub("", text))


def _pattern(word: str) -> str:
    """A word for a regular expression: what holds a digit or names somebody is an example."""
    if word == ELLIPSIS:
        return r".*?"
    if re.search(r"\d|@", word) and ELLIPSIS not in word:
        return r"\S+"
    return re.escape(word).replace(re.escape(ELLIPSIS), r"\S*")
