"""Records that are too large, and batches that cannot be read: rows of quarantine; what comes behind them is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pydantic import SecretStr

from game_events.config.settings import Settings
from game_events.decoding.frame import KEPT_BYTES
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.table_checks import offsets_continuous
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import replay
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events.plugins.files.archive import archive
from game_events.plugins.local.servers.local_stack import DATA
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.worlds.quality import SCHEMA, Event, encoded, varint
from game_events_tests.support.worlds.topic import register, send_values


def record(settings: Settings, note: int = 0, gamer: str = "ann") -> bytes:
    """A record of a game with a note of so many bytes."""
    frame = b"\0" + register(settings, SCHEMA).to_bytes(4, "big") + b"\0"
    return frame + encoded(Event("uno", 1, gamer=gamer)) + (b"\x2a" + varint(note) + b"x" * note if note else b"")


def held(settings: Settings) -> list[tuple[int, str, int, int, int]]:
    sql = (
        "SELECT _kafka_offset, detail, octet_length(_raw_value), octet_length(_kafka_key), len(_kafka_headers) FROM t "
        "WHERE reason = 'TOO_LARGE' ORDER BY 1"
    )
    return [tuple(row) for row in rows(settings, "quarantine_events", sql)]  # type: ignore[misc]


def test_records_above_the_bound_are_rows_of_quarantine_and_no_run_ends_by_them(
    make_settings: MakeSettings, make_pipeline: MakePipeline, tmp_path: object
) -> None:
    settings = make_settings(max_record_bytes=100_000)
    small, large = record(settings), record(settings, 500_000)
    send_values(settings, [small])
    send_values(settings, [large, small])
    send_values(settings, [small], key=b"k" * 150_000)
    send_values(settings, [small], [("h", b"h" * 150_000), ("i", None)])
    send_values(settings, [small, None, record(settings, 90_000)], [("h", b"v")], key=b"key")
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert report.rejected == {"TOO_LARGE": 3, "TOMBSTONE": 1}
    assert any("TOO_LARGE" in notice for notice in report.notices)
    assert count(settings, "silver_uno_events") == count(settings, "bronze_events") == 4
    size = len(small)
    said = " bytes, 100,000 are allowed (GAME_EVENTS_MAX_RECORD_BYTES)"
    assert held(settings) == [
        (1, f"a record of {len(large):,}{said}", len(large), None, None),
        (3, f"a record of {size + 150_000:,}{said}", size, 150_000, None),
        (4, f"a record of {size + 150_002:,}{said}", size, None, None),
    ]
    headers = rows(settings, "bronze_events", "SELECT _kafka_headers FROM t WHERE _kafka_offset = 7")
    assert [(h["key"], h["value"]) for h in headers[0][0]] == [("h", b"v")]
    assert reconcile(make_pipeline(settings)).passed
    # What is left of them is no record: it is neither decoded, nor archived as one.
    assert replay(make_pipeline(settings), RunReport(), ReplaySelection()).rows == 0
    archived = RunReport()
    archive(make_pipeline(settings), archived, f"{tmp_path}/archive")
    assert archived.parts["archive"].rows == 5
    # Kafka still has them.
    more = settings.model_copy(update={"max_record_bytes": 10_000_000, "allow_bronze_full_refresh": True})
    pipeline = make_pipeline(more)
    assert refresh(pipeline, selection=selection_of(pipeline, full_refresh=["all"])).rejected == {"TOMBSTONE": 1}
    assert count(settings, "silver_uno_events") == 7
    assert held(settings) == []


def send_packed(settings: Settings, codec: str, size: int) -> None:
    """A batch of one record with a note of so many bytes."""
    options = {
        "bootstrap.servers": settings.kafka_bootstrap_servers,
        "compression.type": codec,
        "message.max.bytes": size + 24_000_000,
    }
    producer = Producer(options)
    producer.produce(settings.kafka_topic, record(settings, size), partition=0)
    assert producer.flush(60) == 0


@pytest.mark.parametrize(
    ("codec", "size"), [("zstd", 40_000_000), ("gzip", 150_000_000), ("lz4", 150_000_000), ("snappy", 15_000_000)]
)
def test_a_batch_that_is_packed_a_thousand_times_smaller_is_read_all_the_same(
    codec: str, size: int, make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    """The broker counts packed bytes: its limit of a megabyte lets in a record of forty, or of a thousand."""
    settings = make_settings(max_record_bytes=1_000_000)
    send_values(settings, [record(settings)])
    send_packed(settings, codec, size)
    send_values(settings, [record(settings)])
    report = refresh(make_pipeline(settings))
    assert (report.success, report.rows("silver"), dict(report.rejected)) == (True, 2, {"TOO_LARGE": 1})
    ((offset, detail, kept, _, _),) = held(settings)
    assert (offset, kept) == (1, KEPT_BYTES)
    assert detail.startswith(f"a record of {size // 1_000_000},000,0")
    assert len(json.dumps(report.to_dict())) < 20_000


def unreadable(settings: Settings) -> list[tuple[int, str, str, object, object]]:
    sql = (
        "SELECT _kafka_offset, _kafka_topic, detail, _raw_value, _kafka_timestamp FROM t WHERE reason = 'UNREADABLE' ORDER BY 1"
    )
    return [tuple(row) for row in rows(settings, "quarantine_events", sql)]  # type: ignore[misc]


def test_a_batch_that_unpacks_to_more_than_the_clients_bound_is_passed_with_a_row_for_each_record(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    settings = make_settings(allow_bronze_full_refresh=True)
    send_values(settings, [record(settings)])
    send_packed(settings, "zstd", 400_000_000)
    send_values(settings, [record(settings)] * 2)
    report = refresh(make_pipeline(settings))
    assert (report.success, report.rows("silver"), dict(report.rejected)) == (True, 3, {"UNREADABLE": 1})
    ((offset, topic, detail, raw, time),) = unreadable(settings)
    assert (offset, topic, raw, time) == (1, settings.kafka_topic, None, None)
    assert "receive.message.max.bytes, which GAME_EVENTS_KAFKA_OPTIONS may set" in detail
    assert reconcile(make_pipeline(settings)).passed
    assert offsets_continuous(make_pipeline(settings)).passed
    # What is no record is neither decoded nor archived as one; the next micro-batch is as any other.
    assert replay(make_pipeline(settings), RunReport(), ReplaySelection()).rows == 0
    send_values(settings, [record(settings)])
    assert refresh(make_pipeline(settings)).rows("silver") == 1
    # Kafka still has it.
    more = settings.model_copy(update={"kafka_options": {"receive.message.max.bytes": SecretStr("2000000000")}})
    pipeline = make_pipeline(more)
    again = refresh(pipeline, selection=selection_of(pipeline, full_refresh=["all"]))
    assert dict(again.rejected) == {"TOO_LARGE": 1}
    assert (count(settings, "silver_uno_events"), unreadable(settings)) == (4, [])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_damaged_batch_on_the_brokers_disk_is_passed_with_a_row_for_each_record(
    codec: str, make_settings: MakeSettings, make_pipeline: MakePipeline, servers: Path
) -> None:
    settings = make_settings(max_records_per_batch=40)
    send_values(settings, [record(settings)] * 3)
    producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers, "compression.type": codec, "linger.ms": 5_000})
    value = record(settings)
    for _ in range(50):
        producer.produce(settings.kafka_topic, value, partition=0)
    assert producer.flush(60) == 0
    first, last = damage(servers, settings)
    damaged = list(range(first, last + 1))
    send_values(settings, [record(settings)] * 2)
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert (report.rows("silver"), dict(report.rejected)) == (55 - len(damaged), {"UNREADABLE": len(damaged)})
    found = unreadable(settings)
    assert [offset for offset, *_ in found] == damaged
    assert all("it is damaged" in detail for _, _, detail, _, _ in found)
    assert reconcile(make_pipeline(settings)).passed
    assert offsets_continuous(make_pipeline(settings)).passed


def damage(servers: Path, settings: Settings) -> tuple[int, int]:
    """Change a byte at the end of the last batch, on the broker's disk; the offsets of its first and last record.

    The client decides how many of the records it is given share a batch, so the batch itself is asked: base offset
    (8 bytes), length of the rest (4 bytes), ..., last offset's delta at byte 23 (Kafka's record batch, version 2).
    """
    path = servers / "stack" / DATA / f"{settings.kafka_topic}-0" / f"{0:020}.log"
    written = path.read_bytes()
    start, end = 0, 0
    while end < len(written):
        start = end
        end = start + 12 + int.from_bytes(written[start + 8 : start + 12], "big")
    with path.open("r+b") as log:
        log.seek(end - 10)
        log.write(bytes([written[end - 10] ^ 0xFF]))
    first = int.from_bytes(written[start : start + 8], "big")
    return first, first + int.from_bytes(written[start + 23 : start + 27], "big")


def test_a_record_of_many_empty_headers_is_read(make_settings: MakeSettings, make_pipeline: MakePipeline) -> None:
    settings = make_settings()
    pipeline = make_pipeline(settings)
    send_values(settings, [record(settings)], [("", None)] * 3_000)
    assert refresh(pipeline).rows("silver") == 1
    assert rows(settings, "bronze_events", "SELECT len(_kafka_headers) FROM t") == [(3_000,)]


def test_larger_records_among_small_ones_are_read_once(make_settings: MakeSettings, make_pipeline: MakePipeline) -> None:
    settings = make_settings()
    pipeline = make_pipeline(settings)
    send_values(settings, [record(settings)] * 3)
    assert refresh(pipeline).rows("silver") == 3
    send_values(settings, [record(settings), record(settings, 10_000), b"no frame", record(settings)])
    send_values(settings, [record(settings)], [("h", b"h" * 5_000)], key=b"key")
    report = refresh(pipeline)
    assert (report.rows("silver"), dict(report.rejected)) == (4, {"BAD_MAGIC": 1})
    send_values(settings, [record(settings, 20_000), record(settings)])
    assert refresh(pipeline).rows("silver") == 2
    sizes = rows(settings, "bronze_events", "SELECT octet_length(_raw_value) > 10000 FROM t ORDER BY _kafka_offset")
    assert [large for (large,) in sizes] == [False, False, False, False, True, False, False, True, False]
    found = rows(settings, "bronze_events", "SELECT _kafka_key, _kafka_headers FROM t WHERE _kafka_offset = 7")
    assert [(bytes(key), h["key"], len(h["value"])) for key, (h,) in found] == [(b"key", "h", 5_000)]
    assert reconcile(make_pipeline(settings)).passed
