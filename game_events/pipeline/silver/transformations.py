"""User-defined transformations of silver's rows, as steps of its one Spark job.

Games with the same ones share a branch of the plan, and so do message types where some are named; Spark reads the rows once for
each branch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.decoding.columns import type_name
from game_events.errors import QUOTED, ExtensionError, GameEventsError, UserCodeError, first_line, folded
from game_events.extending import SilverTransformation
from game_events.lakehouse.storage import explain
from game_events.rules import is_named
from game_events.spark.connect import is_session_lost
from game_events.spark.schemas import arrow_schema, of_types, quoted, require_types, united

#: A row's name before a function, in an array: functions over all columns of texts leave it alone.
_NAME_BEFORE = "_name_before"


def transformed(
    rows: DataFrame,
    source: pa.Schema,
    entity: str,
    transformations: Sequence[SilverTransformation],
    compared: Sequence[str] = (),
) -> tuple[DataFrame, pa.Schema]:
    """Rows with the columns `source`, all transformations applied in order, and their columns; `entity` names the game.

    `compared`: further columns that must stay as they are, as duplicates are found by them.

    ExtensionError: a function raised, or lost a column that the pipeline needs, or is for message types, and the rows are of
    none: names the function, its file and line.
    """
    if not transformations:
        return rows, source
    if of_types_only := [transformation for transformation in transformations if transformation.types]:
        require_types(source.names, of_types_only)
        groups = by_game_and_type(transformations, entity)
        branches = [_applied(rows.where(which), some, source, entity, compared) for some, which in groups]
        return _together(branches, source, transformations)
    of_games = _named_games(transformations)
    named = sorted(chain.from_iterable(of_games.values()))
    name = F.col(quoted(entity))
    branches = [_applied(rows.where(name.isin(games)), chosen, source, entity, compared) for chosen, games in of_games.items()]
    rest = rows.where(~F.coalesce(name.isin(named), F.lit(False))) if named else rows
    for_all = [transformation for transformation in transformations if not transformation.games]
    branches.append(_applied(rest, for_all, source, entity, compared))
    return _together(branches, source, transformations)


def _together(
    branches: Sequence[DataFrame], source: pa.Schema, transformations: Sequence[SilverTransformation]
) -> tuple[DataFrame, pa.Schema]:
    names = "; ".join(map(str, transformations))
    _check_same_types([arrow_schema(branch, names, source) for branch in branches], names)
    whole = united(branches)
    schema = arrow_schema(whole, names, source)
    return whole.select(*(F.col(quoted(c)) for c in schema.names)), schema


def _named_games(transformations: Sequence[SilverTransformation]) -> Mapping[tuple[SilverTransformation, ...], list[str]]:
    """The transformations of each game that one of them names -> all games with these."""
    groups = defaultdict[tuple[SilverTransformation, ...], list[str]](list)
    for game in sorted({game for transformation in transformations for game in transformation.games}):
        groups[tuple(transformation for transformation in transformations if transformation.applies_to(game))].append(game)
    return groups


def _applied(
    rows: DataFrame, chosen: Sequence[SilverTransformation], source: pa.Schema, entity: str, compared: Sequence[str]
) -> DataFrame:
    """The rows after these transformations, each of which must keep the pipeline's own columns and the game's name."""
    values = [f"coalesce(string({quoted(entity)}), '')", *(f"string({quoted(column)})" for column in compared)]
    name = f"array({', '.join(values)})"
    for transformation in chosen:
        after = _called(transformation, rows.withColumn(_NAME_BEFORE, F.expr(name)))
        own = [column for column in source.names if column.startswith("_") or column in (entity, *compared)]
        _require_own(transformation, own, dict(rows.dtypes), dict(after.dtypes))
        if _NAME_BEFORE in after.columns:
            after = _with_same_name(transformation, after, name, entity, compared)
        rows = after.drop(_NAME_BEFORE)
    return rows


def _called(transformation: SilverTransformation, rows: DataFrame) -> DataFrame:
    try:
        after = transformation.function(rows)
        if isinstance(after, DataFrame):
            after.dtypes  # noqa: B018 - asked for, so that it is analyzed
    except Exception as error:
        if is_session_lost(error):
            raise
        raise ExtensionError(f"{transformation} raised {type(error).__name__}.{QUOTED}{first_line(error)}") from error
    if not isinstance(after, DataFrame):
        raise ExtensionError(f"{transformation} must give a DataFrame; it gave {type(after).__name__}")
    return after


def _require_own(
    transformation: SilverTransformation, own: Sequence[str], before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    lost = [column for column in own if after.get(column) != before.get(column)]
    added = [column for column in after if column.startswith("_") and column not in (*own, _NAME_BEFORE)]
    if lost or added:
        raise ExtensionError(
            f"{transformation} must keep the column that names the game and the pipeline's own ones as they are"
            + (f"; it lost or changed {', '.join(lost)}" if lost else "")
            + (f"; names that begin with an underscore are the pipeline's: {', '.join(added)}" if added else "")
            + ". Add columns with withColumn, or keep the others with select('*', ...)"
        )


def _with_same_name(
    transformation: SilverTransformation, rows: DataFrame, name: str, entity: str, compared: Sequence[str]
) -> DataFrame:
    """The rows, which raise if the function has changed the value that names the game, or one that tells duplicates.

    Other passes find the row by bronze's name: it would be lost in some, and twice in others.
    """
    names = list(map(folded, rows.columns))
    if names.count(folded(entity)) != 1:
        return rows
    more = f", or of {', '.join(compared)}, by which GAME_EVENTS_DEDUPLICATE compares rows" if compared else ""
    refusal = F.raise_error(f"{transformation} changed the value of {entity}, which names the game{more}")
    same = F.col(_NAME_BEFORE).eqNullSafe(F.expr(name))
    guarded = F.when(same, F.col(quoted(entity))).otherwise(refusal).alias(entity)
    if len(set(names)) < len(names):  # refused below, unless another function removes it
        return rows.withColumn(entity, guarded)
    # `withColumn` would also replace columns whose names only look alike (Spark's `equalsIgnoreCase`).
    return rows.select(*(guarded if folded(c) == folded(entity) else F.col(quoted(c)) for c in rows.columns))


def _check_same_types(schemas: Sequence[pa.Schema], names: str) -> None:
    """Raise if a column has two types: Spark would cast silently, a number to a text, too."""
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for item in schema:
            other = types.setdefault(item.name, item.type)
            if other != item.type:
                raise ExtensionError(
                    f"{names}: the column {item.name} is {type_name(other)} for some games and {type_name(item.type)} for "
                    "others: cast it, or give it two names"
                )


def run_time_failure(code: object, error: Exception, root: str) -> GameEventsError:
    """The error to raise if a Spark job that runs user code fails: of the object store below `root`, or of this code."""
    return explain(error, root) or UserCodeError(f"{code} failed while running, nothing was committed.{QUOTED}{_cause(error)}")


def _cause(error: Exception) -> str:
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(error, Py4JJavaError):
        lines = lines[1:]  # without the name of the call
    raised = [line for line in lines if _RAISED.match(line) and "Traceback" not in line]
    if raised:  # of a Python function, the last line of its traceback
        return raised[-1 if "Traceback" in text else 0]
    return lines[0] if lines else type(error).__name__


#: A line with an exception, as Python and Java write it.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")


def by_game_and_type(
    transformations: Sequence[SilverTransformation], entity: str
) -> Iterator[tuple[Sequence[SilverTransformation], Column]]:
    """The transformations of each group of rows, and which rows these are: by game and message type; each row is in one.

    A row belongs to the longest name of a type that it has, with all transformations that name a part of it.
    """
    games = sorted({game for transformation in transformations for game in transformation.games})
    types = sorted({name for transformation in transformations for name in transformation.types})
    name = F.col(quoted(entity))
    of_game = {game: F.coalesce(name == game, F.lit(False)) for game in games}
    of_other_games = ~F.coalesce(name.isin(games), F.lit(False)) if games else F.lit(True)
    groups = defaultdict[tuple[SilverTransformation, ...], list[Column]](list)
    for message_type in (*types, None):
        longer = [other for other in types if message_type is None or other.endswith(f".{message_type}")]
        of_type = of_types([message_type]) if message_type is not None else F.lit(True)
        of_type = of_type & ~of_types(longer) if longer else of_type
        for game in (*games, None):
            chosen = tuple(t for t in transformations if _has(t.games, game) and _has_type(t, message_type))
            groups[chosen].append(of_type & (of_other_games if game is None else of_game[game]))
    for chosen, conditions in groups.items():
        yield chosen, reduce(Column.__or__, conditions)


def _has(games: Collection[str], game: str | None) -> bool:
    """Whether a transformation of these games is one of a game; None: of any that no transformation names."""
    return not games or game in games


def _has_type(transformation: SilverTransformation, message_type: str | None) -> bool:
    names = transformation.types
    return not names or (message_type is not None and any(is_named(message_type, name) for name in names))
