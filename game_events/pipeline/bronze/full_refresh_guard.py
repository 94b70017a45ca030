"""Protection of bronze from a full refresh: refused, with what would be lost, until a setting allows it."""

from dataclasses import dataclass, replace

from pyspark.sql import functions as F

from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.data.spark_files import read_table
from game_events.lakehouse.event_columns import COORDINATES
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Table
from game_events.pipeline.bronze.starting_offsets import all_there_is
from game_events.pipeline.context import Pipeline
from game_events.pipeline.state.row_conditions import not_read, since
from game_events.sources.core.source import FILES, KAFKA, MicroBatch, Offsets, SourceSnapshot
from game_events.sources.files.source import FileSource

ALLOW = "GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH"
#: Partitions that a message names one by one.
PARTITIONS_NAMED = 8


@dataclass(frozen=True)
class Expired:
    """Rows that a full refresh of bronze cannot bring back.

    Attributes:
        rows, expired: decoded rows of bronze; those of them with records that the source does not have any more.
        undecodable, undecodable_expired: the same of the undecodable rows of quarantine.
        staying, undecodable_staying: rows of topics that are not read now: they stay as they are.
        bronze, quarantine: names of the tables.
    """

    rows: int = 0
    expired: int = 0
    undecodable: int = 0
    undecodable_expired: int = 0
    staying: int = 0
    undecodable_staying: int = 0
    bronze: str = BRONZE
    quarantine: str = QUARANTINE

    def __str__(self) -> str:
        """For messages."""
        return (
            f"{self.expired:,} of the {self.rows:,} rows of {self.bronze} and {self.undecodable_expired:,} of the "
            f"{self.undecodable:,} undecodable rows of {self.quarantine}"
        )


def refuse_unless_allowed(pipeline: Pipeline) -> None:
    """Refuse a full refresh by mistake.

    Raises:
        ConfigurationError: the setting does not allow it; the message names the setting and what would be lost.
    """
    if pipeline.settings.allow_bronze_full_refresh or pipeline.bronze.open() is None:
        return
    gone = "are gone from there" if pipeline.settings.source == FILES else "have expired there"
    try:
        now = source_to_read(pipeline)
        lost = f"{count_expired(pipeline, now)} {gone} and would be lost"
        lost = f"The source has {_begins(now)}: {lost}"
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
    (held, expired, staying), (undecodable, undecodable_expired, undecodable_staying) = (
        _counts(pipeline, table, now, origins) for table in (pipeline.bronze, pipeline.quarantine)
    )
    names = pipeline.bronze.name, pipeline.quarantine.name
    return Expired(held, expired, undecodable, undecodable_expired, staying, undecodable_staying, *names)


def _counts(pipeline: Pipeline, table: Table, now: SourceSnapshot, origins: Offsets | None) -> tuple[int, int, int]:
    """Decoded or undecodable rows of a table; those that the source does not have any more; those that stay."""
    handle = table.open()
    if handle is None or not row_count(handle):
        return 0, 0, 0
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
        there = pipeline.source.read(pipeline.spark, MicroBatch(now.earliest, now.latest))
        there = there.select(*(F.col(c.removeprefix("_kafka_")).alias(c) for c in COORDINATES), F.lit(False).alias("_there"))
        rows, gone = rows.join(there, list(COORDINATES), "left"), F.col("_there").isNull()
    columns = (F.lit(1), F.when(gone, 1), F.when(stays, 1))
    (found,) = rows.agg(*(F.count(c).alias(n) for c, n in zip(columns, ("rows", "gone", "stays"), strict=True))).collect()
    return int(found["rows"]), int(found["gone"]), int(found["stays"])


def source_to_read(pipeline: Pipeline) -> SourceSnapshot:
    """The source as it will be read: what is older than the starting time counts as gone."""
    source = pipeline.source
    now = source.snapshot(full_refresh=True) if isinstance(source, FileSource) else source.snapshot()
    return replace(now, earliest=all_there_is(pipeline, now))


def _begins(now: SourceSnapshot) -> str:
    """The first offset of each split, for messages."""
    if now.unit > 1:
        return f"{sum(now.latest.values()) // now.unit:,} files"
    named = [f"{p} from {'offset' if p.kind == KAFKA else 'batch'} {o:,}" for p, o in sorted(now.earliest.items())]
    rest = f" and {len(named) - PARTITIONS_NAMED} partitions more" if len(named) > PARTITIONS_NAMED else ""
    return ", ".join(named[:PARTITIONS_NAMED]) + rest
