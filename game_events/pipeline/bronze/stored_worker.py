"""Spark's workers for stored raw values: decoded again into bronze's columns."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.batch_decoder import BatchDecoder
from game_events.decoding.core.wire_format import Rows, SchemaId
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.event_columns import (
    HEADERS,
    OWN_COLUMNS,
    RECORD,
    bronze_schema,
    identity_columns,
    none_if_empty,
)
from game_events.pipeline.bronze.worker import DecodeJob, StageResult
from game_events.pipeline.suppression.worker import Mask, Suppression, Suppressor


@dataclass(frozen=True)
class StoredTask(DecodeJob):
    """Decodes stored rows again; picklable.

    Attributes:
        batch: number of the batch the rows get; None: each keeps its own.
        keep_raw: whether the written rows hold their raw value; those of types that are not selected always do.
        keep_undecodable: rows that do not decode (or hold no raw value) are written as they are; else they are left out.
        suppression: the erased data subjects; their rows are left out and reported. None: there are none.
    """

    batch: int | None
    keep_raw: bool
    keep_undecodable: bool
    suppression: Suppression | None = None

    def stage(self, batches: Iterable[pa.RecordBatch]) -> StageResult:
        """Decode rows with bronze's own columns and write them to files."""
        decoder = BatchDecoder(self.plan)
        writer = StagedWriter(self.bronze, bronze_schema(self.plan.columns))
        result = StageResult()
        suppressor = Suppressor(self.suppression) if self.suppression is not None else None
        for batch in (part for rows in batches for part in decoder.parts(rows, "_raw_value")):
            rows = pa.Table.from_batches([batch])
            at = rows.schema.get_field_index(HEADERS)
            rows = rows.set_column(at, HEADERS, none_if_empty(rows.column(at)))
            decoded = decoder.decode(batch.column("_raw_value"), batch.column("_kafka_headers"))
            result.types |= decoded.types
            result.unknown |= decoded.unknown
            result.nulled.update(decoded.nulled)
            if result.unknown:
                continue  # the driver plans again: continue only to find all of them
            if suppressor is not None:
                undecodable, note = partial(_undecodable, batch, suppressor), partial(_note_records, result, rows)
                decoded = suppressor.without_erased(decoded, undecodable, note, rejected=False)
            for at, schema_id, columns in decoded.good:
                own = self._own(rows, at, schema_id, keep_raw=self.keep_raw)
                writer.write_columns(own | {name: columns.column(name) for name in columns.column_names}, len(at))
            for at, key in decoded.undecoded:
                result.undecoded[key] += len(at)
                writer.write_columns(self._own(rows, at, key[0], keep_raw=True), len(at))
            for rejected in decoded.rejected:
                result.reasons[rejected.reason] += len(rejected.rows)
                if self.keep_undecodable:
                    kept = rows.take(pa.array(rejected.rows))
                    writer.write_columns({n: kept.column(n) for n in kept.column_names}, kept.num_rows)
        if result.unknown:
            writer.abort()
        result.bronze, result.suppressed = writer.close(), len(result.suppressed_records)
        return result

    def _own(self, rows: pa.Table, at: Rows, schema_id: SchemaId, *, keep_raw: bool) -> dict[str, pa.ChunkedArray | pa.Array]:
        taken = rows.take(pa.array(at))
        own = {name: taken.column(name) for name in OWN_COLUMNS.names if name in taken.column_names}
        own |= identity_columns(schema_id, len(at))
        if self.batch is not None:
            own["_batch"] = pa.repeat(pa.scalar(self.batch, pa.int64()), len(at))
        if not keep_raw:
            own["_raw_value"] = pa.nulls(len(at), pa.binary())
        return own


def _note_records(result: StageResult, rows: pa.Table, at: Rows) -> None:
    """Note which records these rows are (`RECORD`)."""
    taken = rows.take(pa.array(at))
    result.suppressed_records += zip(*(taken.column(name).to_pylist() for name in RECORD), strict=True)


def _undecodable(batch: pa.RecordBatch, suppressor: Suppressor, rows: Rows) -> Mask:
    """Mask of the rows of erased data subjects that are recognised without decoding."""
    record = {name: batch.column(f"_kafka_{name}") for name in ("key", "headers", "partition", "offset")}
    return suppressor.undecodable(pa.RecordBatch.from_pydict(record), pc.fill_null(batch.column("_kafka_topic_id"), ""), rows)
