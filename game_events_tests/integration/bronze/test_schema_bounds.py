"""Bounds of what schemas may cost: ids that nobody knows, columns of all schemas together."""

from game_events.lakehouse.tables import QUARANTINE
from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.decoding.format_helpers import framed
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.worlds.topic import register, send_values
from game_events_tests.unit.pipeline.schemas.test_bounds import record, wide


def test_a_run_over_a_flood_of_unknown_ids_keeps_every_record_and_reads_those_it_knows(make_settings, make_pipeline):
    settings = make_settings(max_unknown_ids=3, max_columns=100)
    good = register(settings, record("good", "game_name", "gamer_id", "event_timestamp"), "AVRO")
    too_wide = register(settings, wide("b", 200), "AVRO", subject=f"{settings.kafka_topic}-wide")
    values = [framed(b"\x02x\x02y\x02", good), framed(b"\x02x" * 200, too_wide)]
    send_values(settings, [*values, *(framed(b"x", 10**9 + n) for n in range(20)), *values])
    report = refresh(make_pipeline(settings))
    assert report.success, report.errors
    assert rows(settings, "bronze_events", "SELECT game_name, gamer_id FROM t") == [("x", "y")] * 2
    found = rows(settings, QUARANTINE, "SELECT reason, count(*), count(DISTINCT detail) FROM t GROUP BY 1 ORDER BY 1")
    assert found == [("BAD_SCHEMA", 2, 1), ("UNKNOWN_SCHEMA", 20, 4)]
    told = rows(settings, QUARANTINE, "SELECT count(*) FROM t WHERE detail LIKE '%GAME_EVENTS_MAX_UNKNOWN_IDS%'")
    assert told == [(17,)]
    again = refresh(make_pipeline(settings))
    assert again.success, again.errors
    assert rows(settings, QUARANTINE, "SELECT count(*) FROM t") == [(22,)]
