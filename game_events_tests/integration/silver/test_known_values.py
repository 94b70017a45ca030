"""A stray record that comes first takes no column from the others; a game whose key or time is NULL everywhere is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from game_events.pipeline import context
from game_events.pipeline.checks.audits import gold_equals_recompute
from game_events.pipeline.gold.plan import keys_and_times_known
from game_events.pipeline.runs.preflight import columns
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.reconciliation import gold, rows
from game_events_tests.support.worlds.quality import Event, send_events
from game_events_tests.support.worlds.topic import register, send_values

AT = datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)
#: As a serializer derives it from a JavaScript object.
STRAY = {
    "title": "Stray",
    "type": "object",
    "properties": {
        "game_name": {"type": "string"},
        "gamer_id": {"type": "integer"},
        "event_timestamp": {"type": "integer"},
    },
}


def send_stray(settings, game="stray"):
    schema_id = register(settings, json.dumps(STRAY), "JSON", subject=f"{settings.kafka_topic}-stray")
    body = json.dumps({"game_name": game, "gamer_id": 7, "event_timestamp": 1_767_323_045}).encode()
    send_values(settings, [b"\0" + schema_id.to_bytes(4, "big") + body])


@pytest.fixture
def begun_long_ago(monkeypatch):
    """Runs of a version that let the first record decide about every column."""
    with monkeypatch.context() as patch:
        patch.setattr(context, "kept_columns", lambda _: {})
        yield patch


def test_a_stray_record_that_comes_first_costs_nobody_else_their_gold(settings, make_pipeline):
    send_stray(settings)
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert gold(settings, "stray") == {"7": (1, None, None)}
    assert report.notices == [
        "gold of stray: min_timestamp is NULL in every row, as no row of its silver table has a value in event_timestamp. "
        "There are columns of other kinds: event_timestamp__bigint (docs/decoding.md). If its producers call it something "
        "else: GAME_EVENTS_TIME_COLUMN"
    ]

    send_events(settings, [Event("chess", 1), Event("chess", 2, gamer="bob"), Event("stray", 3, gamer="7")])
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert report.notices == []
    assert gold(settings, "chess") == {"ann": (1, AT, AT), "bob": (1, AT, AT)}
    assert gold(settings, "stray") == {"7": (2, AT, AT)}, "7 and '7' are one gamer"
    pipeline = make_pipeline(settings)
    assert keys_and_times_known(pipeline).passed
    assert gold_equals_recompute(pipeline).passed
    assert rows(settings, "bronze_events", "SELECT event_timestamp__bigint FROM t WHERE _kafka_offset = 0") == [
        (1_767_323_045,)
    ]


def test_a_table_that_was_begun_with_another_kind_is_told_with_the_way_out(
    settings, make_settings, make_pipeline, begun_long_ago
):
    send_stray(settings)
    assert refresh(make_pipeline(settings)).success
    begun_long_ago.undo()
    send_events(settings, [Event("chess", 1), Event("chess", 2, gamer="bob")])
    report = refresh(make_pipeline(settings))
    assert report.success
    assert gold(settings, "chess") == {None: (2, None, None)}
    assert [n.partition(",")[0] for n in report.notices] == [
        "gold of chess: gamer_id is NULL in every row",
        "gold of chess: min_timestamp is NULL in every row",
    ]
    found = keys_and_times_known(make_pipeline(settings))
    assert (found.passed, found.wrong_rows) == (False, False)
    assert "chess: gamer_id, min_timestamp NULL in every row" in found.summary
    told = columns(make_pipeline(settings))
    assert "bronze's column gamer_id is bigint, as its first records had it; string is in gamer_id__string: set" in told
    assert "set GAME_EVENTS_TIME_COLUMN to event_timestamp__timestamp, or begin a new lakehouse" in told

    chosen = make_settings(key_column="gamer_id__string", time_column="event_timestamp__timestamp")
    report = refresh(make_pipeline(chosen))
    assert report.success, report.errors
    held = rows(chosen, "gold_chess_player_agg", "SELECT gamer_id__string, session_count, min_timestamp FROM t ORDER BY ALL")
    assert held == [("ann", 1, AT), ("bob", 1, AT)]
    unified = rows(chosen, "gold_unified_player_agg", "SELECT gamer_id__string FROM t WHERE game_name = 'chess' ORDER BY ALL")
    assert unified == [("ann",), ("bob",)]
    assert columns(make_pipeline(chosen)).endswith("columns")
