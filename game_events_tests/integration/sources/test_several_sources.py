"""Two clusters and two registries in one lakehouse: ids that mean two things, one that is down, files beside a topic."""

from __future__ import annotations

import uuid

import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.table_checks import offsets_continuous, offsets_lost, offsets_unique
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.pending import backlog, read_lag
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events.plugins.local.servers import local_stack
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.servers.own_stack import OwnStack
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.worlds.quality import SCHEMA, varint
from game_events_tests.support.worlds.topic import register, send_values

#: The same message type in the second registry, in which field 4 is another one, and field 5 has another number.
ELSEWHERE = SCHEMA.replace("optional int64 amount = 4; optional string note = 5;", "optional string remark = 4;")


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """A second broker and registry."""
    own = OwnStack(tmp_path_factory.mktemp("second"))
    yield own
    local_stack.down(own.folder)


@pytest.fixture
def eu(settings):
    """Settings of the first cluster alone: those of the top level."""
    return settings


@pytest.fixture
def us(settings, second):
    """Settings of the second cluster alone; its topic has the same name."""
    return load_settings(
        **{
            "kafka_bootstrap_servers": second.state.kafka_bootstrap_servers,
            "schema_registry_url": second.state.schema_registry_url,
            "kafka_topic": settings.kafka_topic,
            "lakehouse": settings.lakehouse,
        }
    )


def both(make_settings, us, **more):
    """Settings of the two as sources; `more`: of the second one, over its own."""
    own = {"kafka_bootstrap_servers": us.kafka_bootstrap_servers, "schema_registry_url": us.schema_registry_url}
    return make_settings(sources={"eu": {}, "us": own | more})


def same_id(eu, us):
    """An id that both registries have, of two schemas."""
    while True:
        ids = [register(where, unique(text)) for where, text in ((eu, SCHEMA), (us, ELSEWHERE))]
        if ids[0] == ids[1]:
            return ids[0]
        for _ in range(abs(ids[0] - ids[1])):
            register((eu, us)[ids.index(min(ids))], unique(SCHEMA), subject=f"other-{uuid.uuid4().hex}")


def unique(text):
    """The schema with a message that no other one has."""
    return f"{text}\nmessage M{uuid.uuid4().hex} {{ string a = 1; }}"


def event(game, tail=b"", gamer=b"ann"):
    return b"\x0a" + bytes([len(game)]) + game.encode() + b"\x12" + bytes([len(gamer)]) + gamer + b"\x1a\x02\x08\x07" + tail


def amounts(number):
    return b"\x20" + varint(number)


def remarks(text):
    return b"\x22" + bytes([len(text)]) + text.encode()


def send(settings, schema_id, payloads, index=b"\0"):
    send_values(settings, [b"\0" + schema_id.to_bytes(4, "big") + index + payload for payload in payloads])


def by_source(settings, table=BRONZE, what="count(*)"):
    return dict(rows(settings, table, f"SELECT _source, {what} FROM t GROUP BY 1 ORDER BY 1"))


def assert_sound(pipeline):
    for check in (offsets_continuous(pipeline), offsets_unique(pipeline), offsets_lost(pipeline)):
        assert check.passed, check.summary
    found = reconcile(pipeline)
    assert found.passed, found.summary()


def test_one_id_of_two_registries_is_two_schemas_and_each_record_is_there_once(eu, us, make_settings, make_pipeline):
    one = same_id(eu, us)
    settings = both(make_settings, us)
    send(eu, one, [event("uno", amounts(n)) for n in range(5)])
    send(us, one, [event("uno", remarks(f"n{n}")) for n in range(3)])
    report = refresh(make_pipeline(settings))
    assert report.success and report.by_source == {"eu": {"read": 5, "lag": 0}, "us": {"read": 3, "lag": 0}}
    assert by_source(settings) == {"eu": 5, "us": 3}
    assert by_source(settings, what="list(DISTINCT _schema_id)") == {"eu": [one], "us": [one]}
    assert by_source(settings, what="sum(amount)") == {"eu": 10, "us": None}
    assert by_source(settings, what="max(remark)") == {"eu": None, "us": "n2"}
    assert {topic for (topic,) in rows(settings, BRONZE, "SELECT DISTINCT _kafka_topic FROM t")} == {settings.kafka_topic}
    assert count(settings, "silver_uno_events") == 8
    assert_sound(make_pipeline(settings))
    assert read_lag(settings, 5).total_lag == 0


