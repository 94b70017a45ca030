"""Message types shaped like twelve public ones, without game, player and time on top, arrive and route by settings alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from google.protobuf.message import Message

from game_events.decoding.protobuf.decoder import ProtobufDecoder
from game_events.lakehouse.data.columns import column_map
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support import public_types
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.decoding.protobuf_worlds import Writer
from game_events_tests.support.decoding.python_reading import as_read, read
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.topic import register, send_values

FOLDER = Path(public_types.__file__).parent
BEGIN = datetime(2026, 11, 20, 8, tzinfo=UTC)
RECORDS = 6
ATTRIBUTE = "list_filter({}, lambda a: a.key = '{}')[1].value.string_value"
LABEL = "list_filter(timeseries[1].labels, lambda l: l.name = '{}')[1].value"
DEFINITIONS: dict[str, dict[str, str]] = {
    "entity": {
        "opentelemetry.proto.logs.v1.LogRecord": ATTRIBUTE.format("attributes", "game"),
        "ResourceLogs": ATTRIBUTE.format("resource.attributes", "game"),
        "Metric": "split_part(name, '.', 1)",
        "Span": "header('game')",
        "FeedMessage": "entity[1].vehicle.trip.route_id",
        "CloudEvent": "split_part(source, '/', 3)",
        "Envelope": "split_part(cid, ':', 1)",
        "Match": "match_profile",
        "GameServer": "split_part(object_meta.name, '-', 1)",
        "WriteRequest": LABEL.format("game"),
        "*": "'dota'",
    },
    "key": {
        "LogRecord": ATTRIBUTE.format("attributes", "enduser.id"),
        "Span": ATTRIBUTE.format("attributes", "enduser.id"),
        "FeedMessage": "entity[1].vehicle.vehicle.id",
        "CloudEvent": "attributes['subject'].ce_string",
        "Envelope": "coalesce(channel_message.sender_id, match_data.presence.user_id)",
        "Match": "tickets[1].id",
        "GameServer": "object_meta.labels['player']",
        "WriteRequest": LABEL.format("player"),
        "CDOTAMatchMetadataFile": "match_id",
        "CSODOTAParty": "leader_id",
        "*": "_kafka_key",
    },
    "time": {
        "LogRecord": "timestamp_nanos(time_unix_nano)",
        "ResourceLogs": "timestamp_nanos(scope_logs[1].log_records[1].time_unix_nano)",
        "Metric": "timestamp_nanos(gauge.data_points[1].time_unix_nano)",
        "Span": "timestamp_nanos(start_time_unix_nano)",
        "FeedMessage": "timestamp_seconds(header.timestamp)",
        "CloudEvent": "attributes['time'].ce_timestamp",
        "Envelope": "coalesce(channel_message.create_time, _kafka_timestamp)",
        "Match": "tickets[1].create_time",
        "GameServer": "timestamp_seconds(object_meta.creation_timestamp)",
        "WriteRequest": "timestamp_millis(timeseries[1].samples[1].timestamp)",
        "CDOTAMatchMetadataFile": "_kafka_timestamp",
        "CSODOTAParty": "timestamp_seconds(ready_check.start_timestamp)",
    },
}

Route = tuple[str, str | None, datetime | None]


def nanos(when: datetime) -> int:
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def attribute(attributes: Any, key: str, value: str) -> None:
    attributes.add(key=key).value.string_value = value


def log_record(m: Any, when: datetime, player: str) -> Route:
    del m.attributes[:]
    attribute(m.attributes, "game", "rummy")
    attribute(m.attributes, "enduser.id", player)
    m.time_unix_nano = nanos(when) + 999
    return "rummy", player, when


def resource_logs(m: Any, when: datetime, player: str) -> Route:
    del m.resource.attributes[:], m.scope_logs[:]
    attribute(m.resource.attributes, "game", "spades")
    m.scope_logs.add().log_records.add(time_unix_nano=nanos(when)).body.int_value = -1
    return "spades", player, when


def metric(m: Any, when: datetime, player: str) -> Route:
    m.name = "euchre.rounds"
    if m.WhichOneof("data") == "gauge" and m.gauge.data_points:
        m.gauge.data_points[0].time_unix_nano = nanos(when)
        return "euchre", player, when
    m.sum.is_monotonic = True
    return "euchre", player, None


def span(m: Any, when: datetime, player: str) -> Route:
    del m.attributes[:]
    attribute(m.attributes, "enduser.id", player)
    m.start_time_unix_nano = nanos(when)
    return "header", player, when


def feed_message(m: Any, when: datetime, player: str) -> Route:
    del m.entity[:]
    m.header.timestamp = round(when.timestamp())
    m.entity.add(id="1").vehicle.trip.route_id = "bus_7"
    m.entity[0].vehicle.vehicle.id = player
    return "bus_7", player, when


def cloud_event(m: Any, when: datetime, player: str) -> Route:
    m.source = "/games/go_fish"
    m.attributes["subject"].ce_string = player
    m.attributes["time"].ce_timestamp.FromDatetime(when)
    return "go_fish", player, when


def envelope(m: Any, when: datetime, player: str) -> Route:
    m.cid = "uno:1"
    if player.endswith("1"):
        m.match_data.presence.user_id = player
        return "uno", player, None  # its arrival
    m.channel_message.sender_id = player
    m.channel_message.create_time.FromDatetime(when)
    return "uno", player, when


def match(m: Any, when: datetime, player: str) -> Route:
    del m.tickets[:]
    m.match_profile = "chess"
    m.tickets.add(id=player).create_time.FromDatetime(when)
    return "chess", player, when


def game_server(m: Any, when: datetime, player: str) -> Route:
    m.object_meta.name = "hearts-7f9c"
    m.object_meta.labels["player"] = player
    m.object_meta.creation_timestamp = round(when.timestamp())
    return "hearts", player, when


def write_request(m: Any, when: datetime, player: str) -> Route:
    del m.timeseries[:]
    series = m.timeseries.add()
    for name, value in (("__name__", "hits"), ("game", "bingo"), ("player", player)):
        series.labels.add(name=name, value=value)
    series.samples.add(value=1.5, timestamp=nanos(when) // 1_000_000)
    return "bingo", player, when


def dota_metadata(m: Any, _when: datetime, player: str) -> Route:
    m.match_id = 2**64 - 1 - int(player[-1])
    return "dota", str(m.match_id), None  # its arrival


def dota_party(m: Any, when: datetime, player: str) -> Route:
    m.leader_id = 2**63 + int(player[-1])
    m.ready_check.start_timestamp = round(when.timestamp())
    return "dota", str(m.leader_id), when


ROUTES: dict[str, Callable[[Any, datetime, str], Route]] = {
    "otel_log_record": log_record,
    "otel_resource_logs": resource_logs,
    "otel_metric": metric,
    "otel_span": span,
    "gtfs_feed_message": feed_message,
    "cloud_event": cloud_event,
    "nakama_envelope": envelope,
    "open_match_match": match,
    "agones_game_server": game_server,
    "prometheus_write_request": write_request,
    "dota_match_metadata_file": dota_metadata,
    "dota_party": dota_party,
}
#: Without a time of its own, a record has that of its arrival.
BY_ARRIVAL = ("nakama_envelope", "dota_match_metadata_file")


def messages(name: str, schema: Any) -> list[Message]:
    """Messages with random values that Python's protobuf takes."""
    python = python_class(schema)
    writer = Writer(random.Random(name), schema.pool, 0, 0)  # noqa: S311 - not for secrets
    made: list[Message] = []
    while len(made) < RECORDS:
        message = python.FromString(writer.message(schema.message((0,))))
        message.DiscardUnknownFields()
        if message.IsInitialized():
            made.append(message)
    return made


