"""Kafka forgets, is recreated, grows, has transactions and odd clocks: nothing doubled, and nothing lost in silence."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime

import pytest

from game_events.errors import DataError
from game_events.lakehouse.tables import BRONZE
from game_events.pipeline.checks.table_checks import losses, offsets_continuous, offsets_lost, offsets_unique
from game_events.pipeline.event_log import RunFacts, event_rows
from game_events.pipeline.offsets import topic_id_read
from game_events.pipeline.runs.pending import backlog
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support.offsets import by_partition
from game_events_tests.support.reconciliation import assert_books_balance, gold, rows
from game_events_tests.support.worlds.quality import Event
from game_events_tests.support.worlds.topics import (
    add_partitions,
    before_reading,
    expire,
    make_anew,
    make_topic,
    put,
    transaction,
)
from game_events_tests.support.worlds.waves import assert_gold_follows_silver, at_point, versions

ANN = [Event("uno", gamer="ann")]
BAD = [b"no frame"]


def held(settings, table=BRONZE):
    """(partition, offset) of a table's rows of each topic id, in the order in which the ids were met."""
    sql = (
        "SELECT _kafka_topic_id, list((_kafka_partition, _kafka_offset) ORDER BY _kafka_partition, _kafka_offset) "
        "FROM t GROUP BY 1 ORDER BY min(_kafka_timestamp)"
    )
    return [[tuple(c) for c in found] for _, found in rows(settings, table, sql)]


def assert_told(pipeline, lost):
    """The commits' notes account for everything; the gap is shown, and is no error."""
    continuous = offsets_continuous(pipeline)
    assert continuous.passed, continuous.summary
    assert offsets_unique(pipeline).passed
    found = offsets_lost(pipeline)
    assert (found.passed, found.wrong_rows, found.counts["offsets_lost"]) == (False, False, lost)
    # What the sensor `data_alarms` and the run itself tell a webhook of (unit/plugins/alerts/test_data_alarms.py).
    alarms = list(losses(pipeline.bronze, pipeline.bronze.open().version(), -1))
    assert sum(gap.offsets or 0 for alarm in alarms for gap in alarm.gaps) == lost
    assert all(alarm.run_id for alarm in alarms)


def test_expired_offsets_stop_a_run_or_are_a_gap_that_every_account_tells_of(make_settings, make_pipeline):
    settings, going_on = make_settings(), make_settings(on_data_loss="record_gap")
    make_topic(settings, 2)
    put(settings, ANN * 3 + BAD, 0)
    put(settings, ANN * 2, 1)
    assert refresh(make_pipeline(settings)).success
    put(settings, ANN * 4 + BAD, 0)  # offsets 4 to 8
    put(settings, ANN * 2, 1)  # offsets 2 and 3
    expire(settings, {0: 7, 1: 4})  # of partition 1 nothing is left
    before = versions(settings)
    lost = rf"{settings.kafka_topic}\[0\]: offsets 4 to 6; {settings.kafka_topic}\[1\]: offsets 2 to 3.*ON_DATA_LOSS=record_gap"
    with pytest.raises(DataError, match=lost):
        refresh(make_pipeline(settings))
    with pytest.raises(DataError, match=lost):
        backlog(make_pipeline(settings))
    assert versions(settings) == before, "a run that stops has changed nothing"
    assert by_partition(backlog(make_pipeline(going_on)).records) == {0: 2}

    report = refresh(make_pipeline(going_on))
    assert [(g.partition, g.start, g.end) for g in report.gaps] == [(0, 4, 7), (1, 2, 4)]
    assert report.to_dict()["gaps"][0]["offsets"] == 3
    assert "lost before they were read" in report.notices[0]
    told = [row for row in event_rows(report, RunFacts("refresh", 1.0), settings) if row["kind"] == "gap"]
    assert [(row["name"][-3:], row["rows"]) for row in told] == [("[0]", 3), ("[1]", 2)]
    assert held(settings) == [[(0, 0), (0, 1), (0, 2), (0, 7), (1, 0), (1, 1)]]
    assert held(settings, "quarantine_events") == [[(0, 3), (0, 8)]]
    assert_told(make_pipeline(settings), lost=5)
    assert_gold_follows_silver(settings, "uno")
    assert refresh(make_pipeline(settings)).tables == [], "the gap is behind: no run stops any more"
    put(settings, ANN, 1)
    assert refresh(make_pipeline(settings)).rows("bronze") == 1


