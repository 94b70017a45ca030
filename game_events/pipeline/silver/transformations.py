"""User-defined transformations of silver, as steps of silver's one Spark job.

Games with the same transformations share a branch of the plan; Spark reads the rows once for each branch.
"""

import re
from collections.abc import Sequence

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.column_names import folded
from game_events.decoding.core.column_types import type_name
from game_events.errors import QUOTED, ExtensionError, GameEventsError, UserCodeError, first_line
from game_events.extending import SilverTransformation
from game_events.lakehouse.storage.errors import explain
from game_events.spark.connect import is_session_lost
from game_events.spark.schemas import arrow_schema, quoted, united

#: A row's name before a function, in an array: functions over all columns of texts leave it alone.
_NAME_BEFORE = "_name_before"


def transformed(
    rows: DataFrame, source: pa.Schema, entity: str, transformations: Sequence[SilverTransformation]
) -> tuple[DataFrame, pa.Schema]:
    """Rows with the columns `source`, all transformations applied in order, and their columns; `entity` names the game.

    Raises:
        ExtensionError: a function raised, or lost a column that the pipeline needs: names the function, its file and line.
    """
    if not transformations:
        return rows, source
    named = sorted({game for t in transformations for game in t.games})
    groups: dict[tuple[SilverTransformation, ...], list[str]] = {}
    for game in named:
        groups.setdefault(tuple(t for t in transformations if t.applies_to(game)), []).append(game)
    name = F.col(quoted(entity))
    branches = [_applied(rows.where(name.isin(games)), chosen, source, entity) for chosen, games in groups.items()]
    rest = rows.where(~F.coalesce(name.isin(named), F.lit(False))) if named else rows
    branches.append(_applied(rest, [t for t in transformations if not t.games], source, entity))
    names = "; ".join(map(str, transformations))
    schemas = [arrow_schema(branch, names, source) for branch in branches]
    _check_same_types(schemas, names)
    whole = united(branches)
    schema = arrow_schema(whole, names, source)
    return whole.select(*(F.col(quoted(c)) for c in schema.names)), schema


def _applied(rows: DataFrame, chosen: Sequence[SilverTransformation], source: pa.Schema, entity: str) -> DataFrame:
    name = f"array(coalesce(string({quoted(entity)}), ''))"
    for transformation in chosen:
        try:
            after = transformation.function(rows.withColumn(_NAME_BEFORE, F.expr(name)))
            found = dict(after.dtypes) if isinstance(after, DataFrame) else None
        except Exception as error:
            if is_session_lost(error):
                raise
            raise ExtensionError(f"{transformation} raised {type(error).__name__}.{QUOTED}{first_line(error)}") from error
        if found is None:
            raise ExtensionError(f"{transformation} must give a DataFrame; it gave {type(after).__name__}")
        own = [f for f in source.names if f.startswith("_") or f == entity]
        before = dict(rows.dtypes)
        lost = [c for c in own if found.get(c) != before.get(c)]
        added = [c for c in found if c.startswith("_") and c not in (*own, _NAME_BEFORE)]
        if lost or added:
            raise ExtensionError(
                f"{transformation} must keep the column that names the game and the pipeline's own ones as they are"
                + (f"; it lost or changed {', '.join(lost)}" if lost else "")
                + (f"; names that begin with an underscore are the pipeline's: {', '.join(added)}" if added else "")
                + ". Add columns with withColumn, or keep the others with select('*', ...)"
            )
        names = list(map(folded, after.columns))
        if _NAME_BEFORE in found and names.count(folded(entity)) == 1:
            # Other passes find the row by bronze's name: it would be lost in some, and twice in others.
            refusal = F.raise_error(f"{transformation} changed the value of {entity}, which names the game")
            same = F.col(_NAME_BEFORE).eqNullSafe(F.expr(name))
            guarded = F.when(same, F.col(quoted(entity))).otherwise(refusal).alias(entity)
            if len(set(names)) < len(names):  # refused below, unless another function removes it
                after = after.withColumn(entity, guarded)
            else:
                # `withColumn` would also replace columns whose names only look alike (Spark's `equalsIgnoreCase`).
                after = after.select(*(guarded if folded(c) == folded(entity) else F.col(quoted(c)) for c in after.columns))
        rows = after.drop(_NAME_BEFORE)
    return rows


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
    """The line with the reason: of a Python function, the last line of its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, Py4JJavaError):
        lines = lines[1:]  # without the name of the call
    raised = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception): ", line) and "Traceback" not in line]
    return (raised or lines or [type(error).__name__])[-1 if "Traceback" in str(error) and raised else 0]
