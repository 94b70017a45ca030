"""Record archive: raw records of bronze and quarantine as Parquet files, which the files source reads back as they were.

The job `archive` writes it, to a folder or prefix outside of the lakehouse.

Guarantee: each record is in the archive once, through repeated runs, crashes and concurrent runs. The archive is a Delta table:
each commit has the last archived bronze batch, and succeeds only if it is unchanged since the commit was planned.
"""

import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import dagster as dg
import pyarrow as pa
from deltalake import DeltaTable, Schema
from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.decoding.frame import NO_RECORD, RegistrySchema
from game_events.errors import ConfigurationError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter, txn
from game_events.lakehouse.data.columns import COORDINATES, SCHEMA_COLUMNS, STORED_AS, is_sourced
from game_events.lakehouse.data.reading import files_with, row_count, selection
from game_events.lakehouse.data.spark_files import no_headers, read_files, read_table, schema_ids, spark_schema
from game_events.lakehouse.tables import Layer, Table, table_id
from game_events.orchestration.jobs import check_place
from game_events.orchestration.keys import REPORT
from game_events.orchestration.resources import Graph
from game_events.pipeline.context import Pipeline
from game_events.pipeline.offsets import next_offsets
from game_events.pipeline.quarantine import intact_tables
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import PluginResult, RunResult
from game_events.pipeline.schemas.archive import SchemaArchive
from game_events.plugins.files.location import SourceLocation
from game_events.plugins.files.records import FILES, UNKNOWN, marked_records
from game_events.sources.factory import since as at_or_behind
from game_events.sources.source import KAFKA, RAW_SCHEMA, TASK_RECORDS, Offsets, Partition
from game_events.workers.job import FileStage

#: Name of the job's op.
OP = "archive_raw_records"
_READ_COLUMNS = (*STORED_AS.values(), *SCHEMA_COLUMNS)


@dataclass(frozen=True)
class ArchiveResult(PluginResult):
    """Result of `game-events archive`.

    `rows`: records added; `files`, `bytes`: number and size of their files. `without_raw`: rows of bronze without a raw value,
    which cannot be archived. `batch`: last bronze batch in the archive.
    """

    key: ClassVar[str] = "archive"

    to: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    without_raw: int = 0
    batch: int = 0


def archive(pipeline: Pipeline, report: RunReport, to: str) -> None:
    """Add the new records of bronze and quarantine to a folder or prefix of an object store; reads new rows twice, writes once.

    Raises:
        ConfigurationError: bronze keeps no raw values; or the place has something else, or the archive of another bronze.
        ConflictError: a concurrent run wrote to the archive; run it again.
    """
    began = time.monotonic()
    done = _archive(pipeline, report, to)
    report.add(RunResult(parts={done.key: done}, seconds={"archive": time.monotonic() - began}))
    if done.without_raw:
        report.warn(f"{done.without_raw:,} rows of bronze have no raw value, and are not in the archive")


def _archive(pipeline: Pipeline, report: RunReport, to: str) -> ArchiveResult:
    if pipeline.settings.keep_raw != "all":
        raise ConfigurationError("bronze keeps no raw values (GAME_EVENTS_KEEP_RAW is failures): there is nothing to archive")
    place = SourceLocation.of(pipeline.settings, to)
    table = Table("archive", place.root, place.options)
    tables = intact_tables(pipeline, report)
    if tables is None:
        return ArchiveResult(place.root)
    bronze, quarantine = tables
    if pipeline.settings.sources or is_sourced(bronze):
        raise ConfigurationError(
            "bronze_events has rows of several sources (`_source`), whose schema ids may be of several registries: an archive, "
            "which has one set of schemas, cannot hold them"
        )
    app = Txn.ARCHIVE.of(BronzeIdentity.of(bronze).key)
    archived = _open(table, app)
    batch = counter(bronze, Txn.BATCH)
    since = txn(archived, app)
    last = int(since or 0)
    if quarantine is None and since == batch:
        return ArchiveResult(place.root, batch=batch)
    rows, without_raw = _records(pipeline, bronze, quarantine, archived, last)
    pipeline.on_progress(f"archive: batches {last + 1} to {batch} of {pipeline.bronze.name}")
    schema = _with_schemas(pipeline, rows)
    columns = {name: F.col(STORED_AS[name]) for name in RAW_SCHEMA.names}
    columns["headers"] = F.coalesce(columns["headers"], no_headers())
    new = selection(bronze, last).rows
    records = rows.select(*(column.alias(name) for name, column in columns.items()))
    records = records.coalesce(max(1, math.ceil(new / TASK_RECORDS)))
    files = FileStage(table, schema, "headers").write(records)
    failpoints.reach("archive_staged")
    if not files and since == batch:
        return ArchiveResult(place.root, batch=batch)
    plan = Commit(
        table,
        schema,
        files,
        expect_transactions={app: since},
        set_transactions={app: batch},
        table_id=table_id(archived),
        info={"archive_of": pipeline.bronze.name, "run_id": pipeline.run_id},
        description="Raw records of bronze_events and quarantine_events, each once, as Kafka had them",
    )
    landed = commit(plan)
    return ArchiveResult(place.root, landed.rows, landed.files, landed.bytes, without_raw, batch)