def test_offsets_that_expire_while_a_run_reads_them_stop_it_or_are_a_gap(make_settings, make_pipeline):
    settings, going_on = make_settings(), make_settings(on_data_loss="record_gap")
    make_topic(settings)
    put(settings, ANN * 6)
    pipeline, happened = before_reading(make_pipeline(settings), lambda: expire(settings, {0: 2}))
    with pytest.raises(DataError, match=r"offsets 0 to 1.*ON_DATA_LOSS"):
        refresh(pipeline)
    assert happened
    pipeline, happened = before_reading(make_pipeline(going_on), lambda: expire(settings, {0: 4}))
    report = refresh(pipeline)
    assert happened
    assert [(g.start, g.end) for g in report.gaps] == [(0, 4)]
    assert held(settings) == [[(0, 4), (0, 5)]]
    assert_told(make_pipeline(settings), lost=4)


@pytest.mark.scenario
def test_a_rival_that_passes_over_the_same_gap_doubles_nothing(make_settings, make_pipeline, monkeypatch):
    settings = make_settings(on_data_loss="record_gap")
    make_topic(settings)
    put(settings, ANN * 2)
    refresh(make_pipeline(settings))
    put(settings, ANN * 4 + BAD)
    expire(settings, {0: 4})
    reports = []
    happened = at_point(monkeypatch, "bronze_staged", lambda: reports.append(refresh(make_pipeline(settings))))
    reports.append(refresh(make_pipeline(settings)))
    assert happened
    assert [len(r.gaps) for r in reports] == [1, 0], "the one that landed tells of it"
    assert held(settings) == [[(0, 0), (0, 1), (0, 4), (0, 5)]]
    assert_told(make_pipeline(settings), lost=2)


def test_a_topic_that_was_deleted_and_made_again_stops_a_run_or_is_read_from_its_start(make_settings, make_pipeline):
    settings, going_on = make_settings(), make_settings(on_data_loss="record_gap")
    make_topic(settings, 2)
    put(settings, ANN * 3, 0)
    put(settings, BAD, 1)
    refresh(make_pipeline(settings))
    old = min(make_pipeline(settings).source.snapshot().latest).topic_id
    assert topic_id_read(make_pipeline(settings).bronze.open(), settings.kafka_topic) == old

    make_anew(settings, 1)
    before = versions(settings)
    with pytest.raises(
        DataError, match=rf"of the topic that was deleted \(id {re.escape(old)}\): everything from offset 3 on.*recreated"
    ):
        refresh(make_pipeline(settings))
    assert versions(settings) == before
    # Empty as it is: one commit says so, and from then on it is the topic.
    report = refresh(make_pipeline(going_on))
    assert [(g.topic_id, g.partition, g.start, g.end) for g in report.gaps] == [(old, 0, 3, None), (old, 1, 1, None)]
    assert refresh(make_pipeline(settings)).tables == []

    put(settings, ANN * 2 + BAD, 0)
    assert refresh(make_pipeline(settings)).success
    assert held(settings) == [[(0, 0), (0, 1), (0, 2)], [(0, 0), (0, 1)]]
    assert held(settings, "quarantine_events") == [[(1, 0)], [(0, 2)]]
    assert gold(settings, "uno")["ann"][0] == 5
    found = offsets_lost(make_pipeline(settings))
    assert (found.passed, found.counts["gaps_of_unknown_length"]) == (False, 2)
    assert offsets_continuous(make_pipeline(settings)).passed


def test_a_topic_made_anew_while_it_is_read_gives_no_row_the_old_topics_coordinates(make_settings, make_pipeline):
    settings = make_settings(on_data_loss="record_gap")
    make_topic(settings)
    put(settings, ANN * 3)

    def recreated():
        make_anew(settings)
        put(settings, [Event("chess", gamer="bob")] * 4)

    pipeline, happened = before_reading(make_pipeline(settings), recreated)
    report = refresh(pipeline)
    assert happened
    assert [(g.start, g.end) for g in report.gaps] == [(0, None)]
    now = min(make_pipeline(settings).source.snapshot().latest).topic_id
    assert {r[0] for r in rows(settings, BRONZE, "SELECT DISTINCT _kafka_topic_id FROM t")} == {now}
    assert gold(settings, "chess")["bob"][0] == 4, "the run went on to the new topic's end"
    assert gold(settings, "uno") == {}
    pipeline, _ = before_reading(make_pipeline(make_settings()), lambda: make_anew(settings))
    put(settings, ANN)
    with pytest.raises(DataError, match="deleted"):
        refresh(pipeline)
    assert held(settings) == [[(0, 0), (0, 1), (0, 2), (0, 3)]]


