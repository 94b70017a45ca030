"""What could not be decoded comes to bronze, silver and gold, once, when its cause is gone; quarantine keeps what happened."""

from __future__ import annotations

import shutil

import pytest

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline import quarantine
from game_events.pipeline import reprocessing as replay_module
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.replay_selection import ReplaySelection, replay_selection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode, replay
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.faults import at_commit, at_failpoints
from game_events_tests.support.reconciliation import coordinates, count, rows
from game_events_tests.support.tables import put
from game_events_tests.support.worlds.topic import register, send_values
from game_events_tests.support.worlds.waves import assert_gold_follows_silver, at_point, power_cut_at, send, versions

GAMES = ("rummy", "spades", "uno")


@pytest.fixture
def settings(make_settings, proxy):
    return make_settings(schema_registry_url=proxy.url)


def sent_with_hidden_schema(make_settings, proxy, version=2, **wave):
    """A wave whose schema the registry does not know yet, as the pipeline sees it."""
    sent = send(make_settings(), version=version, poison=0.0, **wave)
    proxy.hide(sent.schema_ids[version])
    return sent


def assert_all_there(settings, records, games=GAMES):
    """Every record is in bronze and in its game's silver table, once, and gold follows."""
    bronze = coordinates(settings, BRONZE)
    assert len(bronze) == len(set(bronze)) == records
    assert sorted(c for game in games for c in coordinates(settings, f"silver_{game}_events")) == bronze
    assert_gold_follows_silver(settings, *games)


def held(settings, sql="SELECT reason, replayed_batch IS NOT NULL, count(*) FROM t GROUP BY ALL ORDER BY ALL"):
    return rows(settings, QUARANTINE, sql)


def assert_quarantine_says_who_when_and_what_happened(settings, pipeline, schema_id):
    found = held(
        settings,
        "SELECT DISTINCT run_id, reason, detail, _schema_id, replayed_table, replayed_batch, "
        "replayed_at >= quarantined_at FROM t",
    )
    bronze_id = str(pipeline.bronze.open().metadata().id)
    assert [(r[0], r[1], r[3], r[4], r[6]) for r in found] == [(pipeline.run_id, "UNKNOWN_SCHEMA", schema_id, bronze_id, True)]
    assert rows(settings, BRONZE, "SELECT DISTINCT _batch FROM t") == [(found[0][5],)]
    raw = {r[0] for r in rows(settings, BRONZE, "SELECT _raw_value FROM t")}
    assert raw == {r[0] for r in held(settings, "SELECT _raw_value FROM t")}


@pytest.mark.every_spark
def test_rows_of_an_unknown_schema_are_kept_and_come_by_themselves_once_it_is_registered(
    settings, make_settings, make_pipeline, proxy
):
    sent = sent_with_hidden_schema(make_settings, proxy)
    pipeline = make_pipeline(settings)
    first = refresh(pipeline)
    assert (first.rejected["UNKNOWN_SCHEMA"], count(settings, BRONZE)) == (sent.records_total, 0)
    # Not registered yet: nothing moves, and no table gets a commit.
    before = versions(settings)
    assert refresh(make_pipeline(settings)).tables == []
    assert versions(settings) == before

    proxy.show_all()
    report = refresh(make_pipeline(settings))
    assert report.replayed == sent.records_total
    assert_all_there(settings, sent.records_total)
    assert held(settings) == [("UNKNOWN_SCHEMA", True, sent.records_total)]
    assert reconcile(make_pipeline(settings)).passed
    assert_quarantine_says_who_when_and_what_happened(settings, pipeline, *sent.schema_ids.values())

    before = versions(settings)
    again = refresh(make_pipeline(settings))
    assert (again.tables, again.replayed) == ([], 0)
    assert versions(settings) == before


@pytest.mark.scenario
def test_a_pipeline_that_goes_on_notices_the_schema_too(settings, make_settings, make_pipeline, proxy):
    pipeline = make_pipeline(settings)
    sent = sent_with_hidden_schema(make_settings, proxy)
    refresh(pipeline)
    proxy.show_all()
    more = send(make_settings(), version=3, poison=0.0)
    refresh(pipeline)
    assert_all_there(settings, sent.records_total + more.records_total)


def test_replay_takes_only_what_was_asked_for_and_leaves_what_still_cannot_be_decoded(
    settings, make_settings, make_pipeline, proxy
):
    first = sent_with_hidden_schema(make_settings, proxy, version=1)
    second = send(make_settings(), version=2, poison=0.5)
    ids = (first.schema_ids[1], second.schema_ids[2])
    proxy.hide(*ids)
    refresh(make_pipeline(settings))
    proxy.show_all()
    pipeline, report = make_pipeline(settings), RunReport()
    poison = sum(second.poison.values())
    tombstones = held(settings, "SELECT count(*) FROM t WHERE _raw_value IS NULL")[0][0]

    assert replay(pipeline, report, ReplaySelection(schema_ids=frozenset({ids[0]}))).rows == first.records_total
    assert replay(pipeline, report, ReplaySelection(reasons=frozenset({"TOMBSTONE"}))).rows == 0
    rest = replay(pipeline, report, ReplaySelection())
    assert rest.rows == second.decodable
    assert sum(rest.left.values()) == poison - tombstones
    assert count(settings, BRONZE) == first.records_total + second.decodable
    assert held(settings, "SELECT count(*) FROM t WHERE replayed_batch IS NULL") == [(poison,)]


