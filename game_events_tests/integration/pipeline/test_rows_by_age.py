"""Rows that were really produced, of which the older ones go: gold keeps its history; a person is erased from what is left."""

from __future__ import annotations

import time

from confluent_kafka import Producer

from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events.plugins.governance.run import erase
from game_events.sources.kafka.client import ensure_topic
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.quality import SCHEMA, assert_checks_pass, rule, varint
from game_events_tests.support.worlds.topic import register

GONE, STAYS = "gamer-to-forget", "gamer-who-stays"
DAY_S = 86_400
RETENTION = {"bronze": 30, "silver": 60, "quarantine": 30}
RULES = [rule("not_too_much", "coalesce(amount, 0) < 1000", "quarantine")]

COMMON = {"retention_days": RETENTION, "rules": RULES, "erasure_key": "a key of the tests, long enough"}


def send(settings, *events):
    """Events of (gamer, age in days, amount), with Kafka's time as old as the event's."""
    ensure_topic(settings, 1)
    frame = b"\0" + register(settings, SCHEMA).to_bytes(4, "big") + b"\0"
    producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers})
    for gamer, age, amount in events:
        at = int(time.time() - age * DAY_S)
        seconds = b"\x08" + varint(at)
        texts = b"".join(bytes([tag << 3 | 2, len(text)]) + text.encode() for tag, text in ((1, "uno"), (2, gamer)))
        value = texts + bytes([0x1A, len(seconds)]) + seconds + b"\x20" + varint(amount)
        producer.produce(settings.kafka_topic, frame + value, partition=0, timestamp=at * 1_000)
    assert producer.flush(60) == 0


def maintained(pipeline):
    report = RunReport()
    maintain(pipeline, report)
    assert report.success, report.maintenance
    return {table: done.expired for table, done in report.maintenance.items() if done.expired}


def amounts(settings, table):
    return rows(settings, table, "SELECT gamer_id, amount FROM t ORDER BY ALL")


def gold(settings):
    return dict(rows(settings, "gold_uno_player_agg", "SELECT gamer_id, session_count FROM t"))


def assert_sound(pipeline):
    found = reconcile(pipeline)
    assert found.passed, (found.summary(), found.metadata())
    assert_checks_pass(pipeline)
    return found.summary()


def test_older_rows_go_gold_keeps_its_history_and_a_person_is_erased_from_all_that_is_left(make_settings, make_pipeline):
    settings = make_settings(**COMMON)
    ages = (100, 40, 1)
    send(settings, *((gamer, age, age) for gamer in (GONE, STAYS) for age in ages), (STAYS, 40, 3_000), (GONE, 1, 3_000))
    assert refresh(make_pipeline(settings)).success
    assert maintained(make_pipeline(settings)) == {"bronze_events": 5, "silver_uno_events": 2, "quarantine_events": 1}
    assert amounts(settings, "bronze_events") == [(GONE, 1), (GONE, 3_000), (STAYS, 1)]
    assert amounts(settings, "silver_uno_events") == [(GONE, 1), (GONE, 40), (STAYS, 1), (STAYS, 40)]
    assert gold(settings) == {GONE: 3, STAYS: 3}
    assert_sound(make_pipeline(settings))

    # New rows are merged with what gold has; a full refresh that would lose it is refused.
    send(settings, (STAYS, 2, 2))
    assert refresh(make_pipeline(settings)).success
    assert gold(settings) == {GONE: 3, STAYS: 4}
    pipeline = make_pipeline(settings)
    report = refresh(pipeline, selection=selection_of(pipeline, full_refresh=["silver", "gold"]))
    assert "rows by age" in str([entry.error for entry in report.errors])
    assert gold(settings) == {GONE: 3, STAYS: 4}

    erase(make_pipeline(settings), report := RunReport(), frozenset({GONE}))
    assert report.parts["erasure"].finished, report.errors
    assert amounts(settings, "silver_uno_events") == [(STAYS, 1), (STAYS, 2), (STAYS, 40)]
    assert gold(settings) == {STAYS: 4}
    assert rows(settings, "gold_unified_player_agg", "SELECT gamer_id, session_count FROM t") == [(STAYS, 4)]
    assert_sound(make_pipeline(settings))
    assert refresh(make_pipeline(settings)).rows("gold") == 0
    assert gold(settings) == {STAYS: 4}

    # Accepted, silver is what bronze has, and gold what silver has.
    accepted = make_pipeline(make_settings(**COMMON, allow_refresh_without_expired=True))
    report = refresh(accepted, selection=selection_of(accepted, full_refresh=["silver", "gold"]))
    assert report.success, report.errors
    assert amounts(settings, "silver_uno_events") == [(STAYS, 1), (STAYS, 2)]
    assert gold(settings) == {STAYS: 2}
    assert_sound(make_pipeline(settings))
