"""Topics without a registry's frame, from the serializers that write them: protobuf, Avro and JSON alone."""

import io
import json

import fastavro

from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode, replay
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events.plugins.governance.run import erase
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.worlds.quality import assert_checks_pass
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
    return python_class(compiled(PROTO, 1), (1,))(game_name="uno", gamer_id=gamer, event_timestamp={"seconds": 5}, level=level)


def login(gamer, browser):
    out = io.BytesIO()
    row = {"game_name": "go", "gamer_id": gamer, "event_timestamp": 5000, "browser": browser}
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), row)
    return out.getvalue()


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
    assert_checks_pass(make_pipeline(settings))

    # The text is archived: rows are decoded again when neither file nor setting is there.
    file.unlink()
    before = rows(settings, BRONZE, "SELECT * FROM t ORDER BY _kafka_offset")
    done = redecode(make_pipeline(plain), RunReport())
    assert (done.rows, dict(done.kept)) == (4, {})
    assert rows(settings, BRONZE, "SELECT * FROM t ORDER BY _kafka_offset") == before


def test_avro_of_a_subject_follows_its_newest_version_and_each_row_keeps_its_own(make_settings, make_pipeline):
    plain = make_settings()
    topic = plain.kafka_topic
    subject = f"{topic}.Login"
    first = register(plain, json.dumps(AVRO), "AVRO", subject=subject)
    entry = {"format": "avro", "schema": f"subject:{subject}", "framed": "auto"}
    settings = make_settings(decoding={f"{topic[:-1]}.+": entry})  # a pattern
    framed = b"\0" + first.to_bytes(4, "big") + login("bob", None)
    # The first field is a text: an empty one begins with 00, as a frame does.
    send_values(settings, [login("ann", "x"), framed, b"\0" + login("", "empty name")[3:]])
    report = refresh(make_pipeline(settings))
    assert (report.rows("bronze"), report.rejected) == (3, {})

    wider = AVRO | {"fields": [*AVRO["fields"], {"name": "os", "type": "string"}]}
    second = register(plain, json.dumps(wider), "AVRO", subject=subject)
    out = io.BytesIO()
    row = {"game_name": "go", "gamer_id": "cat", "event_timestamp": 5000, "browser": None, "os": "linux"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(wider), row)
    send_values(settings, [out.getvalue()])
    report = refresh(make_pipeline(settings))
    assert (report.rows("bronze"), report.rejected) == (1, {})
    got = "SELECT gamer_id, browser, os, _schema_id, _message_type FROM t ORDER BY _kafka_offset"
    expected = [
        ("ann", "x", None, first, "t.Login"), ("bob", None, None, first, "t.Login"),
        ("", "empty name", None, first, "t.Login"), ("cat", None, "linux", second, "t.Login"),
    ]  # fmt: skip
    assert rows(settings, BRONZE, got) == expected
    done = redecode(make_pipeline(settings), RunReport())
    assert (done.rows, dict(done.kept)) == (4, {})
    assert rows(settings, BRONZE, got) == expected
    assert_checks_pass(make_pipeline(settings))


def test_schemas_are_found_by_a_header_or_the_key(make_settings, make_pipeline):
    plain = make_settings()
    topic = plain.kafka_topic
    subject = f"{topic}.Login"
    schema_id = register(plain, json.dumps(AVRO), "AVRO", subject=subject)
    settings = make_settings(decoding={topic: {"format": "avro", "schema": "header:schema"}})
    send_values(settings, [login("ann", None)], headers=[("schema", subject.encode())])
    send_values(settings, [login("bob", None)], headers=[("schema", str(schema_id).encode())])
    send_values(settings, [login("cat", None)], headers=[("schema", b"nobody")])
    send_values(settings, [login("dan", None)], key=subject.encode())
    report = refresh(make_pipeline(settings))
    assert (report.rows("bronze"), report.rejected) == (2, {"UNKNOWN_SCHEMA": 2})
    details = [d for (d,) in rows(settings, QUARANTINE, "SELECT detail FROM t ORDER BY _kafka_offset")]
    assert "no subject 'nobody'" in details[0] and "header 'schema'" in details[1]

    changed = make_settings(decoding={topic: {"format": "avro", "schema": "key"}})
    assert replay(make_pipeline(changed), RunReport(), ReplaySelection()).rows == 1
    refresh(make_pipeline(changed))
    assert rows(settings, BRONZE, "SELECT gamer_id, _schema_id FROM t ORDER BY ALL") == [
        (name, schema_id) for name in ("ann", "bob", "dan")
    ]
    assert_checks_pass(make_pipeline(changed))


