"""Slices beside somebody who restores, deletes or reads on: bronze and quarantine are real, topic and workers are made by hand.

Of the records every third does not decode.
"""

from __future__ import annotations

import shutil
from collections import Counter

import pyarrow as pa
import pytest

from game_events.errors import DataError
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS, QUARANTINE_COLUMNS, bronze_schema
from game_events.lakehouse.data.reading import BATCH_INFO, read_arrow
from game_events.lakehouse.data.staging import staged
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.offsets import offsets_of
from game_events.pipeline.quality import Decisions, RejectionDecision, decide
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.commit import settle
from game_events.pipeline.silver.stage import GameStart, SilverInput
from game_events.workers.results import FanOutResult, StagedRows
from game_events_tests.support.offsets import by_partition, seen
from game_events_tests.support.pipelines import reading, stage_by_hand, without_spark
from game_events_tests.support.sources import ScriptedSource
from game_events_tests.support.tables import assert_nothing_left_over, put
from game_events_tests.support.worlds.waves import at_point

TOPIC, ID = "games", "5cB9Bc9QRbCeqUM/tZO+tg"
COORDINATES = ["_kafka_partition", "_kafka_offset"]


class Topic(ScriptedSource):
    """A topic whose ends the test sets."""

    def __init__(self):
        self.latest = {0: 10}

    def snapshot(self, **_):
        return seen(TOPIC, ID, dict.fromkeys(self.latest, 0), dict(self.latest))

    def batch_limit(self, _):
        return 5


def write(table, schema, rows):
    return staged(table, pa.Table.from_pylist(rows, schema=schema))


class World:
    """A pipeline without Spark, Kafka and registry.

    Attributes:
        meanwhile: called once each, in their order, when a slice is staged: before anything of it is committed.
    """

    def __init__(self, root, monkeypatch):
        self.root, self.meanwhile, self.topic = root, [], Topic()
        stage_by_hand(monkeypatch, self.stage)

    def pipeline(self, **more):
        return reading(without_spark(self.root, kafka_topic=TOPIC, max_records_per_batch=5, **more), self.topic)

    def stage(self, pipeline, *planned):
        columns, part, batch, decided = planned[-4:]
        offsets = [(p.number, o) for p in part.end for o in range(part.start[p], part.end[p])]
        rows = [dict(zip(COORDINATES, at, strict=True)) | {"_kafka_topic_id": ID, "_batch": batch} for at in offsets]
        bad = [r for r in rows if r["_kafka_offset"] % 3 == 0]
        new = [r | {"layer": "bronze"} for r in bad if r["_kafka_offset"] not in decided.get((ID, r["_kafka_partition"]), ())]
        staged = StagedRows(
            write(pipeline.bronze, bronze_schema(columns), [r for r in rows if r not in bad]),
            write(pipeline.quarantine, QUARANTINE_COLUMNS, new),
            set(),
            set(),
            Counter(),
        )
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return staged

    def run(self, **more):
        report = RunReport()
        load_bronze(self.pipeline(**more), report)
        return report

    def rows(self, table):
        found = read_arrow(table, table.open(), COORDINATES)
        return sorted(zip(*(found[c].to_pylist() for c in COORDINATES), strict=True))

    def assert_every_record_once(self):
        pipeline = self.pipeline()
        wanted = [(p, o) for p, end in self.topic.latest.items() for o in range(end)]
        assert sorted(self.rows(pipeline.bronze) + self.rows(pipeline.quarantine)) == wanted


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path / "lakehouse", monkeypatch)
    made.run()
    made.assert_every_record_once()
    return made


def test_a_bronze_that_is_restored_while_a_slice_is_read_stops_the_run_and_lacks_no_row_after_the_undo(world):
    bronze = world.pipeline().bronze
    version = next(e["version"] for e in bronze.open().history() if e.get("batch") == "1")
    world.topic.latest = {0: 20}
    newest = []

    def restore():
        newest.append(bronze.open().version())
        bronze.open().restore(version)

    world.meanwhile = [lambda: None, restore]
    with pytest.raises(DataError, match=r"bronze_events was restored") as refused:
        world.run()
    assert f"TO VERSION AS OF {newest[0]};" in str(refused.value)
    bronze.open().restore(newest[0])
    world.run()
    world.assert_every_record_once()