@pytest.mark.scenario
def test_a_replay_killed_at_any_point_is_finished_by_the_next_run(settings, make_settings, make_pipeline, proxy):
    total = 0
    for version, point in enumerate(("replay_staged", "replay_committed"), 2):
        sent = sent_with_hidden_schema(make_settings, proxy, version)
        total += sent.records_total
        refresh(make_pipeline(settings))
        proxy.show_all()
        with power_cut_at(point):
            refresh(make_pipeline(settings))
        more = send(make_settings(), version=1, poison=0.0)
        refresh(make_pipeline(settings))
        assert_all_there(settings, total + more.records_total * (version - 1))
        assert held(settings) == [("UNKNOWN_SCHEMA", True, total)]
    before = versions(settings)
    refresh(make_pipeline(settings))
    assert versions(settings) == before


def test_of_two_replays_at_once_one_brings_the_rows(settings, make_settings, make_pipeline, proxy, monkeypatch):
    sent = sent_with_hidden_schema(make_settings, proxy)
    refresh(make_pipeline(settings))
    proxy.show_all()
    concurrent = []

    def act():
        concurrent.append(replay(make_pipeline(settings), RunReport(), ReplaySelection()).rows)

    at_point(monkeypatch, "replay_staged", act)
    mine = replay(make_pipeline(settings), RunReport(), ReplaySelection()).rows
    assert (concurrent[0], mine) == (sent.records_total, 0)
    refresh(make_pipeline(settings))
    assert_all_there(settings, sent.records_total)


def test_rows_that_are_in_bronze_all_the_same_are_not_there_twice_after_a_replay(settings, make_settings, make_pipeline, proxy):
    """As versions left them behind in which two runs could see a record differently."""
    sent = sent_with_hidden_schema(make_settings, proxy)
    pipeline = make_pipeline(settings)
    refresh(pipeline)
    bronze = pipeline.bronze.open()
    twice = read_arrow(pipeline.quarantine, pipeline.quarantine.open(), OWN_COLUMNS.names).slice(0, 5)
    batch = bronze.transaction_version(Txn.BATCH)
    put(pipeline.bronze, twice, {Txn.BATCH: batch + 1}, expect_transactions={Txn.BATCH: batch}, merges_column_map=True)

    proxy.show_all()
    report = refresh(make_pipeline(settings))
    assert report.replayed == sent.records_total - 5
    assert "5 rows of quarantine_events are in bronze_events already: they are not added again" in report.notices
    held = coordinates(settings, BRONZE)
    assert len(held) == len(set(held)) == sent.records_total
    assert refresh(make_pipeline(settings)).replayed == 0


@pytest.mark.scenario
def test_a_concurrent_replay_in_the_middle_of_a_replays_notes_neither_fails_it_nor_doubles_a_row(
    settings, make_settings, make_pipeline, proxy, monkeypatch
):
    sent = sent_with_hidden_schema(make_settings, proxy, version=2)
    refresh(make_pipeline(settings))
    proxy.show_all()
    # Two note one replay: it does not fail, and it counts its rows.
    concurrent = []

    def after_a_concurrent_commit(write, table, *given):
        if table.key == QUARANTINE and not concurrent:
            concurrent.append(None)
            quarantine.complete_quarantine(make_pipeline(settings), RunReport())
        return write(table, *given)

    with at_commit(after_a_concurrent_commit):
        assert replay(make_pipeline(settings), RunReport(), ReplaySelection()).rows == sent.records_total
    assert concurrent
    assert held(settings) == [("UNKNOWN_SCHEMA", True, sent.records_total)]

    # One that crashes before its own note.
    more = sent_with_hidden_schema(make_settings, proxy, version=3)
    refresh(make_pipeline(settings))
    proxy.show_all()
    real_complete, concurrent = replay_module.complete_quarantine, []

    def complete_then_replay(pipeline, report):
        real_complete(pipeline, report)
        if not concurrent:
            concurrent.append(None)
            with power_cut_at("replay_committed"):
                replay(make_pipeline(settings), RunReport(), ReplaySelection())

    monkeypatch.setattr(replay_module, "complete_quarantine", complete_then_replay)
    assert replay(make_pipeline(settings), RunReport(), ReplaySelection()).rows == 0
    assert concurrent
    refresh(make_pipeline(settings))
    assert_all_there(settings, sent.records_total + more.records_total)


