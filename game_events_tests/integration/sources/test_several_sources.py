"""Two clusters and two registries in one lakehouse: ids that mean two things, one that is down, files beside a topic."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.pending import backlog, read_lag
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events.plugins.governance.run import erase
from game_events_tests.support.fixtures.files import landing  # noqa: F401 - a fixture
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.servers.registry_proxy import registry_proxy
from game_events_tests.support.worlds.file_samples import lines, put
from game_events_tests.support.worlds.quality import SCHEMA
from game_events_tests.support.worlds.topic import register
from game_events_tests.support.worlds.two_clusters import (
    ELSEWHERE,
    ONE_ID,
    amounts,
    assert_sound,
    by_source,
    event,
    remarks,
    send,
)


def test_one_id_of_two_registries_is_two_schemas_and_each_record_is_there_once(one_id, make_pipeline):
    eu, us, both = one_id
    settings = both()
    send(eu, ONE_ID, [event("uno", amounts(n)) for n in range(5)])
    send(us, ONE_ID, [event("uno", remarks(f"n{n}")) for n in range(3)])
    report = refresh(make_pipeline(settings))
    assert report.success and report.by_source == {"eu": {"read": 5, "lag": 0}, "us": {"read": 3, "lag": 0}}
    assert by_source(settings) == {"eu": 5, "us": 3}
    assert by_source(settings, what="list(DISTINCT _schema_id)") == {"eu": [ONE_ID], "us": [ONE_ID]}
    assert by_source(settings, what="sum(amount)") == {"eu": 10, "us": None}
    assert by_source(settings, what="max(remark)") == {"eu": None, "us": "n2"}
    assert {topic for (topic,) in rows(settings, BRONZE, "SELECT DISTINCT _kafka_topic FROM t")} == {settings.kafka_topic}
    assert count(settings, "silver_uno_events") == 8
    assert_sound(make_pipeline(settings))
    assert read_lag(settings, 5).total_lag == 0


def test_redecode_and_replay_take_each_row_by_the_registry_of_its_source(one_id, make_pipeline):
    eu, us, both = one_id
    hidden = ONE_ID + 1
    settings = both()
    send(eu, ONE_ID, [event("uno", amounts(1))])
    send(us, ONE_ID, [event("uno", remarks("a"))])
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

    known = {hidden: ONE_ID}
    with registry_proxy(us.schema_registry_url) as proxy:
        # The second registry has the id from now on: its proxy gives it the text of another.
        proxy.rename(known)
        later = both(schema_registry_url=proxy.url)
        report = RunReport()
        load_bronze(make_pipeline(later), report)
        refresh(make_pipeline(later))
    assert by_source(settings, QUARANTINE, "count(replayed_batch)") == {"eu": 0, "us": 1}
    assert sorted(rows(settings, BRONZE, "SELECT _source, _kafka_offset, amount, remark FROM t")) == [
        *before,
        ("us", 1, None, "b"),
    ]
    assert_sound(make_pipeline(settings))


@pytest.mark.usefixtures("no_waiting")
def test_a_broker_that_is_down_holds_up_no_other_and_the_next_run_catches_up(eu, us, both, make_pipeline):
    settings = both()
    one, two = register(eu, SCHEMA), register(us, ELSEWHERE)
    send(eu, one, [event("uno", amounts(n)) for n in range(2)])
    send(us, two, [event("uno", remarks("a"))])
    assert refresh(make_pipeline(settings)).success

    send(eu, one, [event("uno", amounts(n)) for n in range(3)])
    send(us, two, [event("uno", remarks("b"))])
    down = both(kafka_bootstrap_servers="127.0.0.1:9")
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


def test_a_registry_that_is_down_holds_up_its_own_source_only(eu, us, both, make_pipeline):
    one, two = register(eu, SCHEMA), register(us, ELSEWHERE)
    send(eu, one, [event("uno", amounts(n)) for n in range(2)])
    send(us, two, [event("uno", remarks("a"))])
    settings = both(schema_registry_url="http://127.0.0.1:9")
    report = refresh(make_pipeline(settings))
    assert list(report.left_out) == ["us"] and "127.0.0.1:9" in report.left_out["us"]
    assert by_source(settings) == {"eu": 2}
    assert (count(settings, "silver_uno_events"), count(settings, QUARANTINE)) == (2, 0)

    report = refresh(make_pipeline(both()))
    assert report.success and by_source(settings) == {"eu": 2, "us": 1}
    assert_sound(make_pipeline(both()))


def test_tables_of_one_source_are_as_they_were_when_a_second_joins(one_id, make_pipeline):
    eu, us, both = one_id
    send(eu, ONE_ID, [event("uno", amounts(n)) for n in range(4)])
    refresh(make_pipeline(eu))
    send(eu, ONE_ID, [event("uno", amounts(9))])
    send(us, ONE_ID, [event("uno", remarks("a"))])
    settings = both()
    report = refresh(make_pipeline(settings))
    assert report.by_source == {"eu": {"read": 1, "lag": 0}, "us": {"read": 1, "lag": 0}}
    assert by_source(settings) == {None: 4, "eu": 1, "us": 1}
    archived = rows(settings, "schemas", "SELECT schema_id, schema_guid FROM t ORDER BY 1 NULLS LAST")
    assert archived == [(ONE_ID, None), (None, f"us/{ONE_ID}")]
    done = redecode(make_pipeline(settings), RunReport())
    assert (done.rows, dict(done.kept)) == (6, {})
    assert by_source(settings, what="sum(amount)") == {None: 6, "eu": 9, "us": None}
    assert by_source(settings, what="max(remark)") == {None: None, "eu": None, "us": "a"}
    assert_sound(make_pipeline(settings))
    # And back: the row of the source that the settings do not name stays as it is.
    assert refresh(make_pipeline(eu)).tables == []
    done = redecode(make_pipeline(eu), RunReport())
    assert (done.rows, dict(done.kept)) == (6, {"UNKNOWN_SCHEMA": 1})
    assert by_source(settings, what="max(remark)")["us"] == "a"


@pytest.mark.usefixtures("no_waiting")
def test_a_full_refresh_needs_every_source_and_keeps_each_row_once(eu, us, both, make_settings, make_pipeline):
    one, two = register(eu, SCHEMA), register(us, ELSEWHERE)
    send(eu, one, [*(event("uno", amounts(n)) for n in range(2)), b""])
    send(us, two, [event("uno", remarks("a"))])
    settings = both()
    refresh(make_pipeline(settings))
    down = both(kafka_bootstrap_servers="127.0.0.1:9").model_copy(update={"allow_bronze_full_refresh": True})
    everything = sorted(rows(settings, BRONZE, "SELECT _source, _kafka_offset FROM t"))
    pipeline = make_pipeline(down)
    with pytest.raises(TransientError, match=r"source us: .* A full refresh needs every source"):
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


def test_two_sources_of_one_topic_are_refused(eu, make_settings, make_pipeline):
    send(eu, register(eu, SCHEMA), [event("uno")])
    settings = make_settings(sources={"eu": {}, "twice": {}})
    with pytest.raises(ConfigurationError, match="eu and twice both read"):
        refresh(make_pipeline(settings))


def test_files_beside_a_topic_fill_one_bronze_in_one_run(eu, make_settings, make_pipeline, landing):  # noqa: F811 - the fixture
    send(eu, register(eu, SCHEMA), [event("uno", amounts(n)) for n in range(3)])
    put(landing, "a.jsonl", lines(range(4)))
    files = {"source": "files", "files_path": str(landing), "files_schema": str(landing.parent / "event.json")}
    settings = make_settings(sources={"eu": {}, "old": files | {"files_settle_s": 1}})
    report = refresh(make_pipeline(settings))
    assert report.by_source == {"eu": {"read": 3, "lag": 0}, "old": {"read": 1, "lag": 0}}
    assert by_source(settings) == {"eu": 3, "old": 4}
    put(landing, "b.jsonl", lines(range(4, 6)))
    assert refresh(make_pipeline(settings)).by_source == {"eu": {"lag": 0}, "old": {"read": 1, "lag": 0}}
    send(eu, register(eu, SCHEMA), [event("uno", amounts(9))])
    refresh(make_pipeline(settings))
    assert by_source(settings) == {"eu": 4, "old": 6}
    assert sorted(rows(settings, BRONZE, "SELECT n FROM t WHERE _source = 'old'")) == [(n,) for n in range(6)]
    assert_sound(make_pipeline(settings))
    done = redecode(make_pipeline(settings), RunReport())
    assert (done.rows, dict(done.kept)) == (10, {})
    pipeline = make_pipeline(settings.model_copy(update={"allow_bronze_full_refresh": True}))
    refresh(pipeline, selection=selection_of(pipeline, full_refresh=["bronze"]))
    assert by_source(settings) == {"eu": 4, "old": 6}
    assert_sound(make_pipeline(settings))


def test_a_topic_goes_on_after_it_was_read_without_a_name_and_a_new_source_starts_where_it_says(eu, us, both, make_pipeline):
    one, two = register(eu, SCHEMA), register(us, ELSEWHERE)
    send(eu, one, [event("uno", amounts(n)) for n in range(4)])
    send(us, two, [event("uno", remarks("before"))])
    refresh(make_pipeline(eu))
    settings = both(starting_offsets="latest")
    report = refresh(make_pipeline(settings))
    assert report.by_source == {"eu": {"lag": 0}, "us": {"read": 0, "lag": 0}}
    send(us, two, [event("uno", remarks("after"))])
    refresh(make_pipeline(settings))
    assert rows(settings, BRONZE, "SELECT remark FROM t WHERE _source = 'us'") == [("after",)]
    assert_sound(make_pipeline(settings))


def test_an_erased_person_of_one_source_is_not_taken_for_who_has_the_same_coordinates_in_another(eu, us, both, make_pipeline):
    one, two = register(eu, SCHEMA), register(us, ELSEWHERE)
    send(eu, one, [event("uno", amounts(1), b"gamer-to-forget")])
    send(us, two, [event("uno", remarks("a"), b"gamer-who-stays")])
    settings = both().model_copy(update={"erasure_key": SecretStr("a key of the tests, long enough")})
    refresh(make_pipeline(settings))
    pipeline = make_pipeline(settings)
    erase(pipeline, RunReport(), frozenset({"gamer-to-forget"}))
    for table in (BRONZE, "silver_uno_events", "gold_uno_player_agg"):
        assert rows(settings, table, "SELECT gamer_id FROM t") == [("gamer-who-stays",)], table
