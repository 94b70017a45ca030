"""Arrow schemas of Spark plans, by Delta's types; merging of schemas."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from operator import or_

import pyarrow as pa
from deltalake import Schema
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from game_events.errors import ExtensionError, folded
from game_events.lakehouse.data.columns import MESSAGE_TYPE

#: Characters that Delta refuses in column names; `mapInArrow` cannot handle dots and backticks, which decoding replaces, too.
_FORBIDDEN = set(" ,;{}()\n\t=")
_UNREACHABLE = set(".`")


def arrow_schema(rows: DataFrame, origin: object, known: pa.Schema | None = None) -> pa.Schema:
    """Columns of a plan, which is not executed, all nullable; `origin`: its author, for errors.

    `known`: fields that take precedence, metadata included, over columns of the same name and type; they are first.

    Raises:
        ExtensionError: a column cannot be in a Delta table: its name, its type, or it is there twice.
    """
    _refuse_names([item.name for item in rows.schema.fields], origin)
    fields = {item.name: _arrow(item, origin) for item in rows.schema.fields}
    kept = {item.name: item for item in known or () if item.name in fields and fields[item.name].type == item.type}
    return pa.schema([*kept.values(), *(field for name, field in fields.items() if name not in kept)])


def _refuse_names(names: Sequence[str], origin: object) -> None:
    """Raise ExtensionError for a name that a table's column cannot have, and for one that is there twice."""
    counts = Counter(map(folded, names))
    twice = sorted({name for name in names if counts[folded(name)] > 1})
    if twice:
        raise ExtensionError(f"{origin} gives the column {', '.join(twice)} twice (capital letters do not count)")
    for name in names:
        if not name or _FORBIDDEN & set(name):
            raise ExtensionError(f"{origin} gives a column {name!r}: Delta takes no spaces and none of ,;{{}}()= in names")
        if _UNREACHABLE & set(name):
            raise ExtensionError(
                f"{origin} gives a column {name!r}: Spark takes a dot in a name for a step into a struct, "
                "and a backtick for a quote: name it otherwise"
            )


def _arrow(item: StructField, origin: object) -> pa.Field:
    try:
        struct = StructType([StructField(item.name, nullable(item.dataType))])
        return pa.schema(Schema.from_json(struct.json())).field(0)
    except Exception as error:
        raise ExtensionError(
            f"{origin} gives the column {item.name} the type {item.dataType.simpleString()}, which Delta does not have: cast it"
        ) from error


def nullable(kind: DataType) -> DataType:
    """A type with all fields nullable."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, nullable(f.dataType)) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType))
    if isinstance(kind, NullType):
        raise TypeError("void")
    return kind


def merged_columns(schemas: Iterable[StructType]) -> tuple[StructType, dict[str, list[str]]]:
    """Columns of several tables, without those of conflicting types, which are returned with their types."""
    fields: dict[str, StructField] = {}
    clashes: dict[str, list[str]] = {}
    for schema in schemas:
        for item in schema.fields:
            have = fields.get(item.name)
            kind = nullable(item.dataType)
            both = kind if have is None else _both(have.dataType, kind)
            if both is None and have is not None:
                known = clashes.setdefault(item.name, [have.dataType.simpleString()])
                if kind.simpleString() not in known:
                    known.append(kind.simpleString())
            elif both is not None:
                fields[item.name] = StructField(item.name, both)
    return StructType([f for f in fields.values() if f.name not in clashes]), clashes


def _both(one: DataType, other: DataType) -> DataType | None:
    """The type with the nested fields of both; None if they conflict."""
    if isinstance(one, StructType) and isinstance(other, StructType):
        whole, clashes = merged_columns([one, other])
        return None if clashes else whole
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        inner = _both(one.elementType, other.elementType)
        return None if inner is None else ArrayType(inner)
    if isinstance(one, MapType) and isinstance(other, MapType):
        return _both_maps(one, other)
    return one if one == other else None


def _both_maps(one: MapType, other: MapType) -> MapType | None:
    key = _both(one.keyType, other.keyType)
    value = _both(one.valueType, other.valueType)
    return None if key is None or value is None else MapType(key, value)


def united(parts: Sequence[DataFrame]) -> DataFrame:
    """The rows of several plans, with the columns of all; a column that one lacks is NULL there.

    Spark's own `unionByName` takes names for one that are not (`equalsIgnoreCase`: `µ` and `μ`), and mixes up their values.
    """
    if len(parts) == 1:
        return parts[0]
    types = {folded(f.name): f for part in reversed(parts) for f in reversed(part.schema.fields)}
    names = dict.fromkeys(folded(name) for part in parts for name in part.columns)
    aligned = []
    for part in parts:
        held = {folded(name) for name in part.columns}
        columns = [
            F.col(quoted(types[n].name)) if n in held else F.lit(None).cast(types[n].dataType).alias(types[n].name)
            for n in names
        ]
        aligned.append(part.select(*columns))
    return reduce(DataFrame.union, aligned)


def require_types(columns: Collection[str], chosen: Iterable[object]) -> None:
    """Raise ExtensionError if rows of message types are chosen among older rows, whose tables do not say of which they are."""
    names = "; ".join(map(str, chosen))
    if names and MESSAGE_TYPE not in columns:
        raise ExtensionError(
            f"{names}: message types are named, and the rows are from before tables had {MESSAGE_TYPE}: "
            "run `game-events redecode`"
        )


def of_types(names: Iterable[str]) -> Column:
    """Whether a row is of one of these message types, as `rules.is_named`: by their full names, or the last parts of these.

    The rows must have `MESSAGE_TYPE` (`require_types`).
    """
    column = F.col(MESSAGE_TYPE)
    is_any = reduce(or_, ((column == name) | column.endswith(f".{name}") for name in names))
    return F.coalesce(is_any, F.lit(False))


def quoted(name: str) -> str:
    """A column's name, quoted for SQL and `F.col`."""
    return "`" + name.replace("`", "``") + "`"
