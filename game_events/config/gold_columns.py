"""The shipped aggregate's columns by settings: column -> SQL aggregate over a key's rows of silver.

`count`, `sum`, `min` and `max` of one expression can be merged (old aggregate and new rows); if all columns are such, they are.
Anything else (averages, distinct counts, `first`, `last`, sums of sums) makes the aggregate be computed anew from all rows of
the entities that changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from game_events.extending import COLUMN_PATTERN, Measure, count, max_of, min_of, sum_of

_CALL = re.compile(r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*\((.*)\)\s*", re.DOTALL)
_MERGING = {"count": count, "sum": sum_of, "min": min_of, "max": max_of}
#: Other values in each run: gold could not be compared with a recompute.
_CHANGING = re.compile(
    r"\b(current_date\b|current_timestamp\b|localtimestamp\b|"  # these need no brackets
    r"(?:current_\w+|now|rand|randn|random|uuid|any_value|approx_\w+)(?=\s*\()|unix_timestamp(?=\s*\(\s*\)))",
    re.IGNORECASE,
)
#: Of rows in no order, unless the expression is nothing else: then it is by time.
_UNORDERED = re.compile(r"\b(first|last|first_value|last_value)\s*\(", re.IGNORECASE)
_QUERY = re.compile(r"\bselect\b|;|--|/\*", re.IGNORECASE)
_BY_TIME = {"first": "min_by", "last": "max_by"}
#: Makes `first` and `last` say the same whenever they are asked: of rows of one time the record's place in Kafka decides.
_PLACE = "_kafka_topic, _kafka_partition, _kafka_offset"


def problem(columns: Mapping[str, str], taken: tuple[str, ...]) -> str | None:
    """What is wrong with some columns, as far as can be told without Spark; None: nothing.

    Args:
        columns: column -> SQL.
        taken: names that others have: the key's and the entity's column.
    """
    lower = [name.casefold() for name in (*columns, *taken)]
    for name, sql in columns.items():
        if not re.fullmatch(COLUMN_PATTERN[1:-1], name):
            return f"{name!r} cannot name a column: it must match {COLUMN_PATTERN}"
        if lower.count(name.casefold()) > 1:
            return f"{name!r} is there twice, or is the key's or the entity's column"
        bare = _without_texts(sql)
        if not _balanced(bare) or re.search(r"['\"`]", bare) or not re.search(r"\w\s*\(", bare):
            return f"{name}: {sql!r} is no aggregate: write it like max(temperature)"
        if _QUERY.search(bare):
            return f"{name}: {sql!r} holds a query or a comment: one expression is wanted"
        changing = _CHANGING.search(bare) or (None if _is_by_time(sql) else _UNORDERED.search(bare))
        if changing:
            only = "; first(x) and last(x) have to be all there is" if _UNORDERED.match(changing[0]) else ""
            return f"{name}: {changing[1]} in {sql!r} may say something else of the same rows each time{only}"
    return None


def measures(columns: Mapping[str, str]) -> dict[str, Measure] | None:
    """Column -> measure, if every column can be merged; else None."""
    found = {name: _measure(sql) for name, sql in columns.items()}
    whole = {name: measure for name, measure in found.items() if measure is not None}
    return whole if len(whole) == len(found) else None


def expression(sql: str, time_column: str) -> str:
    """A column's SQL for Spark: `first(x)` and `last(x)` are those by time."""
    call = _whole_call(sql)
    if call is None or call[0] not in _BY_TIME:
        return sql
    return f"{_BY_TIME[call[0]]}({call[1]}, struct(`{time_column}`, {_PLACE})) FILTER (WHERE `{time_column}` IS NOT NULL)"


def simple_call(sql: str) -> tuple[str, str] | None:
    """(function, column) of an aggregate over one plain column or `*`; None for anything else."""
    call = _whole_call(sql)
    if call is None or not re.fullmatch(r"`?\w+`?|\*", call[1].strip()):
        return None
    return call[0], call[1].strip().strip("`")


def _is_by_time(sql: str) -> bool:
    call = _whole_call(sql)
    return call is not None and call[0] in _BY_TIME and not _UNORDERED.search(_without_texts(call[1]))


def _measure(sql: str) -> Measure | None:
    call = _whole_call(sql)
    if call is None or call[0] not in _MERGING:
        return None
    measure = _MERGING[call[0]]("1" if call[1].strip() == "*" else call[1].strip())
    return measure if measure.merges else None


def _whole_call(sql: str) -> tuple[str, str] | None:
    """(function in lower case, what stands in its brackets), if the expression is one call and nothing else."""
    found = _CALL.fullmatch(sql)
    if found is None or not _balanced(_without_texts(found[2])) or _splits(_without_texts(found[2])):
        return None
    return found[1].lower(), found[2]


def _splits(inner: str) -> bool:
    """Whether a comma at the top makes two arguments of it."""
    depth = 0
    for char in inner:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            return True
    return False


def _balanced(text: str) -> bool:
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return False
    return depth == 0


def _without_texts(sql: str) -> str:
    """Brackets and words in quotes mean nothing."""
    return re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", "x", sql)