@pytest.mark.scenario
def test_partitions_that_are_added_are_read_from_their_first_record_in_mid_run_too(make_settings, make_pipeline):
    settings = make_settings(starting_offsets="latest", max_records_per_batch=2)
    make_topic(settings)
    put(settings, ANN * 5)
    assert refresh(make_pipeline(settings)).rows("bronze") == 0, "a new bronze starts at the end"
    put(settings, ANN * 4)  # two slices

    def grow():
        add_partitions(settings, 2)
        put(settings, ANN, 1)

    pipeline, _ = before_reading(make_pipeline(settings), grow)
    assert refresh(pipeline).success
    add_partitions(settings, 3)
    put(settings, ANN * 2, 2)
    assert refresh(make_pipeline(settings)).success
    assert held(settings) == [[*((0, n) for n in range(5, 9)), (1, 0), (2, 0), (2, 1)]]
    assert offsets_continuous(make_pipeline(settings)).passed


def test_aborted_transactions_leave_gaps_that_are_no_loss_and_an_open_one_is_read_when_it_is_committed(settings, make_pipeline):
    make_topic(settings)
    transaction(settings, ANN * 3).abort_transaction(30)  # offsets 0 to 2, 3 is its marker
    producer = transaction(settings, ANN * 2)  # offsets 4 and 5
    put(settings, [Event("chess")] * 2)  # behind the open one: 6 and 7
    report = refresh(make_pipeline(settings))
    assert (report.rows("bronze"), by_partition(report.offsets), report.gaps) == (0, {0: (0, 4)}, [])
    assert refresh(make_pipeline(settings)).tables == [], "it waits for nothing, and reads nothing behind"
    producer.commit_transaction(30)
    report = refresh(make_pipeline(settings))
    assert by_partition(report.offsets) == {0: (4, 9)}
    assert held(settings) == [[(0, n) for n in (4, 5, 6, 7)]]
    assert offsets_continuous(make_pipeline(settings)).passed
    assert offsets_lost(make_pipeline(settings)).passed
    assert_gold_follows_silver(settings, "uno", "chess")


@pytest.mark.scenario
def test_clocks_that_are_ahead_behind_or_negative_change_no_count_and_hold_up_nothing(settings, make_pipeline):
    make_topic(settings)
    ahead = int(datetime(2200, 1, 1, tzinfo=UTC).timestamp() * 1000)
    for timestamp in (ahead, 1, -5_000, None):
        put(settings, ANN * 2, timestamp=timestamp)
    report = refresh(make_pipeline(settings))
    assert report.success
    assert rows(
        settings, BRONZE, "SELECT count(*), min(epoch_ms(_kafka_timestamp)), max(epoch_ms(_kafka_timestamp)) FROM t"
    ) == [(8, -5_000, ahead)]
    assert gold(settings, "uno")["ann"][0] == 8
    assert_gold_follows_silver(settings, "uno")
    assert report.latency["bronze"].total == 8
    put(settings, ANN, timestamp=-5_000)
    assert refresh(make_pipeline(settings)).rows("silver") == 1


@pytest.mark.scenario
def test_duplicates_sent_by_a_producer_are_records_of_their_own_and_counted_as_such(settings, make_pipeline):
    make_topic(settings, 2)
    threads = [threading.Thread(target=put, args=(settings, ANN * 3, p)) for p in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refresh(make_pipeline(settings)).rows("bronze") == 6
    assert gold(settings, "uno")["ann"][0] == 6
    assert offsets_unique(make_pipeline(settings)).passed


def test_late_events_and_events_out_of_order_move_first_and_last_times_and_are_counted_once(settings, make_pipeline):
    waves = []
    for seed in (1, 2):
        # The second wave begins where the first one began: all of it is older than what gold has.
        wave = Simulation(
            games=("uno",),
            records_per_game_and_version=15,
            versions=(1,),
            gamers_per_game=3,
            late_share=0.3,
            duplicate_share=0.2,
            seed=seed,
        )
        waves.append(produce(settings, wave, partitions=2))
        assert refresh(make_pipeline(settings)).success
    sent = waves[0].merge(waves[1])
    assert sent.decodable > 30, "nothing was sent twice"
    assert_books_balance(settings, sent)
    assert_gold_follows_silver(settings, "uno")
