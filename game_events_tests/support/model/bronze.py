"""Bronze's slices without Spark, Kafka and registry: a topic in memory, and runs of which each knows other schemas.

Everything else is the pipeline's own (`load_bronze`, its commits to both tables), on real Delta tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from game_events.config.settings import Settings
from game_events.decoding.columns import ColumnMap
from game_events.errors import TransientError
from game_events.lakehouse.data.columns import COORDINATES, QUARANTINE_COLUMNS
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import StagedFile, staged
from game_events.lakehouse.tables import Table
from game_events.pipeline.bronze import load as bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout import OnePass
from game_events.sources.source import MicroBatch, Offsets, Partition, SourceSnapshot
from game_events.workers.fanout import SecondStage
from game_events.workers.results import StagedRows
from game_events_tests.support.pipelines import reading, stage_by_hand
from game_events_tests.support.sources import ScriptedSource

LANE = Partition("t", "A" * 21 + "A", 0)
#: Of another source, whose topic sorts after the first one's.
OTHER_LANE = Partition("o", "A" * 21 + "Q", 0)
#: Of a record without decoded columns.
UNKNOWN = "UNKNOWN_SCHEMA"


@dataclass
class Topic:
    """Records that any number of runs read.

    Attributes:
        columns: what is decoded: name -> type.
        records: split -> one mapping for each offset: `schema`, the schema's id, values of the columns, and perhaps `at`, the
            time that it was sent.
        expired: split -> first offset that there still is.
    """

    columns: dict[str, pa.DataType] = field(default_factory=dict)
    records: dict[Partition, list[dict[str, Any]]] = field(default_factory=lambda: {LANE: []})
    expired: Offsets = field(default_factory=dict)

    def snapshot(self) -> SourceSnapshot:
        """The offsets."""
        ends = {split: len(of) for split, of in self.records.items()}
        return SourceSnapshot({split: self.expired.get(split, 0) for split in ends}, ends)

    def split(self, row: Mapping[str, Any]) -> Partition:
        """Where a row was read."""
        (partition,) = (p for p in self.records if (p.topic_id, p.number) == (row["_kafka_topic_id"], row["_kafka_partition"]))
        return partition


@dataclass
class Reader(ScriptedSource):
    """The source as one run has it: what it makes of a record depends on the schemas that it knows.

    Attributes:
        topic: the topic.
        schemas: ids of the schemas that the registry tells it.
        most: records of a slice.
        until: it sees the topic up to this offset only; None: up to its end.
        epochs: split -> epoch of its leader, if that is known.
        silent: splits of a source that does not answer.
    """

    topic: Topic
    schemas: Collection[int]
    most: int = 1_000
    until: int | None = None
    epochs: Offsets = field(default_factory=dict)
    silent: Collection[Partition] = ()

    def snapshot(self, *, take_in: bool = True, full_refresh: bool = False) -> SourceSnapshot:  # noqa: ARG002
        """As it is seen by this run; TransientError: a full refresh needs every source."""
        if full_refresh and self.silent:
            raise TransientError("a source does not answer")
        now = self.topic.snapshot().of(lambda split: split not in self.silent)
        return SourceSnapshot(
            now.earliest,
            {p: end if self.until is None else min(end, self.until) for p, end in now.latest.items()},
            epochs=self.epochs,
        )

    def batch_limit(self, reached: Offsets) -> int:  # noqa: ARG002
        """Records of a slice."""
        return self.most


def pipeline_of(settings: Settings, reader: Reader) -> Pipeline:
    """As a new process has it."""
    made = Pipeline(settings, lambda: pytest.fail("no Spark is needed"))
    columns = ColumnMap(dict(reader.topic.columns))
    return reading(made, reader, message_columns=lambda *_: columns, knows=lambda schema: schema in reader.schemas)


def without_services(patch: pytest.MonkeyPatch) -> None:
    """Slices are decoded by `stage_micro_batch` of this module."""
    stage_by_hand(patch, stage_micro_batch)


def stage_micro_batch(
    pipeline: Pipeline,
    handle: Any,
    columns: ColumnMap,
    part: MicroBatch,
    batch: int,
    decided: Any,
    one_pass: OnePass | None = None,
) -> StagedRows:
    """For `staging.stage_micro_batch`: files of both tables; and those of silver, as the workers write them."""
    reader: Any = pipeline.source
    good, bad = [], []
    for split, end in part.end.items():
        for offset in range(part.start[split], end):
            record = reader.topic.records[split][offset]
            row = dict(zip(COORDINATES, (split.topic_id, split.number, offset), strict=True))
            row |= {"_kafka_topic": split.topic, "_batch": batch, "_schema_id": record["schema"], "_raw_value": b"x"}
            row |= {"_kafka_timestamp": record.get("at")}
            if offset in decided.get((split.topic_id, split.number), ()):
                continue
            if record["schema"] in reader.schemas:
                good.append(row | {k: v for k, v in record.items() if k in reader.topic.columns})
            else:
                bad.append(row | {"layer": "bronze", "reason": UNKNOWN})
    types = {(row["_schema_id"], (0,)) for row in good}
    columns = pipeline.catalog.message_columns(columns, types)
    files = write(pipeline.bronze, bronze.bronze_schema(columns), good), write(pipeline.quarantine, QUARANTINE_COLUMNS, bad)
    if one_pass is not None:
        _write_silver(pipeline, handle, columns, good, one_pass)
    return StagedRows(*files, types, set(), Counter({UNKNOWN: len(bad)} if bad else {}))


def _write_silver(pipeline: Pipeline, handle: Any, columns: ColumnMap, rows: list[dict[str, Any]], one_pass: OnePass) -> None:
    task = one_pass.plan(pipeline, handle, 1)
    fan_out = task.fan_out(columns) if task is not None else None
    if fan_out is not None:
        silver, table = SecondStage(fan_out), pa.Table.from_pylist(rows, schema=bronze.bronze_schema(columns))
        for start in range(0, len(rows), 3):
            silver.add(table.slice(start, 3))
        one_pass.staged(fan_out, silver.finish())


def write(table: Table, schema: pa.Schema, rows: list[dict[str, Any]]) -> list[StagedFile]:
    """Files with rows, not committed."""
    return staged(table, pa.Table.from_pylist(rows, schema=schema))


def offsets(table: Table, *, condition: Callable[[dict[str, Any]], bool] = lambda _: True) -> list[tuple[str, int, int]]:
    """Coordinates of a table's rows, sorted; those of records that do not decode, in quarantine."""
    handle = table.open()
    rows = read_arrow(table, handle).to_pylist() if handle is not None else []
    wanted = (row for row in rows if row.get("layer", "bronze") == "bronze" and condition(row))
    return sorted(tuple(row[name] for name in COORDINATES) for row in wanted)
