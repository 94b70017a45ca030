"""Runs over a part of the tables: what was selected is written, nothing else, and nothing is forgotten."""

import threading

import pytest
from deltalake import DeltaTable

from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.runs.pending import backlog
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events.pipeline.silver.admission import due
from game_events_tests.support.reconciliation import assert_books_balance, rows
from game_events_tests.support.worlds.waves import power_cut_at, send, versions

OWN = {"progress", "schemas"}


@pytest.fixture
def run(settings, make_pipeline):
    """A run that is asked for something; returns the tables it has written."""

    def start(*select, games=(), full=()):
        before = versions(settings)
        pipeline = make_pipeline(settings)
        report = refresh(pipeline, selection=selection_of(pipeline, select, games, full))
        assert report.success, report.errors
        after = versions(settings)
        changed = {name for name, version in after.items() if before.get(name) != version} - OWN
        assert {t.table for t in report.tables} == changed
        return changed

    return start


def of(*games, layers=("silver", "gold")):
    names = {"silver": "silver_{}_events", "gold": "gold_{}_player_agg"}
    return {names[layer].format(game) for game in games for layer in layers}


def test_only_what_is_selected_is_written_and_the_next_run_catches_up_with_the_rest(settings, make_pipeline, run):
    sent = send(settings, poison=0.0)
    assert run("bronze") == {"bronze_events"}
    # Games that have no table yet can be named: bronze has rows of them.
    assert due(make_pipeline(settings)).rows == dict.fromkeys(("rummy", "spades", "uno"), 6)
    assert run("silver_uno_events") == of("uno", layers=["silver"])
    assert run("gold", "silver", games=["uno", "rummy"]) == of("rummy", layers=["silver"]) | of("uno", "rummy", layers=["gold"])
    waiting = backlog(make_pipeline(settings))
    assert (waiting.records, waiting.games["silver"], waiting.rows) == ({}, ["spades"], 6)
    assert run("unified") == {"gold_unified_player_agg"}
    assert run() == of("spades") | {"gold_unified_player_agg"}
    assert_books_balance(settings, sent)
    assert run() == set()

    sent = sent.merge(send(settings, version=2, poison=0.0))
    assert sum(backlog(make_pipeline(settings)).records.values()) == 18
    assert run(games=["spades"]) == of("spades") | {"bronze_events", "gold_unified_player_agg"}
    assert run("gold") == set(), "what silver has not taken, gold cannot"
    assert run("gold", "unified", "silver") == of("uno", "rummy") | {"gold_unified_player_agg"}
    assert_books_balance(settings, sent)
    assert run() == set()
    assert backlog(make_pipeline(settings)).games == {"silver": [], "gold": [], "unified": []}


def test_a_full_refresh_replaces_what_is_named_what_is_made_from_it_follows_and_readers_see_whole_tables(
    settings, make_pipeline, run
):
    sent = send(settings, poison=0.0).merge(send(settings, version=2, poison=0.0))
    run()
    uno = sum(sent.records["uno"].values())
    tables = {"silver_uno_events": "count(*)", "gold_uno_player_agg": "sum(session_count)"}
    tables["gold_unified_player_agg"] = "sum(session_count) FILTER (game_name = 'uno')"
    seen, stop = set(), threading.Event()

    def poll():
        while not stop.wait(0.05):
            seen.update(n for table, sql in tables.items() for (n,) in rows(settings, table, f"SELECT {sql} FROM t"))

    reader = threading.Thread(target=poll)
    reader.start()
    unified = {"gold_unified_player_agg"}
    assert run(full=["silver_uno_events"]) == of("uno") | unified
    assert run(full=["gold"], games=["uno", "rummy"]) == of("uno", "rummy", layers=["gold"]) | unified
    assert run(full=["unified"]) == unified
    # What follows may be left to the next run.
    assert run("silver", full=["silver_uno_events"]) == of("uno", layers=["silver"])
    assert run("gold", "unified") == of("uno", layers=["gold"]) | unified
    # Increments of everything else go on.
    sent = sent.merge(send(settings, version=3, games=("rummy",), poison=0.0))
    assert run(full=["silver_uno_events"]) == of("uno", "rummy") | unified | {"bronze_events"}
    stop.set()
    reader.join()
    assert seen == {uno}
    assert_books_balance(settings, sent)

    everything = {name for name in Lakehouse.of(settings).names() if name not in OWN}
    assert run(full=["all"]) == everything - {"bronze_events"}
    assert_books_balance(settings, sent)
    before = DeltaTable(f"{settings.lakehouse}/progress").version()
    assert run() == set()
    assert DeltaTable(f"{settings.lakehouse}/progress").version() == before

    pipeline = make_pipeline(settings)
    with power_cut_at("silver_committed"):
        refresh(pipeline, selection=selection_of(pipeline, full_refresh=["silver_uno_events"]))
    assert run() == of("uno", layers=["gold"]) | unified
    assert_books_balance(settings, sent)