def _with_schemas(pipeline: Pipeline, rows: DataFrame) -> pa.Schema:
    """The columns of an archive of some records, with the schemas that these were written by."""
    ids = schema_ids(rows)
    known = SchemaArchive(pipeline.lakehouse).read(ids)
    return marked_records([known.get(i) or RegistrySchema(i, UNKNOWN, "") for i in ids])


def _open(table: Table, app: str) -> DeltaTable | None:
    """The archive of the bronze of `app`; None if there is none; ConfigurationError if there is something else."""
    handle = table.open()
    if handle is None:
        folder = table.local_path
        # An archive that crashed before its first commit has left such files.
        ours = re.compile(r"part-.*\.parquet")
        if folder is not None and folder.is_dir() and not all(ours.fullmatch(file.name) for file in folder.iterdir()):
            raise ConfigurationError(f"{table.uri} is not empty, and no archive: name a folder of its own")
        return None
    if [f.name for f in handle.schema().fields] != RAW_SCHEMA.names:
        raise ConfigurationError(f"{table.uri} is a table, and no archive: name a folder of its own")
    if handle.transaction_version(app) is None:
        raise ConfigurationError(
            f"{table.uri} is the archive of another bronze_events, or of what it was before a full refresh or a restore: "
            "records would be in it twice. Archive to another folder"
        )
    return handle


def _records(
    pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable | None, archived: DeltaTable | None, since: int
) -> tuple[DataFrame, int]:
    """Rows that the archive lacks, with bronze's own columns, and the number of bronze's rows without a raw value."""
    uris = files_with(bronze, since)
    rows = read_files(pipeline.spark, uris, spark_schema(bronze.schema())).where(F.col("_batch") > since)
    without_raw = rows.where(F.col("_raw_value").isNull()).count() if uris else 0
    rows = rows.where(F.col("_raw_value").isNotNull()).select(*_READ_COLUMNS)
    if quarantine is None or not row_count(quarantine):
        return rows, without_raw
    rejected = read_table(pipeline.spark, quarantine)
    rejected = rejected.where((F.col("layer") == Layer.BRONZE) & ~F.col("reason").isin(*map(str, NO_RECORD)))
    # Replayed records are archived from quarantine, where they stay.
    rows = rows.join(rejected.select(*COORDINATES), list(COORDINATES), "left_anti").select(*_READ_COLUMNS)
    rejected = rejected.where(~at_or_behind(_ahead(bronze, rejected))).select(*_READ_COLUMNS)
    if archived is not None:
        # By coordinates: batches do not order them, as a micro-batch's rows may be in quarantine long before it is in bronze.
        columns = spark_schema(Schema.from_arrow(pa.schema([RAW_SCHEMA.field(n) for n in ("topic_id", "partition", "offset")])))
        there = read_files(pipeline.spark, archived.file_uris(), columns).select(
            F.col("topic_id").alias("_kafka_topic_id"),
            F.col("partition").alias("_kafka_partition"),
            F.col("offset").alias("_kafka_offset"),
        )
        rejected = rejected.join(there, list(COORDINATES), "left_anti").select(*_READ_COLUMNS)
    return rows.unionByName(rejected), without_raw


def _ahead(bronze: DeltaTable, rejected: DataFrame) -> Offsets:
    """Partition -> bronze's next offset, of partitions with later rows in quarantine: their micro-batch is not in bronze yet.

    The archive takes such rows together with bronze's: with them alone it would be taken for complete.
    """
    ahead: Offsets = {}
    batch = counter(bronze, Txn.BATCH)
    lasts = rejected.groupBy("_kafka_topic", *COORDINATES[:2]).agg(F.max(COORDINATES[2]), F.max("_batch")).collect()
    for topic, topic_id, number, offset, its_batch in lasts:
        partition = Partition(topic, topic_id, number, FILES if topic == FILES else KAFKA)
        next_offset = next_offsets(bronze, [partition]).get(partition)
        # Bronze has no offset of a new topic before its first micro-batch, and none of a topic behind a table source.
        if offset >= next_offset if next_offset is not None else its_batch > batch:
            ahead[partition] = next_offset or 0
    return ahead


class ArchiveConfig(dg.Config):
    """Where to."""

    to: str = Field(
        description="Folder, or prefix in an object store, below one of `JOB_PLACES`; records are added to what it has."
    )


def build_archive(graph: Graph) -> dg.Definitions:
    """The job; the files source reads back what it writes, without broker and registry."""

    @graph.op(
        OP,
        "Adds the raw records that came since the last time to an archive of Parquet files, each once. Nothing of the "
        "lakehouse changes.",
        "bronze",
    )
    def archive_raw_records(context: dg.OpExecutionContext, config: ArchiveConfig) -> Iterator[dg.Output[None]]:
        with graph.lakehouse(context).recorded(context, "archive") as (pipeline, report):
            check_place(pipeline.settings, config.to)
            archive(pipeline, report, config.to)
        metadata: dict[str, dg.MetadataValue] = {REPORT: dg.MetadataValue.json(report.to_dict())}
        done = report.part(ArchiveResult)
        if done is not None:
            metadata["records"] = dg.MetadataValue.int(done.rows)
            metadata["place"] = dg.MetadataValue.text(done.to)
        yield dg.Output(None, metadata=metadata)

    job = graph.job(
        "archive",
        "Raw records of bronze and quarantine to an archive that the files source reads back. The same as "
        "`game-events archive`.",
        archive_raw_records,
    )
    return dg.Definitions(jobs=[job])
