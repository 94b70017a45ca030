"""Decorators for extensions: silver transformations and gold aggregates as plain functions.

They are collected (`config.extensions`) from the modules and .py files of the setting `extensions`. A decorator returns the
function unchanged, so that it can be tested. See docs/extending.md.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from game_events.errors import ConfigurationError, folded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Transform = Callable[[DataFrame], DataFrame]

__all__ = [
    "GoldAggregate",
    "Measure",
    "SilverTransformation",
    "count",
    "gold_aggregate",
    "max_of",
    "min_of",
    "silver_transformation",
    "sum_of",
]
#: As SQL reads it: behind blanks and comments.
_DISTINCT = re.compile(r"(\s|/\*.*?\*/|--[^\n]*\n)*distinct\b", re.IGNORECASE | re.DOTALL)
F = TypeVar("F", bound=Callable[..., Any])
#: Attribute of a decorated function that holds its declaration.
DECLARATION = "__game_events__"
#: The built-in aggregate; its tables are `gold_{game}_player_agg`.
PLAYER_AGG = "player_agg"
#: `where` of the built-in aggregate, in messages.
BUILT_IN = "built-in"
#: Becomes part of table and asset names.
NAME_PATTERN = r"^[a-z][a-z0-9_]{0,62}$"
#: A user-defined column; names of the pipeline's own columns begin with an underscore.
COLUMN_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"


@dataclass(frozen=True)
class Measure:
    """An aggregate column: SQL aggregate of an SQL expression over silver's columns."""

    function: Literal["count", "sum", "min", "max"]
    of: str

    @property
    def merges(self) -> bool:
        """Whether partial results can be merged: a count or sum of DISTINCT values cannot, a minimum or maximum can."""
        return self.function in ("min", "max") or _DISTINCT.match(self.of) is None

    @property
    def sql(self) -> str:
        """The aggregate over silver's rows."""
        return f"{self.function}({self.of})"

    def merged(self, column: str) -> str:
        """The aggregate over old and new values of its own column."""
        return f"{'sum' if self.function == 'count' else self.function}(`{column}`)"


def count(of: str = "1") -> Measure:
    """Number of rows for which an SQL expression is not NULL; default: of all rows."""
    return Measure("count", of)


def sum_of(of: str) -> Measure:
    """Sum of a column or SQL expression; NULLs are left out. Sums of floating point numbers depend on the order of rows."""
    return Measure("sum", of)


def min_of(of: str) -> Measure:
    """Smallest value of a column or SQL expression."""
    return Measure("min", of)


def max_of(of: str) -> Measure:
    """Largest value of a column or SQL expression."""
    return Measure("max", of)


@dataclass(frozen=True)
class SilverTransformation:
    """A declared function, as `silver_transformation` says; no `games`: every game; no `types`: every message type.

    `where`: its file and line.
    """

    name: str
    function: Transform
    games: frozenset[str]
    rows: Literal["one_to_one", "any"]
    where: str
    types: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"silver transformation {self.name} ({self.where})"

    def applies_to(self, game: str) -> bool:
        """Whether it gets rows of a game."""
        return not self.games or game in self.games


@dataclass(frozen=True)
class GoldAggregate:
    """A declared aggregate: one table per game, computed from its silver table.

    Attributes:
        name, keys, mode, games, interval_s, description, types: as `gold_aggregate` says; no games, no types: all of them.
        mode: also `by_key`: `function` gives exactly one row for each key, from the rows of that key alone; a refresh gives it
            all rows of the keys that have new ones.
        measures: column -> measure, for `merge`.
        function: for `by_key` and `recompute`.
        definition: hash of the declaration; a change recomputes the tables from all of silver.
        where: file and line of the declaration.
        asset_name: name of the Dagster asset by the setting `names`, if another one.
    """

    name: str
    mode: Literal["merge", "by_key", "recompute"]
    keys: tuple[str, ...] = ()
    measures: Mapping[str, Measure] = field(default_factory=dict)
    function: Transform | None = None
    games: frozenset[str] = frozenset()
    interval_s: float | None = None
    description: str = ""
    definition: str = ""
    where: str = BUILT_IN
    asset_name: str = ""
    types: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"gold aggregate {self.name} ({self.where})"

    @property
    def layer(self) -> str:
        """Its name in reports and in the table `progress`."""
        return "gold" if self.name == PLAYER_AGG else f"gold:{self.name}"

    @property
    def asset(self) -> str:
        """Name of its Dagster asset."""
        return self.asset_name or f"gold_{self.name}"

    def applies_to(self, game: str) -> bool:
        """Whether a game has its table."""
        return not self.games or game in self.games


