"""Rows as JSON, made by Spark: one text for each row, the same in every run.

Times are ISO 8601 in UTC with microseconds (`2026-11-21T10:00:00.000000Z`), dates `2026-11-21`, decimals texts (JSON's numbers
lose digits in most readers), bytes base64, NaN and infinities texts, maps objects; a column that is NULL is `null`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from game_events.lakehouse.tables import is_person
from game_events.pipeline.spark_types import quoted

_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}


def as_json(rows: DataFrame, columns: Iterable[str]) -> Column:
    """Some columns of a row as one JSON object."""
    types = {f.name: f.dataType for f in rows.schema.fields}
    parts = []
    for name in columns:
        column, wanted = F.col(quoted(name)), _without_decimals(types[name])
        parts.append((column if wanted == types[name] else column.cast(wanted)).alias(name))
    return F.to_json(F.struct(*parts), _OPTIONS)


def whose(rows: DataFrame, person: str) -> Column:
    """Whom a row is about, as text: by this an erasure finds it."""
    names = [name for name in rows.columns if is_person(name, person)]
    return F.coalesce(*(F.col(quoted(name)).cast("string") for name in names), F.lit(None).cast("string"))


def _without_decimals(kind: DataType) -> DataType:
    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _without_decimals(f.dataType), f.nullable) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_without_decimals(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_without_decimals(kind.keyType), _without_decimals(kind.valueType), kind.valueContainsNull)
    return kind
