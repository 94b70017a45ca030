"""Spark's part of replay and of a full refresh of bronze, done by Arrow in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from game_events.lakehouse.data.columns import COORDINATES, OWN_COLUMNS, QUARANTINE_COLUMNS
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.data.staging import StagedFile
from game_events.lakehouse.tables import Layer, Table, paths
from game_events.pipeline import quarantine as quarantine_reset
from game_events.pipeline import quarantine as replay_notes
from game_events.pipeline import reprocessing
from game_events.pipeline.bronze import full_refresh as bronze_reset
from game_events.pipeline.bronze.full_refresh import Expired
from game_events.pipeline.bronze.load import bronze_schema
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quarantine import ResetList
from game_events.workers.results import StagedRows
from game_events_tests.support.model.bronze import write

Row = dict[str, Any]


def without_spark(patch: pytest.MonkeyPatch) -> None:
    """Puts the functions of this module in the places of Spark's jobs."""
    patch.setattr(reprocessing, "_stage", stage_replay)
    patch.setattr(replay_notes, "_stage_marks", stage_notes)
    patch.setattr(quarantine_reset, "_stage", stage_reset)
    patch.setattr(bronze_reset, "count_expired", lambda *_: Expired())


def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A record's coordinates."""
    return tuple(row[name] for name in COORDINATES)


def stage_replay(
    pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable, selection: reprocessing.ReplaySelection, batch: int, _: Any
) -> StagedRows:
    """For `reprocessing._stage`."""
    reader: Any = pipeline.source
    here = str(bronze.metadata().id)
    there = {place(row) for row in read_arrow(pipeline.bronze, bronze, list(COORDINATES)).to_pylist()}
    good, left = [], Counter[str]()
    for row in read_arrow(pipeline.quarantine, quarantine).to_pylist():
        asked = row["layer"] == Layer.BRONZE and (not selection.reasons or row["reason"] in selection.reasons)
        asked = asked and (not selection.schema_ids or row["_schema_id"] in selection.schema_ids)
        if not asked or row["replayed_table"] == here or place(row) in there:
            continue
        if row["_schema_id"] in reader.schemas:
            record = reader.topic.records[reader.topic.split(row)][row["_kafka_offset"]]
            own = {name: row[name] for name in OWN_COLUMNS.names} | {"_batch": batch}
            good.append(own | {k: v for k, v in record.items() if k in reader.topic.columns})
        else:
            left[row["reason"]] += 1
    types = {(row["_schema_id"], (0,)) for row in good}
    columns = pipeline.catalog.message_columns(None, types)  # type: ignore[arg-type]
    return StagedRows(write(pipeline.bronze, bronze_schema(columns), good), [], types, set(), left)


def stage_notes(
    pipeline: Pipeline, bronze: DeltaTable, quarantine: DeltaTable, batch: int
) -> tuple[list[StagedFile], frozenset[str]]:
    """For `replay_notes._stage`."""
    came = {place(r) for r in read_arrow(pipeline.bronze, bronze).to_pylist() if r["_batch"] == batch}
    note = {"replayed_table": str(bronze.metadata().id), "replayed_batch": batch}
    rows: list[Row] = []
    rewritten = set()
    for path in paths(quarantine):
        held = rows_at(pipeline.quarantine, [path])
        mine = [row["layer"] == Layer.BRONZE and place(row) in came for row in held]
        if any(mine):
            rewritten.add(path)
            rows += [row | note if noted else row for row, noted in zip(held, mine, strict=True)]
    return write(pipeline.quarantine, QUARANTINE_COLUMNS, rows), frozenset(rewritten)


def stage_reset(pipeline: Pipeline, listed: ResetList, rewritten: frozenset[str]) -> list[StagedFile]:
    """For `quarantine_reset._stage`."""
    ends = {(split.topic_id, split.number): end for split, end in listed.ends.items()}
    rows = rows_at(pipeline.quarantine, (f.path for f in listed.files))
    for row in rows_at(pipeline.quarantine, sorted(rewritten)):
        *split, offset = place(row)
        if row["layer"] != Layer.BRONZE or offset >= ends.get(tuple(split), offset + 1):
            rows.append(row)
    return write(pipeline.quarantine, QUARANTINE_COLUMNS, rows)


def rows_at(table: Table, files: Iterable[str]) -> list[Row]:
    """Rows of single files."""
    return [row for path in files for row in pq.read_table(f"{table.uri}/{path}").to_pylist()]
