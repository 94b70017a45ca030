"""A new bronze may start with the records of a time."""

import time
from datetime import UTC, datetime, timedelta

from game_events.lakehouse.tables import BRONZE
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.pending import backlog
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events_tests.support.reconciliation import assert_books_balance, count
from game_events_tests.support.worlds.waves import send


def test_a_starting_time_leaves_older_records_out_and_so_does_a_full_refresh(make_settings, make_pipeline):
    send(make_settings())
    time.sleep(0.01)
    when = datetime.now(UTC)
    settings = make_settings(starting_timestamp=when, starting_offsets="latest", allow_bronze_full_refresh=True)
    sent = send(settings, version=2)
    assert sum(backlog(make_pipeline(settings)).records.values()) == sent.records_total
    assert refresh(make_pipeline(settings)).success
    assert_books_balance(settings, sent)
    pipeline = make_pipeline(settings)
    report = refresh(pipeline, RunReport(), selection_of(pipeline, ["bronze"], full_refresh=["bronze"]))
    assert (report.success, report.expired, count(settings, BRONZE)) == (True, 0, sent.decodable)
    # Of a time that is yet to come: nothing, and then what comes after the first run.
    later = make_settings(starting_timestamp=when + timedelta(days=1), lakehouse=f"{settings.lakehouse}_later")
    assert refresh(make_pipeline(later)).tables == []
    more = send(later)
    assert refresh(make_pipeline(later)).success
    assert_books_balance(later, more)