def test_redecode_and_replay_take_each_row_by_the_registry_of_its_source(eu, us, make_settings, make_pipeline, second):
    one = same_id(eu, us)
    hidden = one + 5_000
    settings = both(make_settings, us)
    send(eu, one, [event("uno", amounts(1))])
    send(us, one, [event("uno", remarks("a"))])
    # An id that neither has, later only the second one.
    send(eu, hidden, [event("uno", amounts(7))])
    send(us, hidden, [event("uno", remarks("b"))])
    refresh(make_pipeline(settings))
    assert by_source(settings, QUARANTINE, "list(DISTINCT _schema_id)") == {"eu": [hidden], "us": [hidden]}
    assert {r[0] for r in rows(settings, QUARANTINE, "SELECT detail FROM t WHERE _source = 'us'")} == {
        f"the registry {us.schema_registry_url} has no schema with id us/{hidden}"
    }
    before = sorted(rows(settings, BRONZE, "SELECT _source, _kafka_offset, amount, remark FROM t"))
    assert before == [("eu", 0, 1, None), ("us", 0, None, "a")]

    done = redecode(make_pipeline(settings), RunReport())
    assert (done.rows, dict(done.kept)) == (2, {})
    assert sorted(rows(settings, BRONZE, "SELECT _source, _kafka_offset, amount, remark FROM t")) == before

    known = {hidden: one}
    with registry_proxy(us.schema_registry_url) as proxy:
        # The second registry has the id from now on: its proxy gives it the text of another.
        proxy.rename(known)
        later = both(make_settings, us, schema_registry_url=proxy.url)
        report = RunReport()
        load_bronze(make_pipeline(later), report)
        refresh(make_pipeline(later))
    assert by_source(settings, QUARANTINE, "count(replayed_batch)") == {"eu": 0, "us": 1}
    assert sorted(rows(settings, BRONZE, "SELECT _source, _kafka_offset, amount, remark FROM t")) == [
        *before,
        ("us", 1, None, "b"),
    ]
    assert_sound(make_pipeline(settings))


def test_a_broker_that_is_down_holds_up_no_other_and_the_next_run_catches_up(eu, us, make_settings, make_pipeline, no_waiting):
    settings = both(make_settings, us)
    one, two = register(eu, SCHEMA), register(us, ELSEWHERE)
    send(eu, one, [event("uno", amounts(n)) for n in range(2)])
    send(us, two, [event("uno", remarks("a"))])
    assert refresh(make_pipeline(settings)).success

    send(eu, one, [event("uno", amounts(n)) for n in range(3)])
    send(us, two, [event("uno", remarks("b"))])
    down = both(make_settings, us, kafka_bootstrap_servers="127.0.0.1:9")
    pipeline = make_pipeline(down)
    report = refresh(pipeline)
    assert not report.success and list(report.left_out) == ["us"]
    assert report.by_source["eu"] == {"read": 3, "lag": 0} and "127.0.0.1:9" in report.by_source["us"]["left_out"]
    assert by_source(settings) == {"eu": 5, "us": 1} and count(settings, "silver_uno_events") == 6
    lag = read_lag(down, 1)
    assert lag.total_lag == 0 and list(lag.failures) == ["us"]
    assert "us" in backlog_failures(make_pipeline(down))

    report = refresh(make_pipeline(settings))
    assert report.success and report.by_source == {"eu": {"lag": 0}, "us": {"read": 1, "lag": 0}}
    assert by_source(settings) == {"eu": 5, "us": 2}
    assert_sound(make_pipeline(settings))


def backlog_failures(pipeline):
    backlog(pipeline)
    return pipeline.source.failures


