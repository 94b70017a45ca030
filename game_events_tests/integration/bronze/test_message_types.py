"""Two message types in one topic, one of them selected: through a real broker and registry, changed settings included."""

import pytest

from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.checks.audits import audit_rules
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode, replay
from game_events.pipeline.runs.preflight import environment_checks, sql_checks
from game_events.pipeline.runs.refresh import refresh, refresh_downstream, selection_of
from game_events.plugins.governance.commits import remove_old_files
from game_events.plugins.governance.run import erase
from game_events_tests.support.decoding.helpers import compiled, frame, python_class
from game_events_tests.support.reconciliation import coordinates, count, gold, rows
from game_events_tests.support.worlds.erasure import places_of, tables_of
from game_events_tests.support.worlds.quality import assert_checks_pass, rule
from game_events_tests.support.worlds.topic import register, send_values
from game_events_tests.support.worlds.waves import versions

HEAD = 'syntax = "proto3"; package t; import "google/protobuf/timestamp.proto";'
OWN = "string game_name = 1; string gamer_id = 2; google.protobuf.Timestamp event_timestamp = 3;"
#: Two types in one schema; a third one has a subject of its own (RecordNameStrategy), which no topic leads to.
TEXT = HEAD + f" message Played {{ {OWN} int32 level = 4; }} message Heartbeat {{ {OWN} string host = 4; }}"
AVRO = '{"type": "record", "name": "Login", "namespace": "t", "fields": [{"name": "browser", "type": "string"}]}'
PLAYED, HEARTBEAT = "t.Played", "t.Heartbeat"
KEY, GONE = "a key of the tests, long enough", "gamer-to-forget"


@pytest.fixture
def topic(make_settings):
    """Sends messages of the two types."""
    settings = make_settings()
    schema_id = register(settings, TEXT)
    schema = compiled(TEXT, schema_id)

    def send(*messages, damaged=False):
        values = []
        for name, game, gamer, more in messages:
            path = {PLAYED: (0,), HEARTBEAT: (1,)}[name]
            made = python_class(schema, path)(
                game_name=game, gamer_id=gamer, event_timestamp={"seconds": 5}, **{"level" if name == PLAYED else "host": more}
            )
            values.append(frame(schema_id, path, made)[: -1 if damaged else None])
        send_values(settings, values)

    return send


@pytest.fixture
def selecting(make_settings, make_pipeline):
    """A pipeline that has these types selected."""
    return lambda *names, **more: make_pipeline(make_settings(message_types=names, **more))


def assert_nothing_to_do(pipeline):
    before = versions(pipeline.settings)
    report = refresh(pipeline)
    assert (report.tables, report.errors, report.other_types) == ([], [], {})
    assert versions(pipeline.settings) == before


def columns(settings, table):
    return {c for (c,) in rows(settings, table, "SELECT column_name FROM (DESCRIBE t)") if not c.startswith("_")}


