"""Columns of event rows as Spark's expressions: how they travel to the workers, and conditions on them."""

from collections.abc import Collection, Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.decoding.core.wire_format import SchemaId, SchemaRef
from game_events.lakehouse.event_columns import HEADERS, RAW_COLUMNS, SCHEMA_COLUMNS

_HEADERS_SQL = "array<struct<key:string,value:binary>>"


def source_columns(constants: Collection[str] = ()) -> list[Column]:
    """The columns of a source as they travel to the workers: all but the constant ones.

    Records without headers travel with an empty list: a batch of NULL lists costs Spark's Arrow writer time quadratic in its
    rows (2 million records: 35 s of processor time, 7 s this way).
    """
    return travelling([name for name in RAW_COLUMNS if name not in constants], "headers")


def travelling(names: Iterable[str], headers: str = HEADERS) -> list[Column]:
    """These columns, the headers never NULL (see `source_columns`); workers make them NULL again with `none_if_empty`."""
    filled = F.coalesce(F.col(headers), no_headers()).alias(headers)
    return [filled if name == headers else F.col(name) for name in names]


def no_headers() -> Column:
    """The empty list that means no headers between Spark and the workers."""
    return F.array().cast(_HEADERS_SQL)


def of_schemas(chosen: Collection[SchemaId]) -> Column:
    """Condition: the record was written with one of these schemas."""
    refs = [SchemaRef.of(schema_id) for schema_id in chosen]
    numbers, guids = [r.number for r in refs if r.number is not None], [r.guid for r in refs if r.guid is not None]
    return F.col("_schema_id").isin(numbers) | F.col("_schema_guid").isin(guids)


def schema_ids(rows: DataFrame) -> list[SchemaId]:
    """The schema ids and GUIDs of rows of bronze or quarantine, each once. Runs a Spark job."""
    found = (SchemaRef(*row).schema_id for row in rows.select(*SCHEMA_COLUMNS).distinct().collect())
    return [schema_id for schema_id in found if schema_id is not None]