def test_json_without_a_schema_gets_columns_that_grow_and_never_narrow(make_settings, make_pipeline):
    plain = make_settings()
    topic = plain.kafka_topic
    entry = {"format": "json", "type_field": "event", "hints": {"bought": "timestamp"}}
    settings = make_settings(decoding={topic: entry}, schema_registry_url="http://127.0.0.1:9")
    send_values(
        settings,
        [
            event("uno", "ann", level=1, price=2, bought="2026-11-01T12:00:00Z", tags=[]),
            event("uno", "ann", level=2, price=2.5, shop={"name": "north", "lines": [{"sku": "a", "n": 1}]}),
            event("uno", 7, level="hard", shop={"name": 5, "lines": [{"sku": "b"}]}),
            b'{"event": "left", "game_name": "go", "gamer_id": "bob", "event_timestamp": "2026-11-01T13:00:00Z", "why": null}',
            b"[1]",
            b'{"event": ',
        ],
    )
    report = refresh(make_pipeline(settings))
    assert (report.rows("bronze"), report.rejected) == (4, {"MALFORMED": 1, "TRUNCATED": 1})
    assert report.to_dict()["rescued"] == {topic: 2}
    assert report.to_dict()["rows_by_type"] == {"played": 3, "left": 1}
    sql = "SELECT _message_type, gamer_id, level, price, shop.name, shop.lines[1].sku, _rescued FROM t ORDER BY _kafka_offset"
    expected = [
        ("played", "ann", 1, 2.0, None, None, '{"tags":[]}'),
        ("played", "ann", 2, 2.5, "north", "a", None),
        ("played", "7", None, None, None, "b", '{"level":"hard","shop":{"name":5}}'),
        ("left", "bob", None, None, None, None, None),
    ]
    assert rows(settings, BRONZE, sql) == expected
    assert rows(settings, BRONZE, "SELECT count(bought), count(_schema_id), count(_schema_guid) FROM t") == [(1, 0, 0)]
    assert (count(settings, "silver_uno_events"), count(settings, "silver_go_events")) == (3, 1)
    assert_checks_pass(make_pipeline(settings))

    # Another process: what bronze has is the schema. New members add columns, others keep their types.
    send_values(settings, [event("uno", "cat", level=1.5, price=3, tags=["a"], os={"name": "linux"})])
    report = refresh(make_pipeline(settings))
    assert report.rows("bronze") == 1
    assert rows(
        settings, BRONZE, "SELECT level, price, tags, os.name, _rescued FROM t ORDER BY _kafka_offset DESC LIMIT 1"
    ) == [(None, 3.0, ["a"], "linux", '{"level":1.5}')]
    done = redecode(make_pipeline(settings), RunReport())
    assert (done.rows, dict(done.kept), done.new_columns) == (5, {}, [])
    again = [*expected[0][:6], None]
    assert rows(settings, BRONZE, sql)[:4] == [tuple(again), *expected[1:]], "the empty list has a column now"
    before = versions(settings)
    refresh(make_pipeline(settings))
    assert versions(settings) == before


def test_json_without_a_schema_is_the_same_after_a_full_refresh_and_without_erased_people(make_settings, make_pipeline):
    topic = make_settings().kafka_topic
    more = {"erasure_key": "a key of the tests, long enough", "allow_bronze_full_refresh": True}
    settings = make_settings(decoding={topic: {"format": "json", "cloudevents": True}}, **more)
    send_values(settings, [event("uno", "ann", level=1), event("uno", "bob", level="x")], headers=cloud_headers("played"))
    send_values(settings, [b"no json"], headers=cloud_headers("played"), key=b"bob")
    report = refresh(make_pipeline(settings))
    assert (report.rows("bronze"), report.rejected) == (2, {"MALFORMED": 1})
    got = "SELECT gamer_id, level, _rescued, _message_type, ce_type, ce_id, hour(ce_time) FROM t ORDER BY gamer_id"
    assert rows(settings, BRONZE, got) == [
        ("ann", 1, None, "played", "played", "7", 12), ("bob", None, '{"level":"x"}', "played", "played", "7", 12),
    ]  # fmt: skip
    before = rows(settings, "silver_uno_events", got)

    pipeline = make_pipeline(settings)
    refresh(pipeline, selection=selection_of(pipeline, full_refresh=["bronze", "all"]))
    assert rows(settings, "silver_uno_events", got) == before
    assert count(settings, QUARANTINE) == 1
    assert_checks_pass(make_pipeline(settings))

    erase(make_pipeline(settings), RunReport(), frozenset({"bob"}))
    refresh(make_pipeline(settings))
    assert rows(settings, "silver_uno_events", got) == before[:1]
    assert (rows(settings, BRONZE, got), count(settings, QUARANTINE)) == (before[:1], 0)
    send_values(settings, [event("uno", "bob", level=3)], headers=cloud_headers("played"))
    assert refresh(make_pipeline(settings)).suppressed == 1
    assert_checks_pass(make_pipeline(settings))


def cloud_headers(kind):
    head = {"specversion": "1.0", "id": "7", "source": "/x", "type": kind, "time": "2026-11-01T12:00:00Z"}
    return [(f"ce_{name}", text.encode()) for name, text in head.items()]
