"""Bytes that are no message: each costs only itself, says why, and the books balance (faults A, on the real broker)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from game_events.config.settings import Settings
from game_events.decoding.frame import Reason
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.refresh import refresh
from game_events.sources.kafka.client import ensure_topic
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.reconciliation import coordinates, rows
from game_events_tests.support.worlds.topic import own_settings, register, send_values
from game_events_tests.support.worlds.waves import assert_gold_follows_silver

HELD = "SELECT _kafka_offset, reason, _raw_value FROM t"

TEXT = """syntax = "proto3"; package f; import "google/protobuf/timestamp.proto";
message Event { string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3; int32 n = 4;
  Inner inner = 5; repeated int32 many = 6; message Inner { string text = 1; int32 n = 2; } }"""


def key(number, wire_type):
    return bytes([number << 3 | wire_type])


#: name -> (what follows the schema id, reason). Message indexes first.
PAYLOADS = {
    "a truncated varint": (b"\0" + key(4, 0) + b"\xff", Reason.TRUNCATED),
    "a length past the end": (b"\0" + key(1, 2) + b"\x7fabc", Reason.TRUNCATED),
    "a text that is not UTF-8": (b"\0" + key(1, 2) + b"\x02\xff\xfe", Reason.BAD_UTF8),
    "a nested text that is not UTF-8": (b"\0" + key(5, 2) + b"\x04" + key(1, 2) + b"\x02\xff\xfe", Reason.BAD_UTF8),
    "field number 0": (b"\0" + b"\x00\x01", Reason.MALFORMED),
    "a nested field number 0": (b"\0" + key(5, 2) + b"\x02\x00\x01", Reason.MALFORMED),
    "wire type 7": (b"\0" + key(4, 7), Reason.MALFORMED),
    "a group that nothing ends": (b"\0" + key(9, 3) + b"\x08\x01", Reason.MALFORMED),
    "the end of a group that nothing began": (b"\0" + key(9, 4), Reason.MALFORMED),
    "a varint of eleven bytes": (b"\0" + key(4, 0) + b"\xff" * 11, Reason.MALFORMED),
    "a time in the year 10^11": (b"\0" + key(3, 2) + b"\x0a" + key(1, 0) + b"\x80" * 8 + b"\x40", Reason.OUT_OF_RANGE),
    "groups nested 150,000 deep": (b"\0" + key(9, 3) * 150_000 + key(9, 4) * 150_000, Reason.TOO_DEEP),
    "an index past the messages": (b"\x02\x08", Reason.BAD_INDEX),
    "a negative index": (b"\x02\x01", Reason.BAD_INDEX),
    "a truncated index": (b"\x04\x00\x80", Reason.BAD_INDEX),
    "a huge number of indexes": (b"\xfe\xff\xff\xff\x0f", Reason.BAD_INDEX),
    "nothing behind the id": (b"", Reason.TOO_SHORT),
}
#: name -> (whole value, reason)
VALUES = {
    "a tombstone": (None, Reason.TOMBSTONE),
    "an empty value": (b"", Reason.TOO_SHORT),
    "one byte": (b"\0", Reason.TOO_SHORT),
    "four bytes": (b"\0\0\0\0", Reason.TOO_SHORT),
    "another magic byte": (b"\x02\0\0\0\x01\0", Reason.BAD_MAGIC),
    "JSON without a frame": (b'{"game_name": "rummy"}', Reason.BAD_MAGIC),
    "protobuf without a frame": (b"\x0a\x05rummy", Reason.BAD_MAGIC),
    "an id nobody registered": (b"\0\x7f\xff\xff\xfe\0", Reason.UNKNOWN_SCHEMA),
    "a GUID nobody registered": (b"\x01" + bytes(range(16)) + b"\0", Reason.UNKNOWN_SCHEMA),
    "half a GUID": (b"\x01" + bytes(8), Reason.TOO_SHORT),
}


FAULTS = VALUES | PAYLOADS


@dataclass(frozen=True)
class Loaded:
    """One run over a topic that holds every fault between good records.

    Attributes:
        settings: of the run.
        sent: fault -> the record's value.
        offsets: fault -> the record's offset; a good record stands before each.
        held: offset -> (reason, raw value) in quarantine.
    """

    settings: Settings
    sent: dict[str, bytes | None]
    offsets: dict[str, int]
    held: dict[int, tuple[str, bytes | None]]


@pytest.fixture(scope="module")
def loaded(stack, spark, tmp_path_factory) -> Loaded:
    """The run that all faults share."""
    settings = own_settings(stack, tmp_path_factory.mktemp("bad_bytes"))
    schema_id = register(settings, TEXT)
    event = python_class(compiled(TEXT, schema_id))
    head = b"\0" + struct.pack(">I", schema_id)
    sent = {name: value for name, (value, _) in VALUES.items()} | {n: head + tail for n, (tail, _) in PAYLOADS.items()}
    values: list[bytes | None] = []
    for number, value in enumerate(sent.values()):
        values += [frame(schema_id, (0,), event(game_name="uno", gamer_id="g", n=number)), value]
    send_values(settings, values)
    report = refresh(Pipeline(settings, lambda: spark))
    assert report.success, report.errors
    held = {offset: (reason, raw) for offset, reason, raw in rows(settings, QUARANTINE, HELD)}
    return Loaded(settings, sent, {name: 2 * number + 1 for number, name in enumerate(sent)}, held)


@pytest.mark.parametrize("fault", FAULTS)
def test_damage_goes_to_quarantine_with_its_reason_and_its_bytes(fault, loaded):
    assert loaded.held[loaded.offsets[fault]] == (str(FAULTS[fault][1]), loaded.sent[fault])


def test_damage_costs_only_its_own_record_and_the_books_balance(loaded, spark):
    assert sorted(loaded.held) == sorted(loaded.offsets.values())
    good = rows(loaded.settings, BRONZE, "SELECT _kafka_offset, n FROM t ORDER BY 1")
    assert good == [(2 * number, number) for number in range(len(FAULTS))]
    assert coordinates(loaded.settings, "silver_uno_events") == coordinates(loaded.settings, BRONZE)
    assert_gold_follows_silver(loaded.settings, "uno")
    assert reconcile(Pipeline(loaded.settings, lambda: spark)).passed


@pytest.mark.scenario
def test_a_ten_megabyte_record_and_a_hundred_thousand_elements_are_ordinary_records(settings, make_pipeline):
    schema_id = register(settings, TEXT)
    event = python_class(compiled(TEXT, schema_id))
    ensure_topic(settings, 1)
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap_servers})
    entry = ConfigEntry("max.message.bytes", "64000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, settings.kafka_topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
    big = event(game_name="uno", gamer_id="x" * 10_000_000)
    long = event(game_name="uno", many=range(100_000))
    send_values(settings, [frame(schema_id, (0,), m) for m in (big, long, event(game_name="uno"))])

    refresh(make_pipeline(settings))

    assert rows(settings, "silver_uno_events", "SELECT length(gamer_id), len(many) FROM t ORDER BY _kafka_offset") == [
        (10_000_000, 0), (0, 100_000), (0, 0),
    ]  # fmt: skip
