"""Stop, or go on past what is gone: decided from bronze's own transactions and the topic as it is; no service is needed."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable

from game_events.config.settings import load_settings
from game_events.errors import DataError, TransientError
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.bronze.offsets import refuse_unless_recorded, went_meanwhile
from game_events.pipeline.checks.table_checks import offsets_continuous, offsets_lost
from game_events.pipeline.context import Pipeline
from game_events.pipeline.offsets import batch_info, identity
from game_events.pipeline.runs.refresh import refresh
from game_events.sources.source import Gap, MicroBatch, Partition
from game_events_tests.support.offsets import by_partition, next_micro_batch, seen, splits
from game_events_tests.support.pipelines import reading, without_spark
from game_events_tests.support.tables import put

OLD, NEW = "5cB9Bc9QRbCeqUM/tZO+tg", "AAAAAAAAAAAAAAAAAAAAAQ"
STOP, GO_ON = load_settings(), load_settings(on_data_loss="record_gap")


def topic(earliest, latest, topic_id=OLD):
    return seen("games", topic_id, earliest, latest)


@pytest.fixture
def table(tmp_path):
    """Bronze that has read [0, 9) and [0, 4) of the old topic."""
    bronze = Lakehouse(str(tmp_path)).table("bronze_events")
    add(bronze, 0, {0: (0, 0), 1: (0, 0)})
    add(bronze, 1, {0: (0, 9), 1: (0, 4)})
    return bronze


def add(bronze, batch, ranges, gaps=(), topic_id=OLD):
    """A commit of bronze with no rows, as of a slice of tombstones."""
    ranges = splits("games", topic_id, ranges)
    info = batch_info(batch, 0, 0, ranges, gaps)
    advance = {split.app: end for split, (_, end) in ranges.items()} | identity(ranges) | {"batch": batch}
    put(bronze, OWN_COLUMNS.empty_table(), advance, info=info)


def plan(settings, table, now):
    return next_micro_batch(settings, table.open(), now, now.latest, 1_000)


def checks(tmp_path):
    pipeline = without_spark(tmp_path)
    return offsets_continuous(pipeline), offsets_lost(pipeline)


def test_what_was_read_may_expire(table):
    assert plan(STOP, table, topic({0: 9, 1: 2}, {0: 9, 1: 4})) is None


def test_expired_offsets_stop_or_become_a_gap_that_the_commits_tell_of(table, tmp_path):
    now = topic({0: 12, 1: 4}, {0: 15, 1: 4})
    with pytest.raises(DataError, match=r"games\[0\]: offsets 9 to 11\. Nothing was read.*GAME_EVENTS_ON_DATA_LOSS=record_gap"):
        plan(STOP, table, now)
    part = plan(GO_ON, table, now)
    assert (by_partition(part.start), by_partition(part.end), part.gaps) == ({0: 12}, {0: 15}, (Gap("games", OLD, 0, 9, 12),))
    add(table, 2, {0: (12, 15)}, part.gaps)
    continuous, lost = checks(tmp_path)
    assert continuous.passed, continuous.summary
    assert (lost.passed, lost.wrong_rows, lost.counts["offsets_lost"]) == (False, False, 3)
    assert "games[0]: offsets 9 to 11" in lost.summary
    # A gap that no commit tells of is a fault.
    add(table, 3, {0: (16, 18)})
    continuous, _ = checks(tmp_path)
    assert "offsets 15 to 16 were left out before batch 3" in continuous.summary


def test_an_older_version_that_stays_behind_a_gap_of_the_log_is_no_batch_with_the_next_one_missing(table, tmp_path):
    kept = table.open().version()
    for batch in range(2, 7):
        add(table, batch, {0: (3 * batch + 3, 3 * batch + 6)})
    newest = table.open().version()
    for version in (kept, newest - 1):
        DeltaTable(table.uri, version).create_checkpoint()
    for entry in (table.local_path / "_delta_log").glob("0*.json"):
        if int(entry.stem) not in (kept, newest - 1, newest):
            entry.unlink()
    for found in checks(tmp_path):
        assert found.passed, found.summary
        assert found.counts["commits"] == 2


@pytest.mark.parametrize("records", [0, 5], ids=["empty", "with records"])
def test_a_topic_made_anew_stops_or_is_read_from_its_start_behind_a_gap_of_unknown_length(table, tmp_path, records):
    now = topic({0: 0}, {0: records}, NEW)
    with pytest.raises(DataError, match=rf"\(id {re.escape(OLD)}\): everything from offset 9 on.*recreated, with id {NEW}"):
        plan(STOP, table, now)
    part = plan(GO_ON, table, now)
    assert (part.start, part.end) == (splits("games", NEW, {0: 0}), splits("games", NEW, {0: records}))
    assert [(g.topic_id, g.partition, g.start, g.end) for g in part.gaps] == [(OLD, 0, 9, None), (OLD, 1, 4, None)]
    add(table, 2, {0: (0, records)}, part.gaps, NEW)
    assert plan(STOP, table, now) is None, "from then on it is the topic"
    continuous, lost = checks(tmp_path)
    assert continuous.passed, continuous.summary
    assert (lost.counts["gaps"], lost.counts["gaps_of_unknown_length"]) == (2, 2)


def test_another_topic_by_setting_is_no_loss(table):
    now = seen("others", NEW, {0: 0}, {0: 2})
    part = next_micro_batch(STOP, table.open(), now, now.latest, 10)
    assert (part.start, part.gaps) == ({Partition("others", NEW, 0): 0}, ())


@pytest.mark.parametrize(
    ("source", "holder", "advice"),
    [
        ({}, "Kafka", "raise the topic's retention"),
        ({"source": "files", "files_path": "/landing"}, "/landing", "leave files where they are until bronze has them"),
        ({"source_table": "/a/bronze_events"}, "/a/bronze_events", "keep that table's rows until bronze has them"),
    ],
)
def test_the_message_is_about_the_source_that_the_records_were_in(source, holder, advice):
    with pytest.raises(DataError) as raised:
        refuse_unless_recorded(load_settings(**source), (Gap("games", OLD, 0, 9, 12),), None)
    said = str(raised.value)
    assert f"records are gone that {holder} does not have any more and bronze has not: games[0]: offsets 9 to 11." in said
    assert said.endswith(advice)


def test_many_gaps_are_named_up_to_some(table):
    now = topic(dict.fromkeys(range(20), 20), dict.fromkeys(range(20), 20))
    with pytest.raises(DataError, match=r"games\[7\]: offsets 0 to 19; and 12 more"):
        plan(STOP, table, now)


@pytest.mark.parametrize(("earliest", "went"), [({0: 9}, False), ({0: 10}, True), ({1: 0}, False)], ids=str)
def test_a_slice_went_meanwhile_if_its_first_records_expired_and_not_if_its_topic_is_not_listed(tmp_path, earliest, went):
    """A topic of a pattern may be deleted between two requests: then the error stays the one that Spark has raised."""
    source = SimpleNamespace(
        changed=lambda _: None, missing=lambda _: (), snapshot=lambda: topic(earliest, dict.fromkeys(earliest, 20))
    )
    part = MicroBatch(splits("games", OLD, {0: 9}), splits("games", OLD, {0: 15}))
    assert went_meanwhile(reading(without_spark(tmp_path), source), part) is went


@pytest.mark.usefixtures("no_waiting")
def test_a_broker_that_is_down_at_the_start_is_named_and_nothing_is_written(tmp_path):
    settings = load_settings(lakehouse=str(tmp_path / "lakehouse"), kafka_bootstrap_servers="127.0.0.1:1")
    with pytest.raises(TransientError, match=r"Kafka at 127\.0\.0\.1:1: .*is it up"):
        refresh(Pipeline(settings, lambda: pytest.fail("no Spark is needed")))
    assert not (tmp_path / "lakehouse").exists()
