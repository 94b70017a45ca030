"""Spark's workers for bronze: records, or stored raw values, -> Parquet files of bronze and of quarantine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding.decoder import DecodedBatch, DecodePlan, Rejected, TypeKey
from game_events.decoding.frame import Reason, Rows, SchemaId, SchemaRef, named
from game_events.decoding.unframed.topics import Records
from game_events.lakehouse.data.columns import (
    HEADERS,
    MESSAGE_TYPE,
    OWN_NAMES,
    QUARANTINE_COLUMNS,
    RECORD,
    SCHEMA_COLUMNS,
    SOME_COLUMNS,
    SOURCE,
    TIME,
    bronze_schema,
    identity_columns,
    none_if_empty,
    own_columns,
)
from game_events.lakehouse.data.layout import Writer, writer_of
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.tables import Layer, Table
from game_events.sources.source import Partition, Reading, ReadNotes
from game_events.workers.computed import Computation
from game_events.workers.fanout import FanOut, OnePassTask, SecondStage
from game_events.workers.job import WorkerJob, numbers_of
from game_events.workers.records import RecordDecoder
from game_events.workers.results import NO_TYPE, StagedRows, count_arrivals

#: A truth value for each row.
Mask = npt.NDArray[np.bool_]


class RecordFilter(ABC):
    """The filter of one micro-batch, made by the driver; picklable. Its content is in no plan and no log."""

    @abstractmethod
    def open(self) -> OpenRecordFilter:
        """The filter of one worker's task."""


class OpenRecordFilter(ABC):
    """The filter of one worker's task."""

    @abstractmethod
    def decoded(self, rows: pa.Table) -> Mask:
        """Which decoded rows must not be stored."""

    @abstractmethod
    def undecodable(self, batch: pa.RecordBatch, topic_ids: pa.Array, rows: Rows) -> Mask:
        """Which of some rows of raw records must not be stored, as a mask of the batch.

        `batch`: columns `key`, `headers`, `partition`, `offset`; `topic_ids`: of each of its records.
        """

    def stored(
        self, batch: DecodedBatch, undecodable: Callable[[Rows], Mask], note: Callable[[Rows], None], *, with_rejected: bool
    ) -> DecodedBatch:
        """The rows of a decoded batch that may be stored; `note` gets the numbers of the others.

        `undecodable`: mask of the batch for some of its rows: undecoded ones and, `with_rejected`, rejected ones, too.
        """
        kept = DecodedBatch(rejected=[] if with_rejected else batch.rejected)
        for good in batch.good:
            refused = self.decoded(good.columns)
            rest = _left(good.rows, refused, note)
            if len(rest):
                columns = good.columns.filter(pa.array(~refused)) if refused.any() else good.columns
                kept.good.append(good._replace(rows=rest, columns=columns))
        rejected = batch.rejected if with_rejected else []
        unknown = [rows for rows, _ in batch.undecoded] + [item.rows for item in rejected]
        if not unknown:
            return kept
        mask = undecodable(np.concatenate(unknown))
        kept.rejected += _rejected_left(rejected, mask, note)
        kept.undecoded += _undecoded_left(batch, mask, note)
        return kept


def _rejected_left(rejected: list[Rejected], refused: Mask, note: Callable[[Rows], None]) -> list[Rejected]:
    left = []
    for item in rejected:
        rest = _left(item.rows, refused[item.rows], note)
        if len(rest):
            left.append(replace(item, rows=rest))
    return left


def _undecoded_left(batch: DecodedBatch, refused: Mask, note: Callable[[Rows], None]) -> list[tuple[Rows, TypeKey]]:
    left = []
    for rows, key in batch.undecoded:
        rest = _left(rows, refused[rows], note)
        if len(rest):
            left.append((rest, key))
    return left


def _left(rows: Rows, refused: Mask, note: Callable[[Rows], None]) -> Rows:
    if refused.any():
        note(rows[refused])
    return rows[~refused]


def computation_of(plan: DecodePlan) -> Computation | None:
    """What computes columns of the plan's decoded rows; None: all columns are as they were decoded."""
    return Computation(plan.definitions, plan.columns) if plan.definitions is not None else None