def test_a_registry_that_is_down_holds_up_its_own_source_only(eu, us, make_settings, make_pipeline):
    one, two = register(eu, SCHEMA), register(us, ELSEWHERE)
    send(eu, one, [event("uno", amounts(n)) for n in range(2)])
    send(us, two, [event("uno", remarks("a"))])
    settings = both(make_settings, us, schema_registry_url="http://127.0.0.1:9")
    report = refresh(make_pipeline(settings))
    assert list(report.left_out) == ["us"] and "127.0.0.1:9" in report.left_out["us"]
    assert by_source(settings) == {"eu": 2}
    assert (count(settings, "silver_uno_events"), count(settings, QUARANTINE)) == (2, 0)

    report = refresh(make_pipeline(both(make_settings, us)))
    assert report.success and by_source(settings) == {"eu": 2, "us": 1}
    assert_sound(make_pipeline(both(make_settings, us)))


def test_tables_of_one_source_are_as_they_were_when_a_second_joins(eu, us, make_settings, make_pipeline):
    one = same_id(eu, us)
    send(eu, one, [event("uno", amounts(n)) for n in range(4)])
    refresh(make_pipeline(eu))
    send(eu, one, [event("uno", amounts(9))])
    send(us, one, [event("uno", remarks("a"))])
    settings = both(make_settings, us)
    report = refresh(make_pipeline(settings))
    assert report.by_source == {"eu": {"read": 1, "lag": 0}, "us": {"read": 1, "lag": 0}}
    assert by_source(settings) == {None: 4, "eu": 1, "us": 1}
    archived = rows(settings, "schemas", "SELECT schema_id, schema_guid FROM t ORDER BY 1 NULLS LAST")
    assert archived == [(one, None), (None, f"us/{one}")]
    done = redecode(make_pipeline(settings), RunReport())
    assert (done.rows, dict(done.kept)) == (6, {})
    assert by_source(settings, what="sum(amount)") == {None: 6, "eu": 9, "us": None}
    assert by_source(settings, what="max(remark)") == {None: None, "eu": None, "us": "a"}
    assert_sound(make_pipeline(settings))
    # And back: what the settings do not name stays as it is, by the archive.
    assert refresh(make_pipeline(eu)).tables == []
    assert redecode(make_pipeline(eu), RunReport()).kept.keys() <= {"UNKNOWN_SCHEMA"}
    assert by_source(settings, what="max(remark)")["us"] == "a"


def test_a_full_refresh_needs_every_source_and_keeps_each_row_once(eu, us, make_settings, make_pipeline, no_waiting):
    one, two = register(eu, SCHEMA), register(us, ELSEWHERE)
    send(eu, one, [*(event("uno", amounts(n)) for n in range(2)), b""])
    send(us, two, [event("uno", remarks("a"))])
    settings = both(
        make_settings,
        us,
    )
    refresh(make_pipeline(settings))
    down = both(make_settings, us, kafka_bootstrap_servers="127.0.0.1:9").model_copy(update={"allow_bronze_full_refresh": True})
    everything = sorted(rows(settings, BRONZE, "SELECT _source, _kafka_offset FROM t"))
    pipeline = make_pipeline(down)
    with pytest.raises(Exception, match="source us: .* A full refresh needs every source"):
        refresh(pipeline, selection=selection_of(pipeline, full_refresh=["bronze"]))
    assert sorted(rows(settings, BRONZE, "SELECT _source, _kafka_offset FROM t")) == everything
    pipeline = make_pipeline(settings.model_copy(update={"allow_bronze_full_refresh": True}))
    refresh(pipeline, selection=selection_of(pipeline, full_refresh=["bronze"]))
    assert sorted(rows(settings, BRONZE, "SELECT _source, _kafka_offset FROM t")) == everything
    # A source that the settings do not name keeps its rows, though its topic has the same name.
    pipeline = make_pipeline(make_settings(sources={"eu": {}}, allow_bronze_full_refresh=True))
    refresh(pipeline, selection=selection_of(pipeline, full_refresh=["bronze"]))
    assert sorted(rows(settings, BRONZE, "SELECT _source, _kafka_offset FROM t")) == everything
    assert_sound(make_pipeline(settings))


def test_two_sources_of_one_topic_are_refused(eu, us, make_settings, make_pipeline):
    send(eu, register(eu, SCHEMA), [event("uno")])
    settings = make_settings(sources={"eu": {}, "twice": {}})
    with pytest.raises(ConfigurationError, match="eu and twice both read"):
        refresh(make_pipeline(settings))