def test_a_quarantine_that_is_restored_while_a_slice_is_read_stops_the_run_before_it_decides(world):
    pipeline = world.pipeline()
    whole, before = pipeline.quarantine.open().version(), pipeline.bronze.open().transaction_version(Txn.BATCH)
    world.topic.latest = {0: 15}
    world.meanwhile = [lambda: pipeline.quarantine.open().restore(0)]
    with pytest.raises(DataError, match=rf"quarantine_events was restored.*TO VERSION AS OF {whole};"):
        world.run()
    assert pipeline.bronze.open().transaction_version(Txn.BATCH) == before
    pipeline.quarantine.open().restore(whole)
    world.run()
    world.assert_every_record_once()


def test_maintenance_that_comes_while_a_slice_is_read_is_no_restore(world):
    pipeline = world.pipeline()
    world.topic.latest = {0: 15}
    staged, property_ = [], {"delta.logRetentionDuration": "interval 1 day"}
    world.meanwhile = [
        lambda: pipeline.bronze.open().alter.set_table_properties(property_),
        lambda: staged.append("again"),
    ]
    world.run()
    assert not staged
    world.assert_every_record_once()


def test_a_slice_that_a_rival_was_faster_with_leaves_no_file_behind(world, monkeypatch):
    pipeline = world.pipeline()
    world.topic.latest = {0: 15}
    assert_nothing_left_over(pipeline.bronze)
    overtaken = at_point(monkeypatch, "quarantine_announced", world.run)
    world.run()
    assert overtaken
    world.assert_every_record_once()
    assert_nothing_left_over(pipeline.bronze)
    assert_nothing_left_over(pipeline.quarantine)


def test_a_rival_that_has_read_on_since_the_topic_was_asked_is_no_loss_of_the_brokers(world):
    seen = world.topic.snapshot()
    world.topic.latest = {0: 15}
    world.run()
    report = RunReport()
    load_bronze(world.pipeline(), report, until=seen)
    assert (report.batches, by_partition(report.lag)) == ([], {0: 0})
    # What the broker has really lost is still told.
    world.topic.latest = {0: 9}
    with pytest.raises(DataError, match="the broker has lost records"):
        load_bronze(world.pipeline(), RunReport(), until=world.topic.snapshot())


def test_a_partition_without_records_has_a_place_too(world):
    world.topic.latest = {0: 10, 1: 0, 2: 3}
    world.run()
    handle = world.pipeline().bronze.open()
    assert [handle.transaction_version(f"kafka:{TOPIC}:{ID}:{p}") for p in range(3)] == [10, 0, 3]
    world.topic.latest = {0: 10, 1: 2, 2: 3}
    world.run()
    assert by_partition(offsets_of(world.pipeline().bronze.open(), TOPIC, ID)) == {0: 10, 1: 2, 2: 3}
    world.assert_every_record_once()


def test_a_quarantine_that_is_gone_is_told_of_once(world):
    pipeline = world.pipeline()
    shutil.rmtree(pipeline.quarantine.uri)
    with pytest.raises(DataError, match="with it 4 records"):
        world.run()
    assert "the 4 records" in world.run(on_data_loss="record_gap").notices[0]
    assert world.run(on_data_loss="record_gap").notices == []
    world.topic.latest = {0: 15}
    assert world.run().notices == []
    assert pipeline.bronze.open().transaction_version(Txn.RECORDS_QUARANTINED) == 1


def test_a_silver_table_that_is_restored_while_its_rows_are_made_is_planned_again(world):
    pipeline = world.pipeline(entity_column="_kafka_topic")
    silver, source = pipeline.lakehouse.silver("uno"), SilverInput.of(pipeline, pipeline.bronze.open())
    for batch in (0, 1):
        put(silver, OWN_COLUMNS.empty_table(), {source.bronze.app: batch}, info={BATCH_INFO: str(batch)})
    start = GameStart(silver.open(), 1, 1)
    silver.open().restore(0)
    version = silver.open().version()
    outcome = settle(source, Decisions.read(pipeline, source.bronze.key), {"uno": start}, FanOutResult(), RunReport())
    assert (outcome.again, silver.open().version()) == ({"uno"}, version)


def test_nothing_is_decided_on_a_quarantine_that_was_restored_since(world):
    pipeline = world.pipeline(entity_column="_kafka_topic")
    key = SilverInput.of(pipeline, pipeline.bronze.open()).bronze.key
    planned = Decisions.read(pipeline, key)
    pipeline.quarantine.open().restore(0)
    before = pipeline.quarantine.open().version()
    with pytest.raises(DataError, match="quarantine_events was restored"):
        decide(pipeline, planned, {"uno": RejectionDecision(2)})
    assert pipeline.quarantine.open().version() == before
