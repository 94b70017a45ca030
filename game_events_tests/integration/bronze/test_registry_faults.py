"""A registry that is down, slow, wrong or reset: nothing is lost or guessed, and the error says what to do."""

from __future__ import annotations

import pytest

from game_events.decoding.frame import Reason
from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import replay
from game_events.pipeline.runs.refresh import refresh
from game_events.pipeline.schemas import catalog
from game_events_tests.support.reconciliation import assert_books_balance, count, rows
from game_events_tests.support.worlds.topic import send_values
from game_events_tests.support.worlds.waves import at_point, send

#: One is enough where the registry is what matters.
GAMES = ("rummy",)
#: What the registry answers -> (error class, words that tell the user what to do).
FAULTS = {
    "401": ((401, b'{"error_code":401,"message":"Unauthorized"}'), ConfigurationError, "GAME_EVENTS_SCHEMA_REGISTRY_USER"),
    "403": ((403, b""), ConfigurationError, "GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD"),
    "500": ((500, b'{"error_code":500,"message":"oops"}'), TransientError, "500"),
    "429": ((429, b"{}"), TransientError, "429"),
    "HTML": (
        (200, b"<html><body>Welcome to nginx</body></html>", "text/html"),
        TransientError,
        "GAME_EVENTS_SCHEMA_REGISTRY_URL",
    ),
}


@pytest.fixture
def settings(make_settings, proxy):
    return make_settings(schema_registry_url=proxy.url)


def test_with_a_cold_cache_nothing_is_committed_and_the_error_says_what_to_do(settings, make_settings, make_pipeline, proxy):
    sent = send(make_settings(), games=GAMES)
    for answer, error, words in FAULTS.values():
        proxy.always(*answer)
        with pytest.raises(error, match=words) as raised:
            refresh(make_pipeline(settings))
        assert proxy.url in str(raised.value)
        assert count(settings, BRONZE) == count(settings, "quarantine_events") == 0

    proxy.show_all()
    refresh(make_pipeline(settings))
    assert_books_balance(settings, sent)


def test_nobody_listening_stops_the_run_with_the_address(make_settings, make_pipeline):
    send(make_settings(), games=GAMES)
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:9/"):
        refresh(make_pipeline(make_settings(schema_registry_url="http://127.0.0.1:9/apis/ccompat/v7")))


@pytest.mark.scenario
def test_a_warm_archive_carries_runs_through_outages_and_an_id_that_is_not_in_it_stops_one_before_anything_is_committed(
    settings, make_settings, make_pipeline, proxy
):
    sent = send(make_settings(), version=2, games=GAMES)
    refresh(make_pipeline(settings))
    for fault in ("500", "HTML"):
        proxy.always(*FAULTS[fault][0])
        sent = sent.merge(send(make_settings(), version=2, poison=0.0, games=GAMES))
        refresh(make_pipeline(settings))  # as a new process: all it has is the archive in the lakehouse
        assert_books_balance(settings, sent)

    before = count(settings, BRONZE)
    sent = sent.merge(send(make_settings(), version=3, games=GAMES))
    proxy.always(*FAULTS["500"][0])
    with pytest.raises(TransientError):
        refresh(make_pipeline(settings))
    assert count(settings, BRONZE) == before
    proxy.show_all()
    refresh(make_pipeline(settings))
    assert_books_balance(settings, sent)


@pytest.mark.scenario
def test_an_outage_in_mid_run_costs_nothing_that_is_known(make_settings, make_pipeline, proxy, monkeypatch):
    settings = make_settings(schema_registry_url=proxy.url, max_records_per_batch=10)
    sent = send(make_settings(), version=1, poison=0.0)
    broken = at_point(monkeypatch, "bronze_committed", lambda: proxy.always(500))
    report = refresh(make_pipeline(settings))
    assert broken
    assert len(report.batches) > 1
    assert_books_balance(settings, sent)


@pytest.mark.scenario
def test_an_outage_is_not_waited_for_again_and_again(make_settings, make_pipeline, proxy, monkeypatch):
    # However long the run takes here.
    monkeypatch.setattr("game_events.schema_registry.COOL_DOWN_S", 3600)
    for version in (1, 2, 3):
        send(make_settings(), version=version, games=GAMES, records=8)
    settings = make_settings(schema_registry_url=proxy.url, max_records_per_batch=10)
    refresh(make_pipeline(settings))
    for version in (1, 2, 3):
        send(make_settings(), version=version, poison=0.0, games=GAMES, records=8)
    proxy.always(503)
    proxy.asked.clear()
    refresh(make_pipeline(settings))
    # One question (and the client's own retries) tells that it is down: not one for each id and slice.
    assert len(proxy.asked) <= 6


