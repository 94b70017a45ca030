"""Columns of event rows as Spark's expressions: how they travel to the workers, and conditions on them."""

from collections.abc import Collection, Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.decoding.core.wire_format import SchemaId, SchemaRef
from game_events.lakehouse.event_columns import HEADERS, SCHEMA_COLUMNS

#: SQL of the empty list that means no headers between Spark and the workers.
NO_HEADERS = "CAST(array() AS array<struct<key:string,value:binary>>)"


def travelling(names: Iterable[str]) -> list[Column]:
    """Columns of bronze or quarantine, the headers never NULL; workers make them NULL again with `none_if_empty`.

    A batch of NULL lists costs Spark's Arrow writer time quadratic in its rows (2 million records: 35 s of processor time, 7 s
    this way).
    """
    filled = F.coalesce(F.col(HEADERS), no_headers()).alias(HEADERS)
    return [filled if name == HEADERS else F.col(name) for name in names]


def no_headers() -> Column:
    """`NO_HEADERS` as a column."""
    return F.expr(NO_HEADERS)


def of_schemas(chosen: Collection[SchemaId]) -> Column:
    """Condition: the record was written with one of these schemas."""
    refs = [SchemaRef.of(schema_id) for schema_id in chosen]
    numbers, guids = [r.number for r in refs if r.number is not None], [r.guid for r in refs if r.guid is not None]
    return F.col("_schema_id").isin(numbers) | F.col("_schema_guid").isin(guids)


def schema_ids(rows: DataFrame) -> list[SchemaId]:
    """The schema ids and GUIDs of rows of bronze or quarantine, each once. Runs a Spark job."""
    found = (SchemaRef(*row).schema_id for row in rows.select(*SCHEMA_COLUMNS).distinct().collect())
    return [schema_id for schema_id in found if schema_id is not None]
