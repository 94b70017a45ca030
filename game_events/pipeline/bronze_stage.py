"""What Spark's workers do for bronze: Kafka records -> decoded Parquet files, and quarantine files beside them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import BatchDecoder, DecodedBatch, DecodePlan, Rejected, TypeKey
from game_events.decoding.frames import Rows, SchemaId
from game_events.decoding.reasons import Reason
from game_events.lakehouse.staging import StagedWriter, report
from game_events.lakehouse.tables import Table
from game_events.pipeline.latency import Arrivals, count_arrivals
from game_events.pipeline.suppressor import Suppression, Suppressor
from game_events.sources.source import RAW_COLUMNS, Lane, Positions

HEADERS = "_kafka_headers"
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TIME = pa.timestamp("us", tz="UTC")

#: Columns of the pipeline itself; they begin with an underscore, which no decoded column does.
OWN_COLUMNS = pa.schema(
    [
        pa.field("_kafka_topic", pa.string()),
        pa.field("_kafka_topic_id", pa.string()),
        pa.field("_kafka_partition", pa.int32()),
        pa.field("_kafka_offset", pa.int64()),
        pa.field("_kafka_timestamp", TIME),
        pa.field("_kafka_key", pa.binary()),
        pa.field(HEADERS, _HEADERS),
        pa.field("_schema_id", pa.int64()),
        pa.field("_schema_guid", pa.string()),
        pa.field("_raw_value", pa.binary()),
        pa.field("_batch", pa.int64()),
        # of files as the source (docs/sources.md), else NULL: which file, and the record's place in it from 0
        pa.field("_file_path", pa.string()),
        pa.field("_file_position", pa.int64()),
    ]
)
#: Column of a source -> column of bronze and quarantine.
STORED_AS = {name: "_raw_value" if name == "value" else f"_kafka_{name}" for name in RAW_COLUMNS}
#: Columns that tell each record of the source from every other.
COORDINATES = ("_kafka_topic_id", "_kafka_partition", "_kafka_offset")
QUARANTINE_COLUMNS = pa.schema(
    [
        *OWN_COLUMNS,
        pa.field("layer", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("quarantined_at", TIME),
        pa.field("run_id", pa.string()),
        # NULL until the row has come to bronze after all (`replay.py`): when, to which table, as which batch of it
        pa.field("replayed_table", pa.string()),
        pa.field("replayed_batch", pa.int64()),
        pa.field("replayed_at", TIME),
        # of rows that a rule of silver rejects (layer `silver`): they are in bronze, and here instead of in this game's table
        pa.field("game", pa.string()),
    ]
)
QUARANTINE_DESCRIPTION = (
    "Every record that is not in bronze (layer bronze), and every row that a rule keeps out of silver (layer silver), with the "
    "reason; an append-only log that can be replayed"
)
#: Columns that only files' records have -> columns of bronze.
FILE_COLUMNS = {"file_path": "_file_path", "file_position": "_file_position"}
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
    """The empty list that stands for no headers on the way."""
    return F.array().cast(_HEADERS_SQL)


@dataclass(frozen=True)
class BronzeTask:
    """What a worker needs for its part of a slice; picklable.

    Attributes:
        bronze, quarantine: where files go.
        plan: how to decode.
        constants: columns of the source that are the same in all rows, and do not travel with them.
        batch, run_id: the slice's batch; who reads it.
        keep_raw: whether bronze keeps the raw values of what is decoded.
        decided: (topic id, partition) -> offsets that quarantine holds already (a crash came between its commit and bronze's).
        suppression: whose records are in neither table, but counted; None: nobody was forgotten.
    """

    bronze: Table
    quarantine: Table
    plan: DecodePlan
    constants: Mapping[str, str]
    batch: int
    run_id: str
    keep_raw: bool
    decided: Mapping[tuple[str, int], frozenset[int]] = field(default_factory=dict)
    suppression: Suppression | None = None

    @property
    def tables(self) -> tuple[Table, Table | None]:
        """Where it writes."""
        return self.bronze, self.quarantine

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: consumes the records, yields the report (`REPORT_SCHEMA`)."""
        yield report(iter(self.stage(batches)))

    def stage(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[str, str]]:
        """Consumes the records; gives the report's rows."""
        return _Stage(self).run(batches)


class StageTask(Protocol):
    """What `run_decode_job` runs: a function for `mapInArrow` that writes files of bronze and, perhaps, of quarantine."""

    @property
    def plan(self) -> DecodePlan:
        """How it decodes, and where fields land."""

    @property
    def tables(self) -> tuple[Table, Table | None]:
        """Where it writes."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Consumes rows, yields the report (`REPORT_SCHEMA`)."""


class _Stage:
    """One worker's pass over its part."""

    def __init__(self, task: BronzeTask) -> None:
        self._task = task
        self._schema = bronze_schema(task.plan.columns)
        self._decoder = BatchDecoder(task.plan)
        self._good = StagedWriter(task.bronze, self._schema)
        self._bad = StagedWriter(task.quarantine, QUARANTINE_COLUMNS)
        self._types: set[TypeKey] = set()
        self._undecoded: Counter[TypeKey] = Counter()
        self._unknown: set[TypeKey] = set()
        self._reasons: Counter[str] = Counter()
        self._arrivals: Arrivals = Counter()
        self._now = datetime.now(UTC)
        self._suppressor = Suppressor(task.suppression) if task.suppression is not None else None
        self._suppressed = 0
        self._origins: Positions = {}

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[str, str]]:
        for batch in batches:
            self._note_origins(batch)
            rows = self._readable(self._undecided(batch))
            decoded = self._decode(rows)
            self._types |= decoded.types
            self._unknown |= decoded.unknown
            # With an unknown type the driver plans again: go on only to find all of them.
            if not self._unknown:
                self._write(rows, decoded)
                self._arrivals.update(count_arrivals(rows.column("timestamp")))
        if self._unknown:
            self._good.abort()
            self._bad.abort()
        files = [("bronze", f.to_json()) for f in self._good.close()]
        files += [("quarantine", f.to_json()) for f in self._bad.close()]
        seen = {
            "types": list(self._types),
            "unknown": list(self._unknown),
            "reasons": self._reasons,
            "undecoded": [[*key, rows] for key, rows in self._undecoded.items()],
            "arrivals": list(self._arrivals.items()),
            "suppressed": self._suppressed,
            "origins": [[lane.topic, lane.topic_id, lane.partition, end] for lane, end in self._origins.items()],
        }
        return [*files, ("seen", json.dumps(seen))]

    def _undecided(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without the rows that quarantine has decided on in an earlier attempt."""
        if not self._task.decided:
            return batch
        partitions, offsets = batch.column("partition").to_numpy(), batch.column("offset").to_numpy()
        ids = self._column(batch, "topic_id", len(batch))
        keep = np.ones(len(batch), dtype=bool)
        for (topic_id, partition), held in self._task.decided.items():
            mine = pc.fill_null(pc.equal(ids, topic_id), False).to_numpy(zero_copy_only=False) & (partitions == partition)
            keep &= ~(mine & np.isin(offsets, np.fromiter(held, dtype=np.int64)))
        return batch.filter(pa.array(keep))

    def _note_origins(self, batch: pa.RecordBatch) -> None:
        """Of records from files, how far their lanes have come: those that quarantine has decided on included.

        Those of an archive have lanes of topics, or of other files; those of plain files all have that of this lakehouse.
        """
        if "file_path" not in batch.schema.names:
            return
        rows = pa.Table.from_batches([batch.select(["topic", "topic_id", "partition", "offset"])])
        for row in rows.group_by(["topic", "topic_id", "partition"]).aggregate([("offset", "max")]).to_pylist():
            lane = Lane(row["topic"], row["topic_id"], row["partition"])
            self._origins[lane] = max(row["offset_max"] + 1, self._origins.get(lane, 0))

    def _readable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without the rows that stand for what could not be read as records at all (of files); those go to quarantine."""
        if "reason" not in batch.schema.names or batch.column("reason").null_count == len(batch):
            return batch
        refused = batch.filter(batch.column("reason").is_valid())
        said = zip(refused.column("reason").to_pylist(), refused.column("detail").to_pylist(), strict=True)
        if not self._unknown:
            rejected = [Rejected(Reason(why), detail, np.array([row]), None) for row, (why, detail) in enumerate(said)]
            self._write(refused, DecodedBatch(rejected=rejected))
        return batch.filter(batch.column("reason").is_null())

    def _decode(self, rows: pa.RecordBatch) -> DecodedBatch:
        if "columns" in rows.schema.names and len(rows):
            return self._decoder.decode_columns(rows.column("schema_guid")[0].as_py(), rows.column("columns"))
        return self._decoder.decode(rows.column("value"), rows.column("headers"))

    def _write(self, batch: pa.RecordBatch, decoded: DecodedBatch) -> None:
        decoded = decoded if self._suppressor is None else self._without_forgotten(batch, decoded, self._suppressor)
        for rows, schema_id, columns in decoded.good:
            own = self._own(batch, rows, schema_id, raw=self._task.keep_raw)
            by_name = own | {name: columns.column(name) for name in columns.column_names}
            self._good.write(arranged(by_name, self._schema, len(rows)))
        for rows, key in decoded.undecoded:
            # Whatever the setting says: nothing else of these records is kept, and they may be decoded one day.
            self._good.write(arranged(self._own(batch, rows, key[0], raw=True), self._schema, len(rows)))
            self._undecoded[key] += len(rows)
        for rejected in decoded.rejected:
            self._bad.write(self._quarantined(batch, rejected))
            self._reasons[rejected.reason] += len(rejected.rows)

    def _without_forgotten(self, batch: pa.RecordBatch, decoded: DecodedBatch, suppressor: Suppressor) -> DecodedBatch:
        """Rows of forgotten gamers are counted and go nowhere; of those that do not decode, key or coordinates may tell."""
        kept = DecodedBatch()
        for rows, schema_id, columns in decoded.good:
            gone = suppressor.decoded(columns)
            self._suppressed += int(gone.sum())
            if not gone.all():
                kept.good.append(
                    (rows[~gone], schema_id, columns.filter(pa.array(~gone))) if gone.any() else (rows, schema_id, columns)
                )
        count = len(batch)
        without_columns = decoded.rejected or decoded.undecoded
        theirs = suppressor.undecodable(batch, self._column(batch, "topic_id", count)) if without_columns else np.zeros(0, bool)
        for item in decoded.rejected:
            gone = theirs[item.rows]
            self._suppressed += int(gone.sum())
            if not gone.all():
                kept.rejected.append(replace(item, rows=item.rows[~gone]))
        for rows, key in decoded.undecoded:
            gone = theirs[rows]
            self._suppressed += int(gone.sum())
            if not gone.all():
                kept.undecoded.append((rows[~gone], key))
        return kept

    def _own(self, batch: pa.RecordBatch, rows: Rows, schema_id: SchemaId | None, *, raw: bool) -> dict[str, pa.Array]:
        count = len(rows)
        taken = batch if count == len(batch) and _ascending(rows) else batch.take(pa.array(rows))
        own = {
            "_kafka_topic": self._column(taken, "topic", count),
            "_kafka_topic_id": self._column(taken, "topic_id", count),
            "_kafka_partition": taken.column("partition"),
            "_kafka_offset": taken.column("offset"),
            "_kafka_timestamp": taken.column("timestamp"),
            "_kafka_key": taken.column("key"),
            "_kafka_headers": none_if_empty(taken.column("headers")),
            "_batch": pa.repeat(pa.scalar(self._task.batch, pa.int64()), count),
        }
        own |= {own_name: taken.column(name) for name, own_name in FILE_COLUMNS.items() if name in taken.schema.names}
        own |= identity_columns(schema_id, count)
        return own | {"_raw_value": taken.column("value")} if raw else own

    def _column(self, rows: pa.RecordBatch, name: str, count: int) -> pa.Array:
        """A column of the source, whether it travelled with the rows or not."""
        constant = self._task.constants.get(name)
        return rows.column(name) if constant is None else pa.repeat(pa.scalar(constant), count)

    def _quarantined(self, batch: pa.RecordBatch, rejected: Rejected) -> pa.Table:
        count = len(rejected.rows)
        own = self._own(batch, rejected.rows, rejected.schema_id, raw=True)
        own |= {
            "layer": pa.repeat(pa.scalar("bronze"), count),
            "reason": pa.repeat(pa.scalar(str(rejected.reason)), count),
            "detail": pa.repeat(pa.scalar(rejected.detail), count),
            "quarantined_at": pa.repeat(pa.scalar(self._now, TIME), count),
            "run_id": pa.repeat(pa.scalar(self._task.run_id), count),
        }
        return arranged(own, QUARANTINE_COLUMNS, count)


def none_if_empty(headers: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """No headers are NULL, as Spark's Kafka source has them; they only travel as empty lists (see `source_columns`)."""
    lengths = pc.list_value_length(headers)
    if not pc.any(pc.greater(lengths, 0)).as_py():
        return pa.nulls(len(headers), headers.type)
    return pc.if_else(pc.greater(lengths, 0), headers, pa.scalar(None, headers.type))


def _ascending(rows: Rows) -> bool:
    return bool((np.diff(rows) > 0).all())


def bronze_schema(columns: ColumnMap) -> pa.Schema:
    """Own columns, then every decoded column, each with its share of the column map."""
    decoded = [pa.field(n, t, metadata=columns.metadata(n)) for n, t in columns.columns.items()]
    return pa.schema([*OWN_COLUMNS, *decoded])


def identity_columns(schema_id: SchemaId | None, count: int) -> dict[str, pa.Array]:
    """`_schema_id` or `_schema_guid`, the other one NULL."""
    number, guid = (schema_id, None) if isinstance(schema_id, int) else (None, schema_id)
    return {
        "_schema_id": pa.repeat(pa.scalar(number, pa.int64()), count),
        "_schema_guid": pa.repeat(pa.scalar(guid, pa.string()), count),
    }


def arranged(columns: Mapping[str, pa.Array | pa.ChunkedArray], schema: pa.Schema, count: int) -> pa.Table:
    """Columns by name in the schema's order; what is missing is NULL."""
    arrays = []
    for item in schema:
        column = columns.get(item.name)
        if column is None:
            column = pa.nulls(count, item.type)
        arrays.append(column if column.type == item.type else column.cast(item.type))
    return pa.Table.from_arrays(arrays, schema=schema)
