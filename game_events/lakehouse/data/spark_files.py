"""Files of a table's version as a Spark DataFrame; columns of event rows as Spark's expressions."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from urllib.parse import unquote

from deltalake import DeltaTable, Schema
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.decoding.frame import SchemaId, SchemaRef, registry_of
from game_events.lakehouse.data.columns import HEADERS, MESSAGE_TYPE, SCHEMA_COLUMNS, SOURCE, StoredType, id_of_row


def spark_schema(schema: Schema) -> StructType:
    """A Delta schema as Spark's: both are the same JSON (Delta protocol, "Schema Serialization Format")."""
    return StructType.fromJson(json.loads(schema.to_json()))


def read_files(spark: SparkSession, uris: Sequence[str], schema: StructType) -> DataFrame:
    """Rows of Parquet files with a given schema; no file footers are read for it.

    `uris` are as delta-rs gives them (what is not plain ASCII in a folder's name is percent-encoded), of one table or of tables
    without partitions; columns of `schema` that a file lacks have the value of its partition, or are NULL.
    """
    if not uris:
        return spark.createDataFrame([], schema)
    paths = [unquote(uri.removeprefix("file://")) for uri in uris]
    read = spark.read.schema(schema)
    root, _, folder = paths[0].rpartition("/")[0].rpartition("/")
    if folder.partition("=")[0] in schema.names:
        read = read.option("basePath", root)
    return read.parquet(*map(spark_path, paths))


def spark_path(path: str) -> str:
    """A path as Spark reads it: not as a pattern, whatever characters its names have."""
    return re.sub(r"([][{}*?\\])", r"\\\1", path)


def read_table(spark: SparkSession, handle: DeltaTable) -> DataFrame:
    """All rows of a version of a table."""
    return read_files(spark, handle.file_uris(), spark_schema(handle.schema()))


def game_of_file(uris: Sequence[str], pattern: str) -> Column:
    """The game of each row of `read_files`, from the folder of its file.

    `pattern`: of `Names.silver_path` or `Names.gold_path`.
    """
    # Without files Spark has no such column.
    path = F.col("_metadata.file_path") if uris else F.lit(None).cast("string")
    return F.regexp_extract(path, pattern, 1)


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


def of_schemas(chosen: Collection[SchemaId], registries: Mapping[str, str] | None = None) -> Column:
    """Condition: the record was written with one of these schemas.

    `registries`: source -> name of its registry in ids (`frame.named`), if the rows have sources; None: they have none.
    """
    condition = F.lit(False)
    for registry in {registry_of(schema_id) for schema_id in chosen}:
        refs = [SchemaRef.of(schema_id) for schema_id in chosen if registry_of(schema_id) == registry]
        numbers = [r.number for r in refs if r.number is not None]
        guids = [r.guid for r in refs if r.guid is not None]
        mine = F.col("_schema_id").isin(numbers) | F.col("_schema_guid").isin(guids)
        condition |= mine if registries is None else mine & _of_registry(registry, registries)
    return condition


def _of_registry(registry: str, registries: Mapping[str, str]) -> Column:
    """Condition: the ids in the record are of this registry; those of unknown sources are of one of their name."""
    names = sorted(name for name, its in registries.items() if its == registry)
    unknown = [registry] if registry and registry not in registries else []
    named_so = F.coalesce(F.col(SOURCE).isin([*names, *unknown]), F.lit(False))
    return named_so if registry else named_so | F.col(SOURCE).isNull()


def schema_ids(rows: DataFrame) -> list[SchemaId]:
    """The ids and GUIDs of the schemas of rows of bronze or quarantine, each once. Runs a Spark job."""
    ids = (id_of_row(*row) for row in rows.select(*SCHEMA_COLUMNS).distinct().collect())
    return [schema_id for schema_id in ids if schema_id is not None]


def stored_types(rows: DataFrame) -> list[StoredType]:
    """What rows of bronze were decoded with, by source and topic, each once. Runs a Spark job."""
    source = F.col(SOURCE) if SOURCE in rows.columns else F.lit(None)
    # Without a schema, records choose how many names there are.
    name = F.when(F.col("_schema_id").isNotNull() | F.col("_schema_guid").isNotNull(), F.col(MESSAGE_TYPE))
    found = rows.select(source, F.col("_kafka_topic"), *SCHEMA_COLUMNS, name).distinct().collect()
    return [StoredType(source, topic, id_of_row(number, guid), name) for source, topic, number, guid, name in found]
