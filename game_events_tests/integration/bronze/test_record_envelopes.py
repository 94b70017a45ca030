"""What a producer may put around a value - Kafka's own timestamp, key, headers - never ends a run."""

from __future__ import annotations

from confluent_kafka import Producer

from game_events.config.settings import Settings
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events.sources.kafka.client import ensure_topic
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.worlds.quality import SCHEMA, Event, encoded
from game_events_tests.support.worlds.topic import register

NANOSECONDS = 1_700_000_000_000_000_000
MICROSECONDS = 1_700_000_000_000_000
MILLISECONDS = 1_700_000_000_000


def send(settings: Settings, *envelopes: dict[str, object]) -> None:
    """A good value in each of these envelopes."""
    ensure_topic(settings, 1)
    frame = b"\0" + register(settings, SCHEMA).to_bytes(4, "big") + b"\0"
    producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers})
    for envelope in envelopes:
        producer.produce(settings.kafka_topic, frame + encoded(Event("uno", 1)), partition=0, **envelope)  # type: ignore[arg-type]
    assert producer.flush(60) == 0


TIMES = "SELECT _kafka_offset, epoch_ms(_kafka_timestamp) FROM t ORDER BY 1"


def test_a_timestamp_in_nanoseconds_costs_its_record_the_timestamp_and_nothing_else(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    settings = make_settings(allow_bronze_full_refresh=True)
    times = [MILLISECONDS, NANOSECONDS, MICROSECONDS, MILLISECONDS, NANOSECONDS, MILLISECONDS]
    send(settings, *({"timestamp": time, "key": b"k", "headers": [("h", b"v"), ("i", None)]} for time in times))
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    kept = [(offset, None if time == NANOSECONDS else time) for offset, time in enumerate(times)]
    assert rows(settings, "bronze_events", TIMES) == kept
    assert count(settings, "silver_uno_events") == len(times)
    said = " ".join(report.notices)
    assert f"{settings.kafka_topic}[0]@1 (timestamp of {NANOSECONDS} milliseconds)" in said
    assert f"{settings.kafka_topic}[0]@4 (" in said
    held = rows(settings, "bronze_events", "SELECT DISTINCT _kafka_key, len(_kafka_headers) FROM t")
    assert held == [(b"k", 2)]
    assert reconcile(make_pipeline(settings)).passed
    # Later runs, and a full refresh, are as any other.
    send(settings, {"timestamp": MILLISECONDS})
    assert refresh(make_pipeline(settings)).rows("bronze") == 1
    pipeline = make_pipeline(settings)
    again = refresh(pipeline, selection=selection_of(pipeline, full_refresh=["all"]))
    assert again.success
    assert f"{settings.kafka_topic}[0]@1 (" in " ".join(again.notices)
    assert rows(settings, "bronze_events", TIMES) == [*kept, (len(times), MILLISECONDS)]


def test_odd_keys_and_headers_are_read(make_settings: MakeSettings, make_pipeline: MakePipeline) -> None:
    settings = make_settings()
    odd = [
        {"key": b"\xff\xfe\0"},
        {"key": b""},
        {"headers": [("", b"")]},
        {"headers": [("h", None), ("h", b"\xff"), ("\u00e9\U0001f600", b"v")]},
        {"headers": [("n", b"x")] * 1_000},
        {"timestamp": 1},
    ]
    send(settings, *odd)
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert count(settings, "bronze_events") == len(odd)