@pytest.mark.scenario
def test_only_the_selected_type_is_decoded_and_a_changed_selection_is_taken_over_exactly_once(topic, selecting):
    pipeline = selecting(PLAYED)
    settings = pipeline.settings
    login = register(settings, AVRO, "AVRO", subject="t.Login")
    topic((HEARTBEAT, "uno", "ann", "host-1"), (HEARTBEAT, "uno", "bob", "host-2"))

    # Nothing of the selected type has come yet: there is nothing to route, and nothing wrong.
    report = refresh(selecting(PLAYED))
    assert (report.success, report.other_types, report.rows("bronze")) == (True, {HEARTBEAT: 2}, 2)
    assert (count(settings, BRONZE), columns(settings, BRONZE), report.of("silver")) == (2, set(), [])
    assert_checks_pass(selecting(PLAYED))
    assert_nothing_to_do(selecting(PLAYED))
    with_rules = selecting(PLAYED, rules=[rule("a_level", "level > 0", "drop")], gold_columns={"n": "count(*)"})
    assert all("no rows yet" in check() for check in sql_checks(with_rules).values())
    assert audit_rules(with_rules, with_rules.rules) == {}

    topic((PLAYED, "uno", "ann", 1), (HEARTBEAT, "uno", "ann", "host-1"), (PLAYED, "go", "bob", 2))
    topic((HEARTBEAT, "uno", "ann", "cut off"), damaged=True)
    send_values(settings, [b"\0" + login.to_bytes(4, "big") + b"\x02x", b"no frame"])
    report = refresh(selecting(PLAYED))
    assert (report.success, report.other_types) == (True, {HEARTBEAT: 2, "t.Login": 1})
    assert (report.rejected, report.unrouted) == ({"BAD_MAGIC": 1}, {"no_name": 5})
    assert report.to_dict()["other_types"] == {HEARTBEAT: 2, "t.Login": 1}
    assert {login} < report.schema_ids
    assert columns(settings, BRONZE) == {"game_name", "gamer_id", "event_timestamp", "level"}
    assert (count(settings, BRONZE), count(settings, QUARANTINE)) == (7, 1)
    kept = rows(settings, BRONZE, "SELECT count(*), count(_raw_value), count(_schema_id) FROM t WHERE game_name IS NULL")
    assert kept == [(5, 5, 5)]
    assert (count(settings, "silver_uno_events"), count(settings, "silver_go_events")) == (1, 1)
    assert_checks_pass(selecting(PLAYED))
    found = reconcile(selecting(PLAYED))
    assert (found.bronze, found.silver, found.unrouted) == (7, 2, 5)
    assert_nothing_to_do(selecting(PLAYED))

    # Another setting: new records follow it at once, those that are there by a redecode.
    both = (PLAYED, HEARTBEAT)
    done = redecode(selecting(*both), RunReport())
    assert (done.rows, dict(done.other_types), done.new_columns) == (7, {"t.Login": 1}, ["host"])
    assert done.kept == {"TRUNCATED": 1}, "now it is looked into"
    refresh_downstream(selecting(*both), RunReport(), full=True)
    assert rows(settings, "silver_uno_events", "SELECT gamer_id, level, host FROM t ORDER BY ALL") == [
        ("ann", 1, None), ("ann", None, "host-1"), ("ann", None, "host-1"), ("bob", None, "host-2"),
    ]  # fmt: skip
    assert {gamer: found[0] for gamer, found in gold(settings, "uno").items()} == {"ann": 3, "bob": 1}
    assert_checks_pass(selecting(*both))
    assert_nothing_to_do(selecting(*both))

    # And back: rows go, a column that was there stays for what may come.
    done = redecode(selecting(PLAYED), RunReport())
    assert (dict(done.other_types), dict(done.kept)) == ({HEARTBEAT: 4, "t.Login": 1}, {})
    refresh_downstream(selecting(PLAYED), RunReport(), full=True)
    assert (count(settings, "silver_uno_events"), count(settings, "silver_go_events")) == (1, 1)
    assert rows(settings, BRONZE, "SELECT count(*), count(host) FROM t") == [(7, 0)]
    assert set(gold(settings, "uno")) == {"ann"}
    assert_checks_pass(selecting(PLAYED))
    assert_nothing_to_do(selecting(PLAYED))


@pytest.mark.scenario
def test_damaged_records_of_a_type_that_is_not_selected_any_more_come_out_of_quarantine_once(topic, selecting):
    topic((PLAYED, "uno", "ann", 1))
    topic((HEARTBEAT, "uno", "ann", "cut off"), damaged=True)
    report = refresh(selecting())
    assert (report.rejected, report.other_types) == ({"TRUNCATED": 1}, {})
    pipeline, report = selecting(PLAYED), RunReport()
    assert replay(pipeline, report, ReplaySelection()).rows == 1
    assert report.other_types == {HEARTBEAT: 1}
    refresh(selecting(PLAYED))
    assert (count(pipeline.settings, BRONZE), count(pipeline.settings, "silver_uno_events")) == (2, 1)
    assert replay(selecting(PLAYED), RunReport(), ReplaySelection()).rows == 0
    assert_checks_pass(selecting(PLAYED))