@pytest.mark.scenario
def test_each_id_is_asked_for_and_compiled_once_in_a_process(make_settings, make_pipeline, proxy, monkeypatch):
    compiled = []
    real = catalog.compile_schema
    monkeypatch.setattr(catalog, "compile_schema", lambda schema: compiled.append(schema.schema_id) or real(schema))
    settings = make_settings(schema_registry_url=proxy.url, max_records_per_batch=10)
    sent = send(make_settings(), version=2).merge(send(make_settings(), version=3))
    pipeline = make_pipeline(settings)
    refresh(pipeline)
    refresh(pipeline)
    ids = sorted(sent.schema_ids.values())
    assert sorted(compiled) == ids
    assert [sum(path.startswith(f"/schemas/ids/{i}?") or path == f"/schemas/ids/{i}" for path in proxy.asked) for i in ids] == [
        1,
        1,
    ]


def test_a_registry_that_gives_an_old_id_a_new_meaning_quarantines_its_records_and_these_can_be_replayed(
    settings, make_settings, make_pipeline, proxy
):
    old = send(make_settings(), version=1, games=GAMES, poison=0.0)
    refresh(make_pipeline(settings))
    (schema_id,) = old.schema_ids.values()
    again = send(make_settings(), version=1, games=GAMES, poison=0.0)
    newer = send(make_settings(), version=2, games=GAMES, poison=0.0)
    other = b'{"schemaType":"PROTOBUF","schema":"syntax = \\"proto3\\"; message Other { int32 game_name = 1; }"}'
    proxy.answer = lambda path: (200, "application/json", other) if path.split("?")[0] == f"/schemas/ids/{schema_id}" else None
    before = count(settings, BRONZE)
    report = refresh(make_pipeline(settings))
    assert report.rejected == {Reason.REGISTRY_CHANGED: again.records_total}
    assert any("another meaning" in notice for notice in report.notices)
    assert count(settings, BRONZE) == before + newer.records_total
    ((detail,),) = rows(settings, QUARANTINE, "SELECT DISTINCT detail FROM t")
    assert f"gives schema id {schema_id} another meaning" in detail
    assert "message index [0] is Other instead of" in detail
    proxy.answer = lambda _: None
    replayed = replay(make_pipeline(settings), RunReport(), ReplaySelection(frozenset({Reason.REGISTRY_CHANGED})))
    assert replayed.rows == again.records_total
    assert count(settings, BRONZE) == before + newer.records_total + again.records_total


@pytest.mark.scenario
def test_a_subject_deleted_after_its_data_was_produced_is_still_decoded(settings, make_settings, make_pipeline, proxy):
    sent = send(make_settings(), version=2, games=GAMES)
    proxy.answer = lambda path: (404, "application/json", b'{"error_code":40401}') if path.startswith("/subjects") else None
    refresh(make_pipeline(settings))
    assert_books_balance(settings, sent)


@pytest.mark.scenario
def test_ids_that_nobody_knows_are_asked_for_once_however_many_slices_follow(make_settings, make_pipeline, proxy):
    values = [bytes([0]) + (1_000_000 + n).to_bytes(4, "big") + b"\0abc" for n in range(30)]
    send_values(make_settings(), values)
    report = refresh(make_pipeline(make_settings(schema_registry_url=proxy.url, max_records_per_batch=10)))
    assert report.rejected["UNKNOWN_SCHEMA"] == 30
    # Once to read the slices, once more at the end of the run: they may have been registered meanwhile.
    assert sum(path.startswith("/schemas/ids/") for path in proxy.asked) == 2 * 30


def test_an_id_that_the_registry_finds_impossible_stops_no_run(settings, make_settings, make_pipeline, proxy):
    sent = send(make_settings(), poison=0.0, games=GAMES)
    for number, status in enumerate((400, 404, 422), 1):
        send_values(make_settings(), [b"\0\xff\xff\xff\xff\0abc"])
        body = b'{"error_code":%d,"message":"not an int32"}' % status
        proxy.answer = lambda path, answer=(status, "application/json", body): answer if "4294967295" in path else None
        refresh(make_pipeline(settings))
        assert count(settings, BRONZE) == sent.decodable
        assert rows(settings, "quarantine_events", "SELECT reason, count(*) FROM t GROUP BY 1") == [("UNKNOWN_SCHEMA", number)]


def test_a_gateway_that_answers_400_is_no_registry_that_does_not_know(settings, make_settings, make_pipeline, proxy):
    send(make_settings())
    proxy.always(400, b"<html>The plain HTTP request was sent to HTTPS port</html>", "text/html")
    with pytest.raises(TransientError, match="400"):
        refresh(make_pipeline(settings))
    assert count(settings, "quarantine_events") == 0
