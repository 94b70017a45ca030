"""Exports rows of files: a folder of Parquet files, or a Delta table, each file once.

A file's chunks are fixed together, and the outbox and the delivery log have its address, which shows whether it was sent. In
rewritten files of a Delta table (compaction, a delete) new and old rows cannot be distinguished: it is refused.
"""

from collections.abc import Sequence

import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.errors import ConfigurationError, DataError, first_line
from game_events.lakehouse.data.snapshot import read_arrow
from game_events.lakehouse.data.staging import file_system
from game_events.lakehouse.tables import Lakehouse, Table, paths
from game_events.pipeline.context import Pipeline
from game_events.sinks.http.table_rows import ORDER, shaped
from game_events.sinks.http.tables import ExportTables


def folder_table(pipeline: Pipeline, folder: str) -> Table:
    """A folder as a table, with the lakehouse's access to its object store."""
    root, _, name = Lakehouse(folder).root.rpartition("/")
    return Table(name, f"{root}/{name}", pipeline.lakehouse.options)


def new_files(pipeline: Pipeline, tables: ExportTables, folder: str, outbox: DeltaTable | None) -> list[str]:
    """Addresses of the folder's Parquet files that were not exported yet, sorted.

    Raises:
        ConfigurationError: there is no such folder.
        DataError: the Delta table's files were rewritten since.
    """
    place = folder_table(pipeline, folder)
    delta = place.open()
    here = {f"{place.uri}/{path}" for path in (paths(delta) if delta is not None else _listed(place))}
    known = _exported(tables, outbox, place.uri)
    gone = known - here
    if delta is not None and gone:
        raise DataError(
            f"{place.uri}: {len(gone):,} of its files that were exported are no part of the table any more: it was compacted, "
            "or rows were deleted, and which rows of the other files were sent is unknown. Export it from a copy, or from "
            "silver or gold, which are followed by batch"
        )
    return sorted(here - known)


def _listed(place: Table) -> list[str]:
    if place.local_path is not None and not place.local_path.is_dir():
        raise ConfigurationError(f"{place.uri} is not a folder: name one with Parquet files, or a Delta table")
    system, prefix = file_system(place)
    found = system.get_file_info(pafs.FileSelector(prefix.rstrip("/") or "", recursive=True))
    names = [f.path.removeprefix(prefix) for f in found if f.type == pafs.FileType.File and f.path.endswith(".parquet")]
    # Names with such a prefix are no data, by Spark's rule.
    return [n for n in names if not any(part.startswith(("_", ".")) for part in n.split("/"))]


def _exported(tables: ExportTables, outbox: DeltaTable | None, uri: str) -> set[str]:
    """Files below an address that have chunks."""
    handles = ((tables.deliveries, tables.deliveries.open()), (tables.outbox, outbox))
    found = [read_arrow(table, handle, ["source"]) for table, handle in handles if handle is not None]
    names = {name for rows in found for name in pc.unique(rows.column("source")).to_pylist()}
    return {name for name in names if name is not None and name.startswith(f"{uri}/")}


def file_rows(pipeline: Pipeline, files: Sequence[str]) -> DataFrame:
    """Rows of `chunks.ROWS`; the group is the file, the coordinate the row's number in it.

    Raises:
        ConfigurationError: the files cannot be read together.
    """
    spark = pipeline.spark
    try:
        rows = spark.read.option("mergeSchema", "true").parquet(*files)
        columns = rows.columns
    except PySparkException as error:
        raise ConfigurationError(f"the Parquet files cannot be read together: {first_line(error)}") from None
    # Spark's file names have a scheme and escaped characters; `files` has neither.
    rows = rows.withColumn("_file_path", F.col("_metadata.file_path")).withColumn("_row", F.col("_metadata.row_index"))
    rows = rows.withColumn(
        "_file", F.regexp_replace(F.url_decode(F.regexp_replace("_file_path", r"\+", "%2B")), "^file:(//)?", "")
    )
    found = shaped(
        rows, pipeline.settings.key_column, F.col("_file"), columns, _place=F.col("_file"), _kafka_offset=F.col("_row")
    )
    return found.repartition(min(8, len(files)), "_group").sortWithinPartitions(*ORDER)