@pytest.mark.scenario
def test_without_raw_values_those_of_other_types_are_kept_and_can_be_decoded_later(topic, selecting):
    topic((PLAYED, "uno", "ann", 1), (HEARTBEAT, "uno", "bob", "host-1"))
    settings = selecting(PLAYED, keep_raw="failures").settings
    refresh(selecting(PLAYED, keep_raw="failures"))
    assert rows(settings, BRONZE, "SELECT count(*), count(_raw_value) FROM t") == [(2, 1)]
    done = redecode(selecting(PLAYED, HEARTBEAT, keep_raw="failures"), RunReport())
    assert (dict(done.kept), dict(done.other_types)) == ({"NO_RAW_VALUE": 1}, {})
    assert rows(settings, BRONZE, "SELECT gamer_id, level, host FROM t ORDER BY 1") == [
        ("ann", 1, None),
        ("bob", None, "host-1"),
    ]


@pytest.mark.usefixtures("topic")
def test_doctor_tells_of_a_name_that_no_known_schema_has(selecting, make_settings):
    def said(*names):
        return environment_checks(make_settings(message_types=names))["message types"]()

    assert said(PLAYED, HEARTBEAT, f"{PLAYED}.Inner") == f"decoded are {PLAYED}, {HEARTBEAT}, {PLAYED}.Inner"
    assert said(PLAYED, "t.Login") == (
        f"decoded are {PLAYED}, t.Login; no known schema has t.Login: there are {HEARTBEAT}, {PLAYED}"
    )
    # Of another subject: known once a record of it has come.
    login = register(make_settings(), AVRO, "AVRO", subject="t.Login")
    send_values(make_settings(), [b"\0" + login.to_bytes(4, "big") + b"\x02x"])
    refresh(selecting(PLAYED))
    assert said(PLAYED, "t.Login") == f"decoded are {PLAYED}, t.Login"
    assert "message types" not in environment_checks(make_settings())


@pytest.mark.scenario
def test_a_full_refresh_of_bronze_counts_and_keeps_them_too(topic, selecting):
    topic((PLAYED, "uno", "ann", 1), (HEARTBEAT, "uno", "bob", "host-1"))
    refresh(selecting())
    allowed = selecting(PLAYED, allow_bronze_full_refresh=True)
    report = refresh(allowed, selection=selection_of(allowed, full_refresh=["all"]))
    assert (report.success, report.other_types) == (True, {HEARTBEAT: 1})
    assert (count(allowed.settings, BRONZE), count(allowed.settings, "silver_uno_events")) == (2, 1)
    assert_checks_pass(selecting(PLAYED))


@pytest.mark.scenario
def test_a_forgotten_gamer_is_in_no_byte_of_records_that_are_not_decoded_and_does_not_come_back(topic, selecting):
    more = {"erasure_key": KEY, "allow_bronze_full_refresh": True}
    topic((PLAYED, "uno", GONE, 1), (HEARTBEAT, "uno", GONE, "host-1"), (HEARTBEAT, "uno", "ann", "host-1"))
    topic((PLAYED, "uno", "ann", 1))
    settings = selecting(PLAYED, **more).settings
    refresh(selecting(PLAYED, **more))
    pipeline, report = selecting(PLAYED, **more), RunReport()
    wanted = erase(pipeline, report, frozenset({GONE}))
    assert (report.parts["erasure"].finished, report.parts["erasure"].rows["bronze_events"]) == (True, 2)
    assert (report.parts["erasure"].undecoded, report.parts["erasure"].unsearchable) == (1, 0)
    remove_old_files(pipeline, report.parts["erasure"], wanted)
    assert places_of(settings, GONE) == []
    assert_checks_pass(selecting(PLAYED, **more))

    # What Kafka still has of them stays out, and what comes now is recognised once it is decoded.
    again = selecting(PLAYED, **more)
    report = refresh(again, selection=selection_of(again, full_refresh=["all"]))
    assert (report.success, report.suppressed, tables_of(settings, GONE)) == (True, 2, set())
    topic((HEARTBEAT, "uno", GONE, "host-9"))
    refresh(selecting(PLAYED, **more))
    assert tables_of(settings, GONE) == {BRONZE}
    report = RunReport()
    redecode(selecting(PLAYED, HEARTBEAT, **more), report)
    assert report.suppressed == 1
    refresh_downstream(selecting(PLAYED, HEARTBEAT, **more), RunReport(), full=True)
    assert len(coordinates(settings, "silver_uno_events")) == 2
    assert_checks_pass(selecting(PLAYED, HEARTBEAT, **more))