def silver_transformation(
    function: F | None = None,
    *,
    games: Iterable[str] | None = None,
    types: Iterable[str] | None = None,
    rows: Literal["one_to_one", "any"] = "one_to_one",
) -> Any:  # noqa: ANN401 - the function, or the decorator
    """Declare a function `DataFrame -> DataFrame` that transforms rows between bronze and silver.

    Several are applied in the order of the file. It may add, change and drop columns of the message; it must keep the entity
    column and the pipeline's own columns (names that begin with an underscore).

    `games`: only these; None: every game, which costs no extra pass over the rows. `rows`: `one_to_one`: one output row per
    input row, checked by reconciliation; `any`: rows may be exploded or dropped, the games are not reconciled. `types`: it gets
    only rows of these message types, by their full names or the last parts of these; the others pass by it.

    Raises:
        ConfigurationError: invalid declaration; names the file and line.
    """

    def declare(given: F) -> F:
        where = _where(given)
        if rows not in ("one_to_one", "any"):
            raise ConfigurationError(f"{where}: rows={rows!r} of {given.__name__}: it must be 'one_to_one' or 'any'")
        only = _some(games, "games", where)
        declared = SilverTransformation(given.__name__, given, only, rows, where, _some(types, "types", where))
        setattr(given, DECLARATION, declared)
        return given

    return declare if function is None else declare(function)


def gold_aggregate(
    name: str,
    *,
    keys: Iterable[str] = (),
    mode: Literal["merge", "recompute"] = "merge",
    games: Iterable[str] | None = None,
    types: Iterable[str] | None = None,
    interval_s: float | None = None,
    description: str | None = None,
) -> Callable[[F], F]:
    """Declare a gold aggregate: tables `gold_{game}_{name}`, all games in one Spark job, each replaced atomically.

    With `mode="merge"` the function has no arguments and returns a dictionary column -> measure. With `mode="recompute"` it
    gets the silver rows of the changed games (with a column `_game`) and returns the rows of gold, with `_game`; it must treat
    each game separately, as it never gets all of them.

    Args:
        name: lower case letters, digits, underscores; the Dagster asset is `gold_{name}`.
        keys: for `merge`: columns of silver to group by, none: one row for each game; for `recompute`: columns that its rows
            must have.
        mode: `merge`: new rows are aggregated and merged with the old aggregate; `recompute`: from all of silver.
        games: only these; None: every game.
        types: only rows of these message types, by their full names or the last parts of these; None: every type.
        interval_s: refresh at most once in so many seconds; None: with every run.
        description: default: the function's docstring.

    Raises:
        ConfigurationError: invalid declaration; names the file and line.
    """

    def declare(given: F) -> F:
        where = _where(given)
        if not re.fullmatch(NAME_PATTERN[1:-1], name):
            raise ConfigurationError(f"{where}: {name!r} cannot name a gold aggregate: it must match {NAME_PATTERN}")
        if mode not in ("merge", "recompute"):
            raise ConfigurationError(f"{where}: mode={mode!r} of {name}: it must be 'merge' or 'recompute'")
        if interval_s is not None and interval_s <= 0:
            raise ConfigurationError(f"{where}: interval_s={interval_s!r} of {name}: it must be above 0, or None")
        columns = _words(keys, "keys", where)
        if mode == "merge" and "_game" in columns:
            raise ConfigurationError(f"{where}: keys of {name}: leave `_game` out, as each game has a table of its own")
        measures = _measures(given, name, columns, where) if mode == "merge" else {}
        function = given if mode == "recompute" else None
        about = description if description is not None else inspect.getdoc(given) or ""
        of_types = _some(types, "types", where)
        made = GoldAggregate(
            name,
            mode,
            columns,
            measures,
            function,
            games=_some(games, "games", where),
            interval_s=interval_s,
            description=about,
            definition=_definition(mode, columns, measures, given, of_types),
            where=where,
            types=of_types,
        )
        setattr(given, DECLARATION, made)
        return given

    return declare