@pytest.mark.scenario
def test_a_run_that_commits_while_a_replay_works_costs_neither_a_row(
    settings, make_settings, make_pipeline, proxy, monkeypatch
):
    sent = sent_with_hidden_schema(make_settings, proxy)
    refresh(make_pipeline(settings))
    proxy.show_all()
    more = []

    def act():
        more.append(send(make_settings(), version=1, poison=0.5))
        refresh(make_pipeline(settings))

    at_point(monkeypatch, "replay_staged", act)
    replay(make_pipeline(settings), RunReport(), ReplaySelection())
    refresh(make_pipeline(settings))
    assert_all_there(settings, sent.records_total + more[0].decodable)


@pytest.mark.scenario
def test_a_rebuilt_bronze_gets_what_was_replayed_to_the_old_one(settings, make_settings, make_pipeline, proxy):
    sent = sent_with_hidden_schema(make_settings, proxy)
    other = send(make_settings(), version=1, poison=0.0)
    refresh(make_pipeline(settings))
    proxy.show_all()
    refresh(make_pipeline(settings))
    shutil.rmtree(f"{settings.lakehouse}/{BRONZE}")
    refresh(make_pipeline(settings))
    refresh(make_pipeline(settings))
    assert_all_there(settings, sent.records_total + other.records_total)


def test_rows_that_do_not_decode_although_their_schema_is_known_are_tried_once_and_again_when_others_come(
    settings, make_settings, make_pipeline, proxy
):
    schema_id = register(make_settings(), 'syntax = "proto3"; message E { string game_name = 1; }')
    head = b"\0" + schema_id.to_bytes(4, "big") + b"\0"
    tries = []

    def run():
        report = RunReport()
        load_bronze(make_pipeline(settings), report)
        with at_failpoints(lambda point, _: tries.append(point) if point == "replay_staged" else None):
            replay_module.replay_what_became_known(make_pipeline(settings), report)
        return report.replayed, len(tries)

    proxy.hide(schema_id)
    send_values(make_settings(), [head + b"\x0a\xff"] * 2)
    assert run() == (0, 0)
    proxy.show_all()
    assert run() == (0, 1)
    assert run() == (0, 1)
    proxy.hide(schema_id)
    send_values(make_settings(), [head + b"\x0a\xff", head + b"\x0a\x03uno"])
    assert run() == (0, 1)
    proxy.show_all()
    assert run() == (1, 2)
    before = versions(settings)
    assert run() == (0, 2)
    assert versions(settings) == before


@pytest.mark.parametrize("where", ["in the value", pytest.param("in the header", marks=pytest.mark.scenario)])
def test_rows_of_an_unknown_schema_without_message_indexes_are_known_as_such(
    settings, make_settings, make_pipeline, proxy, where
):
    text = '{"type": "record", "name": "E", "fields": [{"name": "n", "type": "long"}, {"name": "game_name", "type": "string"}]}'
    schema_id = register(make_settings(), text, "AVRO")
    identity, header = b"\0" + schema_id.to_bytes(4, "big"), where == "in the header"
    # As message indexes these payloads would be damaged: a negative count, a count without indexes.
    payloads = [b"\x01\x06uno", b"\x7f\x06uno"]
    send_values(
        make_settings(),
        [p if header else identity + p for p in payloads],
        [("__value_schema_id", identity)] if header else [],
    )
    proxy.hide(schema_id)
    refresh(make_pipeline(settings))
    assert held(settings) == [("UNKNOWN_SCHEMA", False, 2)]
    proxy.show_all()
    assert refresh(make_pipeline(settings)).replayed == 2
    assert rows(settings, BRONZE, "SELECT n, game_name FROM t ORDER BY ALL") == [(-64, "uno"), (-1, "uno")]
    # No headers are NULL everywhere, although they travel to the workers as empty lists.
    redecode(make_pipeline(settings), RunReport())
    for table in (BRONZE, QUARANTINE):
        assert rows(settings, table, "SELECT DISTINCT _kafka_headers IS NULL FROM t") == [(not header,)]


@pytest.mark.parametrize("word", ["99999999999999999999", "\u00b2", "abc", "-1"])
def test_what_is_no_schema_id_is_told_as_such(word):
    with pytest.raises(ConfigurationError, match=r"neither a schema id .* nor a GUID"):
        replay_selection([], [word])


def test_ids_and_guids_are_told_apart_and_a_reason_that_is_none_is_named():
    guid = "6299e41b-231a-40c8-ba89-57b657147ab2"
    assert replay_selection(["TOMBSTONE"], ["7", guid.upper()]) == ReplaySelection(
        frozenset({"TOMBSTONE"}), frozenset({7, guid})
    )
    with pytest.raises(ConfigurationError, match="there is no NOPE; there are BAD_INDEX"):
        replay_selection(["NOPE"], [])
