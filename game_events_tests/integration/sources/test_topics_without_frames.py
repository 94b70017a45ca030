"""Topics without a registry's frame, from the serializers that write them: protobuf, Avro and JSON alone."""

import io
import json

import fastavro
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.checks.table_checks import CHECKS
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode, replay
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.worlds.topic import register, send_values
from game_events_tests.support.worlds.waves import versions

HEAD = 'syntax = "proto3"; package t; import "google/protobuf/timestamp.proto";'
OWN = "string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3;"
PROTO = HEAD + f" message Other {{ string no = 9; }} message Played {{ {OWN} int32 level = 4; }}"
AVRO = {
    "type": "record", "name": "Login", "namespace": "t",
    "fields": [
        {"name": "game_name", "type": "string"},
        {"name": "gamer_id", "type": "string"},
        {"name": "event_timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "browser", "type": ["null", "string"]},
    ],
}  # fmt: skip


def played(gamer, level):
    return python_class(compiled(PROTO, 1), (1,))(
        game_name="uno", gamer_id=gamer, event_timestamp={"seconds": 5}, level=level
    )


def login(gamer, browser):
    out = io.BytesIO()
    row = {"game_name": "go", "gamer_id": gamer, "event_timestamp": 5000, "browser": browser}
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), row)
    return out.getvalue()


def assert_sound(pipeline):
    failed = [(c.name, found.summary) for c in CHECKS if not (found := c.run(pipeline)).passed and c.blocking]
    assert failed == []


def event(game, gamer, **more):
    at = {"event_timestamp": "2026-11-01T12:00:00Z"}
    return json.dumps({"event": "played", "game_name": game, "gamer_id": gamer} | at | more).encode()


def test_protobuf_of_a_file_is_decoded_without_a_frame_and_beside_framed_records(make_settings, make_pipeline, tmp_path):
    file = tmp_path / "played.proto"
    file.write_text(PROTO)
    entry = {"format": "protobuf", "schema": str(file), "message_type": "t.Played"}
    plain = make_settings()
    topic = plain.kafka_topic
    schema_id = register(plain, PROTO)
    send_values(plain, [played("ann", 1).SerializeToString(), frame(schema_id, (1,), played("bob", 2)), b"\xff\xff"])

    # Without the setting: quarantine says that there is one.
    report = refresh(make_pipeline(plain))
    assert (report.rows("bronze"), report.rejected) == (1, {"BAD_MAGIC": 2})
    assert all("GAME_EVENTS_DECODING" in d for (d,) in rows(plain, QUARANTINE, "SELECT detail FROM t"))

    # Both kinds in one topic: what waits in quarantine comes by a replay, each once.
    settings = make_settings(decoding={topic: entry | {"framed": "auto"}})
    send_values(settings, [played("cat", 3).SerializeToString(), frame(schema_id, (1,), played("dan", 4)), b"\xff\xff"])
    report = refresh(make_pipeline(settings))
    assert (report.rows("bronze"), report.rejected) == (2, {"TRUNCATED": 1})
    (detail,) = rows(settings, QUARANTINE, "SELECT detail FROM t WHERE reason = 'TRUNCATED'")[0]
    assert str(file) in detail and "t.Played" in detail and "GAME_EVENTS_DECODING" in detail
    assert replay(make_pipeline(settings), RunReport(), ReplaySelection()).rows == 1
    refresh(make_pipeline(settings))
    got = rows(settings, BRONZE, "SELECT gamer_id, level, _message_type, _schema_id, _schema_guid IS NULL FROM t ORDER BY ALL")
    assert got == [
        ("ann", 1, "t.Played", None, False), ("bob", 2, "t.Played", schema_id, True),
        ("cat", 3, "t.Played", None, False), ("dan", 4, "t.Played", schema_id, True),
    ]  # fmt: skip
    assert_sound(make_pipeline(settings))

    # The text is archived: rows are decoded again when neither file nor setting is there.
    file.unlink()
    before = rows(settings, BRONZE, "SELECT * FROM t ORDER BY _kafka_offset")
    done = redecode(make_pipeline(plain), RunReport())
    assert (done.rows, dict(done.kept)) == (4, {})
    assert rows(settings, BRONZE, "SELECT * FROM t ORDER BY _kafka_offset") == before