def _where(function: Callable[..., Any]) -> str:
    if not inspect.isfunction(function):
        raise ConfigurationError(f"{function!r} cannot be declared: put the decorator on a plain function")
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _words(given: Iterable[str], what: str, where: str) -> tuple[str, ...]:
    words = (given,) if isinstance(given, str) else tuple(given)
    if any(not isinstance(word, str) or not word for word in words) or len(set(map(folded, words))) != len(words):
        raise ConfigurationError(f"{where}: {what}={words!r}: must be distinct names")
    return words


def _some(given: Iterable[str] | None, what: str, where: str) -> frozenset[str]:
    """The games, or types, of a declaration; none: all of them."""
    if given is None:
        return frozenset()
    names = _words(given, what, where)
    if not names:
        raise ConfigurationError(f"{where}: {what} is empty: name some, or leave it out for all of them")
    return frozenset(names)


def _measures(function: Callable[..., Any], name: str, keys: tuple[str, ...], where: str) -> dict[str, Measure]:
    try:
        measures = function()
    except Exception as error:
        raise ConfigurationError(f"{where}: {function.__name__}() of gold aggregate {name} raised {error!r}") from error
    if not isinstance(measures, dict) or not measures or not all(isinstance(m, Measure) for m in measures.values()):
        raise ConfigurationError(
            f"{where}: {function.__name__}() of gold aggregate {name} must give a dictionary column -> count(), sum_of(...), "
            f"min_of(...) or max_of(...); it gave {measures!r}. What does not merge needs mode='recompute'"
        )
    apart = [column for column, measure in measures.items() if not measure.merges]
    if apart:
        raise ConfigurationError(
            f"{where}: columns {', '.join(map(repr, apart))} of gold aggregate {name} count or sum DISTINCT values, which "
            "cannot be merged: each refresh would count a value again. It needs mode='recompute'"
        )
    problem = problem_with_columns(measures, keys)
    if problem is not None:
        raise ConfigurationError(f"{where}: columns of gold aggregate {name}: {problem}")
    return measures


def problem_with_columns(columns: Iterable[object], keys: Iterable[str]) -> str | None:
    """The first column that an aggregate cannot have beside its keys, however it is declared."""
    taken = set(map(folded, keys))
    for column in columns:
        if not isinstance(column, str) or not re.fullmatch(COLUMN_PATTERN[1:-1], column):
            return f"{column!r} cannot name a column: it must match {COLUMN_PATTERN}"
        if folded(column) in taken:
            return f"{column!r} is used twice, the key's and the entity's column included"
        taken.add(folded(column))
    return None


def _definition(
    mode: str, keys: tuple[str, ...], measures: Mapping[str, Measure], function: Callable[..., Any], types: frozenset[str]
) -> str:
    """Hash of an aggregate's declaration, without comments, layout, docstrings and called functions."""
    body = ""
    if mode == "recompute":
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        if isinstance(tree, ast.FunctionDef):
            tree.decorator_list = []
            if ast.get_docstring(tree) is not None:
                tree.body = tree.body[1:]
        body = ast.dump(tree)
    parts = [mode, keys, [(column, m.function, m.of) for column, m in measures.items()], body]
    parts += [sorted(types)] if types else []
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
