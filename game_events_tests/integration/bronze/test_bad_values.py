"""Records with a value that its type does not take: in quarantine by default, or with NULL in its place, counted."""

from __future__ import annotations

import json

from game_events.config.settings import Settings
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode, replay
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.worlds.topic import register, send_values

TIME = {"type": ["string", "null"], "format": "date-time"}
TEXT = {"type": "string"}
SCHEMA = {
    "title": "Event",
    "type": "object",
    "properties": {"game_name": TEXT, "gamer_id": TEXT, "event_timestamp": TIME, "last_seen": TIME},
}
FORMS = ("2024-03-31T01:30:00Z", "2024-03-31T01:30:00.000+0000", "2024-03-31T03:30:00+02", "2024-03-31T01:30:00", "")
SEEN = "SELECT epoch_ms(last_seen) FROM t ORDER BY _kafka_offset"
INSTANT = 1_711_848_600_000


def send(settings: Settings) -> None:
    head = b"\0" + register(settings, json.dumps(SCHEMA), "JSON").to_bytes(4, "big")
    known = {"game_name": "uno", "gamer_id": "ann", "event_timestamp": FORMS[0]}
    send_values(settings, [head + json.dumps(known | {"last_seen": form}).encode() for form in FORMS])


def test_a_setting_takes_records_out_of_quarantine_with_null_in_place_of_their_bad_values(
    make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    strict = make_settings()
    send(strict)
    report = refresh(make_pipeline(strict))
    assert (report.rejected, report.nulled) == ({"MALFORMED": 2}, {})
    assert count(strict, "silver_uno_events") == 3
    details = [str(d) for (d,) in rows(strict, "quarantine_events", "SELECT detail FROM t ORDER BY _kafka_offset")]
    assert "GAME_EVENTS_NAIVE_TIMES_ZONE" in details[0]
    lenient = strict.model_copy(update={"on_bad_value": {"last_seen": "null"}, "naive_times_zone": "UTC"})
    replayed = RunReport()
    assert replay(make_pipeline(lenient), replayed, ReplaySelection()).rows == 2
    assert replayed.nulled == {"last_seen": 1}
    after = refresh(make_pipeline(lenient))
    assert after.success
    assert rows(lenient, "silver_uno_events", SEEN) == [(INSTANT,)] * 4 + [(None,)]
    # With the default again a redecode keeps what the row has.
    redecoded = redecode(make_pipeline(strict), RunReport())
    assert (redecoded.rows, redecoded.kept) == (5, {"MALFORMED": 2})
    assert rows(strict, "bronze_events", SEEN) == [(INSTANT,)] * 4 + [(None,)]
    counted = RunReport()
    redecode(make_pipeline(lenient), counted)
    assert counted.nulled == {"last_seen": 1}
    assert reconcile(make_pipeline(strict)).passed