def test_types_shaped_like_twelve_public_ones_route_by_settings_alone_and_every_value_is_as_python_reads_it(
    make_settings, make_pipeline
):
    settings = make_settings(**DEFINITIONS)
    expected: list[tuple[str, Any, Message, Route]] = []
    for name, route in ROUTES.items():
        schema = compiled((FOLDER / f"{name}.proto").read_text())
        schema_id = register(settings, (FOLDER / f"{name}.proto").read_text(), subject=f"{settings.kafka_topic}-{name}")
        for number, message in enumerate(messages(name, schema)):
            player = f"player {number % 3}"
            where = route(message, BEGIN + timedelta(seconds=number), player)
            key = player.encode()
            send_values(settings, [frame(schema_id, (0,), message)], [("game", b"header")], key)
            expected.append((name, schema, message, where))
    pipeline = make_pipeline(settings)
    report = refresh(pipeline)
    assert report.success, report.errors
    assert (report.rejected, dict(report.nulled), dict(report.unrouted)) == ({}, {}, {})
    assert not report.notices, report.notices

    bronze = DeltaTable(pipeline.bronze.uri)
    columns = column_map(bronze)
    held = sorted(bronze.to_pyarrow_table().to_pylist(), key=lambda row: row["_kafka_offset"])
    assert len(held) == len(expected) == 12 * RECORDS
    games: dict[str, int] = {}
    for row, (name, schema, message, (game, player, when)) in zip(held, expected, strict=True):
        at = row["_kafka_timestamp"] if when is None and name in BY_ARRIVAL else when
        assert (row["game_name"], row["gamer_id"], row["event_timestamp"]) == (game, player, at), name
        like = read(message, schema.pool)
        assert as_read(row, like, ProtobufDecoder(schema, (0,)), columns) == like, name
        games[game] = games.get(game, 0) + 1
    for game, count in games.items():
        assert rows(settings, f"silver_{game}_events", "SELECT count(*) FROM t") == [(count,)]
    found = reconcile(pipeline)
    assert found.passed, found.summary()
