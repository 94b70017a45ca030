"""Another pipeline's bronze as the source: its raw values, decoded and routed anew by this one, without Kafka.

The lane is the table, a position in it is the next of its batches. Batches are never changed, and their numbers go on: what
maintenance, redecode or a lost log do to the table is invisible. What replaces its rows (a full refresh, a restore) makes
another lane of it, which stops this pipeline: its own rows would be others than the table's.

Guarantee: that of a slice of Kafka; each record keeps the coordinates that it has in Kafka.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.generations import generation, oldest_batch
from game_events.lakehouse.commits.transactions import BATCH_APP
from game_events.lakehouse.data.snapshot import files_with, read_files, selection, spark_schema
from game_events.lakehouse.event_columns import RAW_COLUMNS, STORED_AS
from game_events.lakehouse.storage.options import delta_options
from game_events.lakehouse.tables import BRONZE, Lakehouse, Table
from game_events.sources.core.source import TABLE, MicroBatch, Offsets, SourceSnapshot, Split

_NO_RAW = (
    "has rows without their raw value (that pipeline runs with GAME_EVENTS_KEEP_RAW=failures): they cannot be decoded. Set "
    "it to `all` there and refresh its bronze fully"
)


class TableSource:
    """Reads a bronze table of another lakehouse."""

    def __init__(self, settings: Settings) -> None:
        """Opens nothing yet.

        Raises:
            ConfigurationError: it is this pipeline's own table.
        """
        self._settings = settings
        address = settings.source_table or ""
        root, _, name = address.rpartition("/")
        # As the lakehouse itself writes it: absolute, and `s3://`.
        self._table: Table = Lakehouse(root or ".", delta_options(settings)).table(name)
        if self._table.uri == Lakehouse.of(settings).table(BRONZE).uri:
            raise ConfigurationError(
                "GAME_EVENTS_SOURCE_TABLE is this pipeline's own bronze: name another pipeline's, or unset it"
            )

    def snapshot(self) -> SourceSnapshot:
        """The table's first and next batch.

        Raises:
            ConfigurationError: there is no such table, or it is no bronze.
        """
        handle = self._handle()
        missing = sorted({*STORED_AS.values(), "_batch"} - {f.name for f in handle.schema().fields})
        last = handle.transaction_version(BATCH_APP)
        if missing or last is None:
            raise ConfigurationError(
                f"GAME_EVENTS_SOURCE_TABLE: {self._table.uri} is no bronze table of this project"
                + (f": it has no column {', '.join(missing)}" if missing else "")
            )
        lane = Split(self._table.uri, _content(handle), 0, TABLE)
        return SourceSnapshot({lane: max(1, oldest_batch(handle))}, {lane: last + 1})

    def offsets_at(self, lanes: Iterable[Split], when: datetime) -> Offsets:  # noqa: ARG002
        """Batches have no time of their own.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError("GAME_EVENTS_STARTING_TIMESTAMP works with Kafka only: unset it, or GAME_EVENTS_SOURCE_TABLE")

    def subjects(self, lanes: Iterable[Split]) -> tuple[str, ...]:  # noqa: ARG002
        """None: which topics the rows are of shows when they are read."""
        return ()

    def batch_limit(self, reached: Offsets) -> int:
        """As many whole batches as hold no more records than the setting says; at least one."""
        handle = self._handle()
        start = next(iter(reached.values()), 1)
        actions = pa.table(handle.get_add_actions(flatten=True))
        if "max._batch" not in actions.column_names:
            return 1
        found = zip(*(actions.column(c).to_pylist() for c in ("max._batch", "min._batch", "num_records")), strict=True)
        batches, records = 1, 0
        for last, first, rows in sorted(f for f in found if f[0] is not None and f[0] >= start):
            begin = max(first, start)
            # Of a file that was compacted of many batches as much of it as there is room for.
            share = rows * (last - begin + 1) // max(1, last - first + 1)
            if records + share > self._settings.max_records_per_batch:
                room = self._settings.max_records_per_batch - records
                return int(max(batches, begin - start + (last - begin + 1) * room // max(1, share)))
            records += share
            batches = max(batches, last - start + 1)
        # Batches behind the last one with rows are empty.
        return max(batches, int(handle.transaction_version(BATCH_APP) or 0) - start + 1)

    def records(self, part: MicroBatch) -> int:
        """Rows of the files that hold the slice: at least so many as it has."""
        return selection(self._handle(), "_batch", min(part.start.values()) - 1).rows

    def read(self, spark: SparkSession, part: MicroBatch) -> DataFrame:
        """The rows of these batches, columns `RAW_COLUMNS`; the job fails at a row without its raw value."""
        handle = self._handle()
        (lane,) = part.end
        start, end = part.start[lane], part.end[lane]
        rows = read_files(spark, files_with(handle, "_batch", start - 1), spark_schema(handle.schema()))
        rows = rows.where(F.col("_batch").between(start, end - 1))
        missing = F.raise_error(F.lit(f"{self._table.uri} {_NO_RAW}"))
        raw = F.when(F.col("_raw_value").isNull(), missing.cast("binary")).otherwise(F.col("_raw_value"))
        return rows.withColumn("_raw_value", raw).select(*(F.col(STORED_AS[name]).alias(name) for name in RAW_COLUMNS))

    def constants(self, part: MicroBatch) -> Mapping[str, str]:  # noqa: ARG002
        """None: its rows may be of several topics."""
        return {}

    def changed(self, part: MicroBatch) -> str | None:
        """Rows are read of one version of the table; only a table that is another one by now has others."""
        (lane,) = part.end
        return None if _content(self._handle()) == lane.topic_id else f"{lane.topic} was replaced while it was read"

    def _handle(self) -> DeltaTable:
        handle = self._table.open()
        if handle is None:
            raise ConfigurationError(f"GAME_EVENTS_SOURCE_TABLE: there is no Delta table at {self._table.uri}")
        return handle


def _content(handle: DeltaTable) -> str:
    """Id of the table's content: its rows are others after a full refresh or a restore, which make a generation."""
    table_id, now = uuid.UUID(str(handle.metadata().id)), generation(handle)
    return str(uuid.uuid5(table_id, str(now)) if now else table_id)