@dataclass(frozen=True)
class DecodeJob(WorkerJob[StagedRows]):
    """Decodes rows and writes them to files; `quarantine`: None: undecodable rows are not written to it."""

    result: ClassVar[type] = StagedRows
    bronze: Table
    quarantine: Table | None
    plan: DecodePlan

    def discard(self, staged: StagedRows) -> None:
        """Delete the files, none of which is in a commit."""
        staged.discard(self.bronze, self.quarantine)


@dataclass(frozen=True)
class BronzeTask(DecodeJob):
    """Reads and decodes a task's records of a micro-batch; picklable.

    Attributes:
        keep_raw: whether bronze keeps the raw values of decoded records.
        decided: (topic id, partition) -> offsets that quarantine holds already (a crash came between its commit and bronze's).
        record_filter: records that it refuses are only counted. None: there is none.
        deadly: (topic id, partition, offset) of records that crash a worker -> detail for quarantine: they are not decoded.
        one_pass: how silver's files of the rows are written in the same pass; None: they are not.
    """

    quarantine: Table
    reading: Reading
    batch: int
    run_id: str
    keep_raw: bool
    decided: Mapping[tuple[str, int], frozenset[int]] = field(default_factory=dict)
    record_filter: RecordFilter | None = None
    deadly: Mapping[tuple[str, int, int], str] = field(default_factory=dict)
    one_pass: OnePassTask | None = None

    def fan_out(self) -> FanOut | None:
        """How silver's files of rows with the plan's columns are written."""
        return self.one_pass.fan_out(self.plan.columns) if self.one_pass is not None else None

    def discard(self, staged: StagedRows) -> None:
        """Silver's files, too."""
        super().discard(staged)
        if self.one_pass is not None:
            staged.silver.discard(self.one_pass.lakehouse.silver)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> StagedRows:
        """Read, decode and write the records of the tasks of these numbers."""
        decoder = RecordDecoder(self.plan)
        computation = computation_of(self.plan)
        output = _Output(self)
        notes = ReadNotes()
        for task in numbers_of(batches):
            for batch in self.reading.batches(task, notes):
                self._decode(batch, decoder, computation, output)
        result = output.result
        if not result.is_planned:
            output.abort()
        output.close()
        known = self.plan
        result.schemas += [s for i, s in notes.schemas.items() if i not in known.schemas and (i, ()) not in known.rejected]
        result.incomplete = notes.incomplete
        result.examples = notes.examples
        return result

    def _decode(self, batch: pa.RecordBatch, decoder: RecordDecoder, computation: Computation | None, output: _Output) -> None:
        """Decode records and write them; of a type that the plan does not know, the driver plans again."""
        result = output.result
        if "file_path" in batch.schema.names:
            _note_origins(batch, result)
        rows = self._undecided(batch) if self.decided else batch
        rows = _marked(rows, self.deadly) if self.deadly else rows
        if rows.column("reason").null_count < len(rows):
            rows = output.readable(rows)
        source = batch.column("source")[0].as_py() if "source" in batch.schema.names else None
        registry = self.plan.registry_of(source)
        for part in decoder.parts(rows, "value"):
            if "columns" in part.schema.names and len(part):
                schema_id = named(registry, part.column("schema_guid")[0].as_py())
                decoded = decoder.decode_columns(schema_id, part.column("columns"))
            else:
                values, headers, topics, keys = (part.column(name) for name in ("value", "headers", "topic", "key"))
                decoded = decoder.decode_records(Records(values, headers, topics, keys, None, source, registry))
            result.note(decoded)
            # Else the decoder continues only to find all that is unknown.
            if result.is_planned:
                output.write(part, computation.applied(decoded, part, result) if computation is not None else decoded)
                result.arrivals.update(count_arrivals(part.column("timestamp")))

    def _undecided(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        partitions = batch.column("partition").to_numpy()
        offsets = batch.column("offset").to_numpy()
        ids = batch.column("topic_id")
        keep = np.ones(len(batch), dtype=bool)
        for (topic_id, partition), decided in self.decided.items():
            mine = pc.fill_null(pc.equal(ids, topic_id), False).to_numpy(zero_copy_only=False) & (partitions == partition)
            keep &= ~(mine & np.isin(offsets, np.fromiter(decided, dtype=np.int64)))
        return batch.filter(pa.array(keep))


def _marked(batch: pa.RecordBatch, deadly: Mapping[tuple[str, int, int], str]) -> pa.RecordBatch:
    places = zip(*(batch.column(name).to_pylist() for name in ("topic_id", "partition", "offset")), strict=True)
    details = [deadly.get(place) for place in places]
    malformed = pa.array([detail is not None for detail in details])
    reasons = pc.if_else(malformed, pa.scalar(str(Reason.MALFORMED)), batch.column("reason"))
    marked = batch.set_column(batch.schema.get_field_index("reason"), "reason", reasons)
    detail = pc.coalesce(pa.array(details, pa.string()), batch.column("detail"))
    return marked.set_column(batch.schema.get_field_index("detail"), "detail", detail)


def _note_origins(batch: pa.RecordBatch, result: StagedRows) -> None:
    """Note the last offset of each partition of records from files, also of those that quarantine holds already.

    Records of an archive have partitions of topics, or of other files; those of plain files the one of this lakehouse.
    """
    rows = pa.Table.from_batches([batch.select(["topic", "topic_id", "partition", "offset"])])
    for row in rows.group_by(["topic", "topic_id", "partition"]).aggregate([("offset", "max")]).to_pylist():
        partition = Partition(row["topic"], row["topic_id"], row["partition"])
        result.origins[partition] = max(row["offset_max"] + 1, result.origins.get(partition, 0))


class _Output:
    def __init__(self, task: BronzeTask) -> None:
        self.result = StagedRows()
        self._task = task
        self.good = writer_of(task.bronze, bronze_schema(task.plan.columns))
        self.bad = StagedWriter(task.quarantine, own_columns(QUARANTINE_COLUMNS, sourced=task.plan.columns.sourced))
        self._now = datetime.now(UTC)
        self._filter = task.record_filter.open() if task.record_filter is not None else None
        fan_out = task.fan_out()
        self._silver = SecondStage(fan_out) if fan_out is not None else None

    def abort(self) -> None:
        """Delete what was written."""
        self.good.abort()
        self.bad.abort()
        if self._silver is not None:
            self._silver.give_up()

    def close(self) -> None:
        """Write the rest, and note the files in the result."""
        self.result.bronze = self.good.close()
        self.result.quarantine = self.bad.close()
        if self._silver is not None:
            self.result.silver = self._silver.finish()

    def _keep(self, columns: Mapping[str, pa.Array], count: int) -> None:
        rows = self.good.rows_of(columns, count)
        self.good.write(rows)
        if self._silver is not None:
            self._silver.add(rows)

    def readable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows without those that are no records (damaged parts of files, excluded records); these go to quarantine."""
        refused = batch.filter(batch.column("reason").is_valid())
        if self.result.is_planned:
            said = zip(refused.column("reason").to_pylist(), refused.column("detail").to_pylist(), strict=True)
            rejected = [Rejected(Reason(why), detail, np.array([row]), None) for row, (why, detail) in enumerate(said)]
            self.write(refused, DecodedBatch(rejected=rejected))
        return batch.filter(batch.column("reason").is_null())

    def write(self, batch: pa.RecordBatch, decoded: DecodedBatch) -> None:
        """Write a batch's rows without those that a plug-in's filter refuses, which are only counted."""
        result = self.result
        if self._filter is not None:
            refused: list[Rows] = []
            undecodable = partial(self._filter.undecodable, batch, batch.column("topic_id"))
            decoded = self._filter.stored(decoded, undecodable, refused.append, with_rejected=True)
            result.suppressed += sum(map(len, refused))
        for rows, schema_id, columns, name in decoded.good:
            result.by_type[name or NO_TYPE] += len(rows)
            own = self._own(batch, rows, raw=self._task.keep_raw) | identity_columns(schema_id, name, len(rows))
            self._keep(own | {column: columns.column(column) for column in columns.column_names}, len(rows))
        for rows, key in decoded.undecoded:
            # Raw values regardless of the setting: nothing else of these records is kept, and they may be decoded one day.
            name = self._task.plan.name_of(key)
            result.by_type[name or NO_TYPE] += len(rows)
            own = self._own(batch, rows, raw=True) | identity_columns(key[0], name, len(rows))
            self._keep(own, len(rows))
            result.undecoded[key] += len(rows)
        if decoded.rejected:
            self._reject(batch, decoded.rejected)

    def _reject(self, batch: pa.RecordBatch, rejected: list[Rejected]) -> None:
        """Write rejected rows to quarantine, all at once: records choose how many details differ."""
        counts = [len(item.rows) for item in rejected]
        for item, count in zip(rejected, counts, strict=True):
            self.result.reasons[item.reason] += count
        rows = np.concatenate([item.rows for item in rejected])
        which = pa.array(np.repeat(np.arange(len(counts)), counts))
        count = len(rows)
        refs = [SchemaRef.of(item.schema_id) for item in rejected]
        of_each = {
            "reason": pa.array([str(item.reason) for item in rejected], pa.string()),
            "detail": pa.array([item.detail for item in rejected], pa.string()),
            "_schema_id": pa.array([ref.number for ref in refs], pa.int64()),
            "_schema_guid": pa.array([ref.guid for ref in refs], pa.string()),
            MESSAGE_TYPE: pa.array([item.message_type for item in rejected], pa.string()),
        }
        why = {
            "layer": pa.repeat(pa.scalar(Layer.BRONZE), count),
            "quarantined_at": pa.repeat(pa.scalar(self._now, TIME), count),
            "run_id": pa.repeat(pa.scalar(self._task.run_id), count),
        }
        own = self._own(batch, rows, raw=True)
        self.bad.write_columns(own | why | {name: values.take(which) for name, values in of_each.items()}, count)

    def _own(self, batch: pa.RecordBatch, rows: Rows, *, raw: bool) -> dict[str, pa.Array]:
        count = len(rows)
        taken = batch if count == len(batch) and (np.diff(rows) > 0).all() else batch.take(pa.array(rows))
        own = {
            "_kafka_topic": taken.column("topic"),
            "_kafka_topic_id": taken.column("topic_id"),
            "_kafka_partition": taken.column("partition"),
            "_kafka_offset": taken.column("offset"),
            "_kafka_timestamp": taken.column("timestamp"),
            "_kafka_key": taken.column("key"),
            "_kafka_headers": none_if_empty(taken.column("headers")),
            "_batch": pa.repeat(pa.scalar(self._task.batch, pa.int64()), count),
        }
        own |= {own_name: taken.column(name) for name, own_name in SOME_COLUMNS.items() if name in taken.schema.names}
        return own | {"_raw_value": taken.column("value")} if raw else own


@dataclass(frozen=True)
class StoredTask(DecodeJob):
    """Decodes stored rows again; picklable.

    Attributes:
        batch: number of the batch the rows get; None: each keeps its own.
        keep_raw: whether the written rows hold their raw value; those of types that are not selected always do.
        keep_undecodable: rows that do not decode (or hold no raw value) are written as they are; else they are left out.
        record_filter: rows that it refuses are left out and reported. None: there is none.
    """

    batch: int | None
    keep_raw: bool
    keep_undecodable: bool
    record_filter: RecordFilter | None = None

    def stage(self, batches: Iterable[pa.RecordBatch]) -> StagedRows:
        """Decode and write rows with bronze's own columns."""
        decoder = RecordDecoder(self.plan)
        computation = computation_of(self.plan)
        writer = writer_of(self.bronze, bronze_schema(self.plan.columns))
        result = StagedRows()
        open_filter = self.record_filter.open() if self.record_filter is not None else None
        for source, sent in by_source(batches):
            for batch in decoder.parts(sent, "_raw_value"):
                rows = pa.Table.from_batches([batch])
                index = rows.schema.get_field_index(HEADERS)
                rows = rows.set_column(index, HEADERS, none_if_empty(rows.column(index)))
                decoded = decoder.decode_records(stored_records(batch, source, self.plan.registry_of(source)))
                result.note(decoded)
                if not result.is_planned:
                    continue  # the driver plans again: continue only to find all of them
                if computation is not None:
                    decoded = computation.applied(decoded, batch, result)
                if open_filter is not None:
                    undecodable = partial(_undecodable, batch, open_filter)
                    decoded = open_filter.stored(
                        decoded, undecodable, partial(_note_records, result, rows), with_rejected=False
                    )
                self._write(rows, decoded, writer, result)
        if not result.is_planned:
            writer.abort()
        result.bronze = writer.close()
        result.suppressed = len(result.suppressed_records)
        return result

    def _write(self, rows: pa.Table, decoded: DecodedBatch, writer: Writer, result: StagedRows) -> None:
        for numbers, schema_id, columns, name in decoded.good:
            result.by_type[name or NO_TYPE] += len(numbers)
            own = self._own(rows, numbers, schema_id, name, keep_raw=self.keep_raw)
            writer.write_columns(own | {column: columns.column(column) for column in columns.column_names}, len(numbers))
        for numbers, key in decoded.undecoded:
            result.undecoded[key] += len(numbers)
            name = self.plan.name_of(key)
            result.by_type[name or NO_TYPE] += len(numbers)
            own = self._own(rows, numbers, key[0], name, keep_raw=True)
            writer.write_columns(own, len(numbers))
        for rejected in decoded.rejected:
            result.reasons[rejected.reason] += len(rejected.rows)
            if self.keep_undecodable:
                kept = rows.take(pa.array(rejected.rows))
                writer.write_columns({name: kept.column(name) for name in kept.column_names}, kept.num_rows)

    def _own(
        self, rows: pa.Table, numbers: Rows, schema_id: SchemaId | None, message_type: str | None, *, keep_raw: bool
    ) -> dict[str, pa.ChunkedArray | pa.Array]:
        taken = rows.take(pa.array(numbers))
        own = {name: taken.column(name) for name in OWN_NAMES if name in taken.column_names}
        own |= identity_columns(schema_id, message_type, len(numbers))
        if self.batch is not None:
            own["_batch"] = pa.repeat(pa.scalar(self.batch, pa.int64()), len(numbers))
        if not keep_raw:
            own["_raw_value"] = pa.nulls(len(numbers), pa.binary())
        return own


def stored_records(batch: pa.RecordBatch, source: str | None, registry: str) -> Records:
    """Rows of bronze or quarantine as records."""
    values, headers, topics, keys = (batch.column(name) for name in ("_raw_value", HEADERS, "_kafka_topic", "_kafka_key"))
    schema_id, guid, message_type = (batch.column(name) for name in (*SCHEMA_COLUMNS, MESSAGE_TYPE))
    return Records(values, headers, topics, keys, (schema_id, guid, message_type), source, registry)


def by_source(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The rows by their sources; None: older ones, or there is one source."""
    for batch in batches:
        if SOURCE not in batch.schema.names:
            yield None, batch
            continue
        sources = batch.column(SOURCE)
        for source in pc.unique(sources).to_pylist():
            is_of_source = pc.is_null(sources) if source is None else pc.fill_null(pc.equal(sources, source), False)
            yield source, batch.filter(is_of_source)


def _note_records(result: StagedRows, rows: pa.Table, numbers: Rows) -> None:
    taken = rows.take(pa.array(numbers))
    result.suppressed_records += zip(*(taken.column(name).to_pylist() for name in RECORD), strict=True)


def _undecodable(batch: pa.RecordBatch, open_filter: OpenRecordFilter, rows: Rows) -> Mask:
    """Mask of the rows that the filter refuses without decoding them."""
    record = {name: batch.column(f"_kafka_{name}") for name in ("key", "headers", "partition", "offset")}
    return open_filter.undecodable(pa.RecordBatch.from_pydict(record), pc.fill_null(batch.column("_kafka_topic_id"), ""), rows)
