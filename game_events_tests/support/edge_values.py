"""A table with every type of column and the values at its edges, written as the project writes, and predicates on them.

Each value is in a file of its own (lowest = highest), and in files with others. Readers leave out files and row groups by the
bounds of these; the tests compare what they find with what the same reader finds when it reads everything.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest

from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data import staging
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.data.staging import StagedFile, StagedWriter, copy_file, name_of_copy, statistics_text
from game_events.lakehouse.maintenance import join_files
from game_events.lakehouse.tables import Lakehouse, Table, files_of, paths, table_id

TIME, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
SCHEMA = pa.schema(
    [
        ("_batch", pa.int64()),
        ("s", pa.string()),
        ("t", TIME),
        ("local", LOCAL),
        ("d", pa.date32()),
        ("i", pa.int64()),
        ("i32", pa.int32()),
        ("u", pa.decimal128(20, 0)),
        ("price", pa.decimal128(9, 2)),
        ("f", pa.float64()),
        ("f32", pa.float32()),
        ("b", pa.bool_()),
        ("bin", pa.binary()),
        ("st", pa.struct([("x", pa.int64()), ("f", pa.float64()), ("s", pa.string())])),
        ("l", pa.list_(pa.float64())),
        ("m", pa.map_(pa.string(), pa.struct([("f", pa.float32())]))),
    ]
)
_TIMES = [
    datetime(1, 1, 1),
    datetime(1582, 10, 4, 23, 59, 59, 999_999),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(2024, 1, 1, 0, 0, 0, 1),
    datetime(2024, 1, 1, 0, 0, 0, 999),
    datetime(2024, 1, 1, 12, 0, 0, 298_677),
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
]
_FLOATS = [float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 1.5]
_TEXTS = ["", "\0", *("a" * n for n in (1, 31, 32, 33, 64, 65)), "e\u0301", "\uffff", "\U0001f600" * 32]
_TEXTS += ["\U00020bb7\u91ce", "\U0002f800", "\U0010ffff", "a\U0010ffff" * 10, "'\"\\\u2028"]
#: Column, or member of a struct -> its values, besides NULL.
VALUES: dict[str, Sequence[Any]] = {
    "s": _TEXTS,
    "t": [time.replace(tzinfo=UTC) for time in _TIMES],
    "local": _TIMES,
    "d": [date(1, 1, 1), date(1582, 10, 15), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
    "i": [-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1],
    "i32": [-(2**31), 0, 2**31 - 1],
    "u": [Decimal(0), Decimal(2**64 - 1), Decimal(10**19)],
    "price": [Decimal("-9999999.99"), Decimal("0.01"), Decimal("9999999.99")],
    "f": [*_FLOATS, 5e-324, -1.7976931348623157e308],
    "f32": [float("nan"), -0.0, 1.5],
    "b": [True, False],
    "bin": [b"", b"\0", b"\xff"],
    "st.x": [-(2**63), 0, 2**63 - 1],
    "st.f": [float("nan"), -0.0, 1.5],
    "st.s": ["", "\U00020bb7\u91ce", "\U0010ffff"],
}
#: Digits after the point -> the decimal type with these.
_PRECISIONS: dict[Any, str] = {0: "20, 0", -2: "9, 2", -18: "38, 18"}
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Predicate:
    """A comparison of a column with a value.

    `op`: one of `COMPARISONS`; "in": with either of `value`, a pair; "null", "not null".
    """

    column: str
    op: str
    value: Any = None

    def sql(self, literal: Callable[[Any], str], member: str = "{0}['{1}']") -> str:
        """SQL of a dialect, with its literals and its way to name a member of a struct."""
        column = member.format(*self.column.split(".")) if "." in self.column else self.column
        if self.op in {"null", "not null"}:
            return f"{column} IS {self.op.upper()}"
        if self.op == "in":
            return f"{column} IN ({', '.join(map(literal, self.value))})"
        return f"{column} {self.op} {literal(self.value)}"

    def without_in(self, literal: Callable[[Any], str], member: str = "{0}['{1}']") -> str:
        """As `sql`, with `OR` for `IN`."""
        if self.op != "in":
            return self.sql(literal, member)
        return " OR ".join(Predicate(self.column, "=", value).sql(literal, member) for value in self.value)

    def of(self, column: Any, value: Callable[[Any], Any]) -> Any:
        """The predicate of a column's expression in Python; `value` makes literals."""
        if self.op == "in":
            first, second = map(value, self.value)
            return (column == first) | (column == second)
        operators = {"=": "__eq__", "<>": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
        return getattr(column, operators[self.op])(value(self.value))


@dataclass(frozen=True)
class Literals:
    """Literals of a dialect of SQL: `{}` is the value; of texts and bytes their hexadecimal digits in UTF-8."""

    text: str
    binary: str
    time: str
    local: str
    between: str = " "

    def __call__(self, value: Any) -> str:
        """A value as SQL."""
        writers: dict[type, Callable[[Any], str]] = {
            str: lambda v: self.text.format(v.encode().hex()),
            bytes: lambda v: self.binary.format(v.hex()),
            float: "CAST('{}' AS DOUBLE)".format,
            int: "CAST('{}' AS BIGINT)".format,
            bool: lambda v: str(v).upper(),
            datetime: lambda v: (self.time if v.tzinfo else self.local).format(
                v.replace(tzinfo=None).isoformat(self.between, "microseconds")
            ),
            date: "DATE '{}'".format,
            Decimal: lambda v: f"CAST('{v:f}' AS DECIMAL({_PRECISIONS[v.as_tuple().exponent]}))",
        }
        return writers[type(value)](value)


def predicates() -> list[Predicate]:
    """Each comparison with each value, pairs of neighbours, and NULL."""
    found = [Predicate(column, op, value) for column, values in VALUES.items() for value in values for op in COMPARISONS]
    pairs = [Predicate(c, "in", pair) for c, values in VALUES.items() for pair in itertools.pairwise(values)]
    return found + pairs + [Predicate(column, op) for column in VALUES for op in ("null", "not null")]


def rows() -> Iterator[list[dict[str, Any]]]:
    """The rows of each file; `_batch` is the number of the row."""
    drawn, number = np.random.default_rng(7), itertools.count(1)

    def row(**given: Any) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(SCHEMA.names) | {"_batch": next(number)}
        for name, value in given.items():
            first, _, inner = name.partition("__")
            found[first] = {"x": None, "f": None, "s": None, **(found[first] or {}), inner: value} if inner else value
        return found

    for column, values in VALUES.items():
        yield from ([row(**{column.replace(".", "__"): value})] for value in values)
    yield [row(l=_FLOATS, m=[("nan", {"f": float("nan")}), ("zero", {"f": -0.0})])]
    for _ in range(12):
        # Some values, and NULL in every sixth place.
        yield [
            row(**{c.replace(".", "__"): v[drawn.integers(len(v))] for c, v in VALUES.items() if drawn.random() > 1 / 6})
            for _ in range(drawn.integers(2, 6))
        ]


def _staged(table: Table, parts: Iterator[list[dict[str, Any]]], *, short_lived: bool = False) -> list[StagedFile]:
    """A file for each part, in row groups of two rows."""
    files = []
    for part in parts:
        writer = StagedWriter(table, SCHEMA, group_rows=2, short_lived=short_lived)
        writer.write(pa.Table.from_pylist(part, schema=SCHEMA))
        files += writer.close()
    return files


def committed(table: Table, files: Sequence[StagedFile], schema: pa.Schema = SCHEMA, **options: Any) -> Table:
    """A commit of files."""
    commit(Commit(table, schema, files, {}, {}, table_id(table.open()), **options))
    return table


def written(lakehouse: Lakehouse) -> Table:
    """The table as runs append to it."""
    table = lakehouse.silver("edges")
    return committed(table, _staged(table, rows()))


def compacted(lakehouse: Lakehouse) -> Table:
    """The same rows after a compaction of neighbouring files."""
    table = written(lakehouse)
    files = [unquote(file.path) for file in sorted(files_of(handle_of(table)), key=lambda file: file.lowest_batch or 0)]
    for begin in range(0, len(files), 3):
        join_files(table, handle_of(table), files[begin : begin + 3])
    return table


def merged(lakehouse: Lakehouse) -> Table:
    """The same rows as a refresh of gold carries them over, from the old files to a new one."""
    old, table = written(lakehouse), lakehouse.gold("edges")
    files = []
    for path in paths(handle_of(old)):
        writer = StagedWriter(table, SCHEMA, short_lived=True)
        for part in read_parts(old, SCHEMA, [path]):
            writer.write(part)
        files += writer.close()
    return committed(table, files)


def copied(lakehouse: Lakehouse) -> Table:
    """The same rows as the unified table has them: copies of files, in a partition."""
    source, table = written(lakehouse), lakehouse.table("gold_unified_player_agg")
    names = {path: name_of_copy(path, "game_name=edges") for path in paths(handle_of(source))}
    files = [copy_file(lakehouse, source, path, table, name) for path, name in names.items()]
    return committed(table, files, SCHEMA.append(pa.field("game_name", pa.string())), partition_by=("game_name",))


def handle_of(table: Table) -> Any:
    """A handle on the newest version of a table that is there."""
    handle = table.open()
    assert handle is not None
    return handle


@contextmanager
def earlier_release() -> Iterator[None]:
    """Within the block files are written as earlier releases wrote them: see `staging`."""

    def escaped(*given: Any, **more: Any) -> str:
        return json.dumps(json.loads(statistics_text(*given, **more)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "floating_columns", lambda _: frozenset())
        patch.setattr(staging, "new_name", lambda codec, _mark="": f"part-{uuid.uuid4()}.{codec}.parquet")
        patch.setattr(staging, "statistics_text", escaped)
        patch.setattr(staging, "statistics_text", escaped)
        yield
