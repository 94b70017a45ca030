"""A broker that lost records which bronze has, and has given their offsets to others since."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from game_events.config.settings import load_settings
from game_events.errors import DataError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.bronze.offsets import epochs_unknown, refuse_cut_log
from game_events.pipeline.reporting.report import RunReport
from game_events.sources.kafka.source import KafkaSource
from game_events.sources.source import Partition, SourceContext, SourceSnapshot
from game_events_tests.support.model.bronze import Reader, Topic, pipeline_of, without_services

SPLIT, IDLE = Partition("t", "A" * 20 + "QA", 0), Partition("t", "A" * 20 + "QA", 1)


@pytest.fixture
def bronze(tmp_path):
    """Bronze that stands at 10 in both partitions; the leaders were of epochs 4 and 7 when it read them."""
    table = Lakehouse(str(tmp_path)).table("bronze_events")
    advance = {SPLIT.app: 10, IDLE.app: 10, SPLIT.epoch_app: 4, IDLE.epoch_app: 7}
    commit(Commit(table, OWN_COLUMNS, [], {}, advance, None))
    return table.open()


def look(bronze, epochs, written):
    """A look at a topic that ends behind bronze's position; gives the splits that were asked for."""
    asked = []
    now = SourceSnapshot({SPLIT: 0, IDLE: 0}, {SPLIT: 12, IDLE: 12}, epochs=epochs)

    def found(_, positions):
        asked.extend(sorted(positions))
        return {split: epoch for split, epoch in written.items() if split in positions}

    refuse_cut_log(SimpleNamespace(epochs_before=found), bronze, now, {SPLIT: 10, IDLE: 10})
    return asked


def test_with_the_leaders_that_bronze_knows_nothing_is_asked(bronze):
    assert look(bronze, {SPLIT: 4, IDLE: 7}, {}) == []
    assert look(bronze, {}, {}) == [], "a broker that tells no epochs"


def test_a_new_leader_that_has_all_records_is_no_fault_and_one_that_wrote_the_last_record_anew_stops_the_run(bronze):
    assert look(bronze, {SPLIT: 5, IDLE: 7}, {SPLIT: 4}) == [SPLIT]
    assert look(bronze, {SPLIT: 6, IDLE: 8}, {SPLIT: 2}) == [SPLIT, IDLE], "of one of them there is no record any more"
    said = r"t\[0\]: bronze is at 10 and has read up to leader epoch 4, the record before it is of epoch 5"
    with pytest.raises(DataError, match=said):
        look(bronze, {SPLIT: 6, IDLE: 8}, {SPLIT: 5, IDLE: 7})


def test_of_a_partition_that_records_of_an_archive_moved_nothing_is_asked(tmp_path):
    """Its position is the archive's: the broker's record before it, of whichever leader, was not what bronze has read."""
    table = Lakehouse(str(tmp_path)).table("bronze_events")
    advance = {SPLIT.app: 10, IDLE.app: 10, IDLE.epoch_app: 7} | epochs_unknown([SPLIT])
    commit(Commit(table, OWN_COLUMNS, [], {}, advance, None))
    assert look(table.open(), {SPLIT: 5, IDLE: 8}, {SPLIT: 5, IDLE: 7}) == [IDLE]


def test_each_slice_notes_the_leaders_epoch_and_a_bronze_without_a_note_gets_one(tmp_path, monkeypatch):
    without_services(monkeypatch)
    topic = Topic(records={SPLIT: [{"schema": 1}] * 3})
    settings = load_settings(lakehouse=str(tmp_path))
    for epoch in (None, 3, 5):
        pipeline = pipeline_of(settings, Reader(topic, (1,), epochs={} if epoch is None else {SPLIT: epoch}))
        load_bronze(pipeline, RunReport())
        assert pipeline.bronze.open().transaction_version(SPLIT.epoch_app) == epoch
        topic.records[SPLIT].append({"schema": 1})


def test_a_record_is_looked_up_once_for_each_leader():
    asked = []
    admin = SimpleNamespace(epochs_before=lambda at, _earliest: asked.append(dict(at)) or {SPLIT: 2})
    source = KafkaSource(SourceContext(load_settings(), Lakehouse.of(load_settings())), admin)

    def written(epoch, at):
        return source.epochs_before(SourceSnapshot({}, {}, epochs={SPLIT: epoch}), {SPLIT: at})

    assert [written(3, 10), written(3, 10), written(4, 10), written(4, 11)] == [{SPLIT: 2}] * 4
    assert [p for p in asked if p] == [{SPLIT: 10}, {SPLIT: 10}, {SPLIT: 11}]
