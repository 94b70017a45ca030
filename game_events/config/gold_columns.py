"""The setting `gold_columns` of the built-in aggregate: column -> SQL aggregate over a key's rows of silver.

If all columns are `count`, `sum`, `min` or `max` of one expression, new rows are merged with the old aggregate. Anything else
(averages, distinct counts, `first`, `last`) is recomputed from all rows of the keys that have new ones.
"""

import re
from collections.abc import Mapping

from game_events.column_names import folded
from game_events.config.sql_text import foreign_call, holds_query, reads_clock, without_texts
from game_events.extending import COLUMN_PATTERN, Measure, count, max_of, min_of, sum_of

_CALL = re.compile(r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*\((.*)\)\s*", re.DOTALL)
_MERGING = {"count": count, "sum": sum_of, "min": min_of, "max": max_of}
#: Not deterministic: gold could not be compared with a recompute.
_CHANGING = re.compile(r"\b(current_\w+|rand|randn|random|uuid|any_value|approx_\w+)(?=\s*\()", re.IGNORECASE)
#: Without an order of rows, unless the whole expression is such a call: then rows are ordered by time.
_UNORDERED = re.compile(r"\b(first|last|first_value|last_value)\s*\(", re.IGNORECASE)
#: Comments; windows, which see other keys' rows, of all games of a refresh; functions that make rows.
_REFUSED = re.compile(
    r";|--|/\*|\bover\s*\(|\b(?:(?:pos)?explode(?:_outer)?|inline(?:_outer)?|stack|json_tuple)\s*\(", re.IGNORECASE
)
_BRACKETS = re.compile(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
_BY_TIME = {"first": "min_by", "last": "max_by"}
#: Orders rows of the same time, so that `first` and `last` are deterministic.
_PLACE = "_kafka_topic, _kafka_partition, _kafka_offset"


def problem(columns: Mapping[str, str], taken: tuple[str, ...]) -> str | None:
    """The first error in some columns that can be found without Spark; `taken`: names of the key's and the entity's column."""
    lower = [folded(name) for name in (*columns, *taken)]
    for name, sql in columns.items():
        if not re.fullmatch(COLUMN_PATTERN[1:-1], name):
            return f"{name!r} cannot name a column: it must match {COLUMN_PATTERN}"
        if lower.count(folded(name)) > 1:
            return f"{name!r} is used twice, or is the key's or the entity's column"
        wrong = _wrong(sql)
        if wrong is not None:
            return f"{name}: {wrong}"
    return None


def _wrong(sql: str) -> str | None:
    """The first error in a column's expression."""
    bare = without_texts(sql)
    if _outside(sql) is None or re.search(r"['\"`]", bare) or not re.search(r"\w\s*\(", bare):
        return f"{sql!r} is no aggregate: write it like max(temperature)"
    if (called := foreign_call(sql)) is not None:
        return f"{called} in {sql!r} runs other code: a column is computed from a key's rows and nothing else"
    if holds_query(sql) or _REFUSED.search(bare):
        return f"{sql!r} holds a query or a comment, a window (OVER) or explode: it must be one value of a key"
    changing = _CHANGING.search(bare) or (None if _is_by_time(sql) else _UNORDERED.search(bare))
    if changing or reads_clock(sql):
        what = changing[1] if changing else "the clock"
        only = "; first(x) and last(x) must be the whole expression" if changing and _UNORDERED.match(changing[0]) else ""
        return f"{what} in {sql!r} is not deterministic{only}"
    return None


def measures(columns: Mapping[str, str]) -> dict[str, Measure] | None:
    """Column -> measure, if every column can be merged; else None."""
    found = {name: measure for name, sql in columns.items() if (measure := _measure(sql)) is not None}
    return found if len(found) == len(columns) else None


def expression(sql: str, time_column: str) -> str:
    """A column's SQL for Spark, with `first(x)` and `last(x)` by time."""
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
    return call is not None and call[0] in _BY_TIME and not _UNORDERED.search(without_texts(call[1]))


def _measure(sql: str) -> Measure | None:
    call = _whole_call(sql)
    if call is None or call[0] not in _MERGING:
        return None
    measure = _MERGING[call[0]]("1" if call[1].strip() == "*" else call[1].strip())
    return measure if measure.merges else None


def _whole_call(sql: str) -> tuple[str, str] | None:
    """(lower-case function, text in its brackets), if the whole expression is one call with one argument."""
    found = _CALL.fullmatch(sql)
    inside = _outside(found[2]) if found is not None else None
    return None if found is None or inside is None or "," in inside else (found[1].lower(), found[2])


def _outside(sql: str) -> str | None:
    """The SQL outside of brackets and quotes; None: brackets do not match."""
    bare = without_texts(sql)
    while (shorter := _BRACKETS.sub("", bare)) != bare:
        bare = shorter
    return None if re.search(r"[()\[\]{}]", bare) else bare
