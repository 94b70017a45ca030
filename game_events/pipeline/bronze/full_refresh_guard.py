"""Protection of bronze from a full refresh: refused, with what would be lost, until a setting allows it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.data.worker_job import task_numbers
from game_events.lakehouse.event_columns import COORDINATES
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import Table
from game_events.pipeline.bronze.offset_plan import all_there_is
from game_events.pipeline.context import Pipeline
from game_events.pipeline.state.row_conditions import not_read, since
from game_events.sources.core.reading import Reading, ReadNotes
from game_events.sources.core.source import FILES, KAFKA, MicroBatch, Offsets, SourceSnapshot
from game_events.sources.files.source import FileSource

ALLOW = "GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH"
#: Partitions that a message names one by one.
PARTITIONS_NAMED = 8


class RowCounts(NamedTuple):
    """Rows of a table: all; those of records that the source does not have any more; those that a full refresh keeps."""

    rows: int = 0
    gone: int = 0
    staying: int = 0


class Expired(NamedTuple):
    """Rows that a full refresh of bronze cannot bring back: decoded ones of bronze, undecodable ones of quarantine."""

    bronze: RowCounts = RowCounts()
    quarantine: RowCounts = RowCounts()

    def named(self, pipeline: Pipeline) -> str:
        """For messages."""
        return (
            f"{self.bronze.gone:,} of the {self.bronze.rows:,} rows of {pipeline.bronze.name} and {self.quarantine.gone:,} of "
            f"the {self.quarantine.rows:,} undecodable rows of {pipeline.quarantine.name}"
        )


def refuse_unless_allowed(pipeline: Pipeline) -> None:
    """Refuse a full refresh by mistake: ConfigurationError names the setting that allows it, and what would be lost."""
    if pipeline.settings.allow_bronze_full_refresh or pipeline.open_bronze() is None:
        return
    gone = "are gone from there" if pipeline.settings.source == FILES else "have expired there"
    try:
        now = source_to_read(pipeline)
        lost = f"The source has {_begins(now)}: {count_expired(pipeline, now).named(pipeline)} {gone} and would be lost"
    except TransientError as error:
        holder = pipeline.settings.source_holder
        lost = f"What {holder} does not have any more would be lost, and {holder} does not answer how much that is ({error})"
    raise ConfigurationError(
        f"{pipeline.bronze.name} is protected from a full refresh. {lost}. Nothing was changed. To replace it all the same, "
        f"set {ALLOW}=true"
    )


def count_expired(pipeline: Pipeline, now: SourceSnapshot, origins: Offsets | None = None) -> Expired:
    """Count what the source does not have any more; one Spark job over three columns of each table.

    `origins`: splits of the records of its files: split -> end; None: they were not read yet, so the contents of an archive are
    unknown, and every row that is not of one of its files counts as lost.
    """
    return Expired(*(_counts(pipeline, table, now, origins) for table in (pipeline.bronze, pipeline.quarantine)))


def _counts(pipeline: Pipeline, table: Table, now: SourceSnapshot, origins: Offsets | None) -> RowCounts:
    handle = table.open()
    if handle is None or not row_count(handle):
        return RowCounts()
    rows = read_table(pipeline.spark, handle)
    if table is pipeline.quarantine:
        rows = rows.where(F.col("layer") == Layer.BRONZE)
    stays = not_read({*now.latest, *(origins or ())})
    if isinstance(pipeline.source, FileSource):
        # By the file: records of an archive have Kafka's coordinates.
        path = F.col("_file_path")
        if pipeline.source.archive is not None and origins is None:
            stays, elsewhere = F.lit(False), F.lit(True)
        else:
            elsewhere = since(origins or {})
        (first,) = now.earliest.values()
        gone = ~stays & F.coalesce(path.isin(pipeline.source.missing_paths(first)), elsewhere)
    elif all(split.kind == KAFKA for split in now.latest):
        gone = ~since(now.earliest) & ~stays
    else:
        read = _Coordinates(pipeline.source.reading(MicroBatch(now.earliest, now.latest)))
        there = task_numbers(pipeline.spark, read.reading.tasks).mapInArrow(read, _Coordinates.COLUMNS)
        there = there.withColumn("_there", F.lit(False))
        rows, gone = rows.join(there, list(COORDINATES), "left"), F.col("_there").isNull()
    which = {"rows": F.lit(1), "gone": F.when(gone, 1), "staying": F.when(stays, 1)}
    (found,) = rows.agg(*(F.count(condition).alias(name) for name, condition in which.items())).collect()
    return RowCounts(*found)


@dataclass(frozen=True)
class _Coordinates:
    """For `mapInArrow`: numbers of tasks -> where their records are; picklable."""

    COLUMNS: ClassVar[str] = "_kafka_topic_id string, _kafka_partition int, _kafka_offset bigint"
    reading: Reading

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbers in batches:
            for task in numbers.column(0).to_pylist():
                for batch in self.reading.batches(task, ReadNotes()):
                    places = [batch.column(name.removeprefix("_kafka_")) for name in COORDINATES]
                    yield pa.RecordBatch.from_arrays(places, list(COORDINATES))


def source_to_read(pipeline: Pipeline) -> SourceSnapshot:
    """The source as it will be read: what is older than the starting time counts as gone."""
    source = pipeline.source
    now = source.snapshot(full_refresh=True)
    return replace(now, earliest=all_there_is(pipeline, now))


def _begins(now: SourceSnapshot) -> str:
    """The first offset of each split, for messages."""
    if now.unit > 1:
        return f"{sum(now.latest.values()) // now.unit:,} files"
    named = [f"{p} from {'offset' if p.kind == KAFKA else 'batch'} {o:,}" for p, o in sorted(now.earliest.items())]
    rest = f" and {len(named) - PARTITIONS_NAMED} partitions more" if len(named) > PARTITIONS_NAMED else ""
    return ", ".join(named[:PARTITIONS_NAMED]) + rest
