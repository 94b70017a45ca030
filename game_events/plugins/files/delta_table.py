"""Another pipeline's bronze table as the source: its raw values are decoded and routed again, without Kafka.

The table is one partition, an offset in it is a batch number. Batches only lose rows, by age and erasure, so other maintenance
and redecode of the table are invisible here; rows that are gone before they are read are missed. A full refresh or a restore of
the table makes a new partition of it, which stops this pipeline: its rows would differ from the table's.

Guarantee: as for a micro-batch of Kafka; each record keeps its Kafka coordinates.
"""

import math
import uuid
from collections.abc import Iterable
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable

from game_events.config.pipeline_settings import TABLE
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import Txn, incarnation, oldest_batch
from game_events.lakehouse.data.columns import STORED_AS, is_sourced
from game_events.lakehouse.data.reading import parts_of, selection
from game_events.lakehouse.storage import delta_options
from game_events.lakehouse.tables import BRONZE, Lakehouse, Table, add_actions
from game_events.plugins.files.readers import TableReading
from game_events.sources.source import (
    TASK_RECORDS,
    MicroBatch,
    Offsets,
    Partition,
    Source,
    SourceContext,
    SourceSnapshot,
    Upstream,
    dealt,
    last_parts,
)

#: Columns that are read.
_COLUMNS = (*STORED_AS.values(), "_batch")


class TableSource(Source):
    """Reads a bronze table of another lakehouse."""

    kind = TABLE
    alone = True
    offset_name = "batch"
    check_name = "kafka"
    loss_advice = "keep that table's rows until bronze has them"

    def __init__(self, context: SourceContext) -> None:
        """Raises ConfigurationError for this pipeline's own table; opens nothing yet."""
        settings = context.settings
        self._settings = settings
        address = settings.source_table or ""
        root, _, name = address.rpartition("/")
        # Normalised as the lakehouse does: absolute, and `s3://`.
        self._table: Table = Lakehouse(root or ".", delta_options(settings)).table(name)
        if self._table.uri == Lakehouse.of(settings).table(BRONZE).uri:
            raise ConfigurationError(
                "GAME_EVENTS_SOURCE_TABLE is this pipeline's own bronze: name another pipeline's, or unset it"
            )

    def snapshot(self, *, take_in: bool = True, full_refresh: bool = False) -> SourceSnapshot:  # noqa: ARG002
        """First and next batch of the table; raises ConfigurationError if it does not exist or is no bronze table."""
        handle = self._handle()
        missing = sorted(set(_COLUMNS) - {f.name for f in handle.schema().fields})
        last = handle.transaction_version(Txn.BATCH)
        if missing or last is None:
            raise ConfigurationError(
                f"GAME_EVENTS_SOURCE_TABLE: {self._table.uri} is no bronze table of this project"
                + (f": it has no column {', '.join(missing)}" if missing else "")
            )
        if is_sourced(handle):
            raise ConfigurationError(
                f"GAME_EVENTS_SOURCE_TABLE: {self._table.uri} has rows of several sources (`_source`), whose schema ids may be "
                "of several registries: read their topics"
            )
        partition = Partition(self._table.uri, _content_id(handle), 0, TABLE)
        return SourceSnapshot({partition: max(1, oldest_batch(handle))}, {partition: last + 1})

    def offsets_at(self, partitions: Iterable[Partition], when: datetime) -> Offsets:  # noqa: ARG002
        """Raises ConfigurationError: batches have no timestamp."""
        raise ConfigurationError("GAME_EVENTS_STARTING_TIMESTAMP works with Kafka only: unset it, or GAME_EVENTS_SOURCE_TABLE")

    def batch_limit(self, reached: Offsets) -> int:
        """As many whole batches as `max_records_per_batch` allows; at least one."""
        handle = self._handle()
        start = next(iter(reached.values()), 1)
        actions = add_actions(handle)
        if "max._batch" not in actions.column_names:
            return 1
        of_files = zip(*(actions.column(c).to_pylist() for c in ("max._batch", "min._batch", "num_records")), strict=True)
        batches = 1
        records = 0
        for last, first, rows in sorted(f for f in of_files if f[0] is not None and f[0] >= start):
            begin = max(first, start)
            # A compacted file holds many batches: its share of them counts.
            share = rows * (last - begin + 1) // max(1, last - first + 1)
            if records + share > self._settings.max_records_per_batch:
                room = self._settings.max_records_per_batch - records
                return int(max(batches, begin - start + (last - begin + 1) * room // max(1, share)))
            records += share
            batches = max(batches, last - start + 1)
        # Batches behind the last one with rows are empty.
        return max(batches, int(handle.transaction_version(Txn.BATCH) or 0) - start + 1)

    def reading(self, batch: MicroBatch) -> TableReading:
        """Rows of these batches; a row without its raw value fails the job."""
        handle = self._handle()
        (read,) = batch.end
        files = selection(handle, batch.start[read] - 1)
        tasks = max(1, math.ceil(files.rows / TASK_RECORDS))
        columns = pa.schema([f for f in pa.schema(handle.schema()) if f.name in _COLUMNS])
        parts = dealt(parts_of(files, self._table.key, math.ceil(files.rows / tasks)), tasks)
        return TableReading(self._table, columns, parts, batch.start[read], batch.end[read])

    def check(self) -> str:
        """Number of batches; as a check of the broker, which is not asked."""
        now = self.snapshot()
        return f"not used: {self._settings.source_table} is read, {max(now.latest.values()) - 1} batches"

    @classmethod
    def name(cls, settings: Settings) -> str:
        """Its address."""
        return str(settings.source_table)

    @classmethod
    def asset_key(cls, settings: Settings, topic: str) -> tuple[str, ...]:  # noqa: ARG003
        """The table's name, after its lakehouse's."""
        return ("delta", *last_parts(cls.name(settings)))

    @classmethod
    def upstreams(cls, settings: Settings) -> list[Upstream]:
        """The table."""
        said = f"Bronze of another pipeline, `{settings.source_table}`. External: that pipeline writes it."
        return [Upstream(cls.asset_key(settings, TABLE), said, ("deltalake",))]

    def changed(self, batch: MicroBatch) -> str | None:
        """Whether the table was replaced: a read sees one version of it."""
        (read,) = batch.end
        return None if _content_id(self._handle()) == read.topic_id else f"{read.topic} was replaced while it was read"

    def _handle(self) -> DeltaTable:
        handle = self._table.open_to_read()
        if handle is None:
            raise ConfigurationError(f"GAME_EVENTS_SOURCE_TABLE: there is no Delta table at {self._table.uri}")
        return handle


def _content_id(handle: DeltaTable) -> str:
    """Id of the table's content: a full refresh or a restore, which change its rows, change it."""
    table_id = uuid.UUID(str(handle.metadata().id))
    now = incarnation(handle)
    return str(uuid.uuid5(table_id, str(now)) if now else table_id)
