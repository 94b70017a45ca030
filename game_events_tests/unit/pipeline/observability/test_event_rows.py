"""What a check says is in the event log without secrets, as every error is."""

from game_events.config.settings import load_settings
from game_events.pipeline.observability.event_rows import RunFacts, event_rows
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.steps import CheckResult


def test_a_check_that_could_not_be_made_shows_no_secret():
    check = CheckResult("fresh", "bronze", False, "could not be made: GET http://me:hunter22@store/x failed")
    report = RunReport(checks=[check])
    rows = list(event_rows(report, RunFacts("run", 1.0), load_settings()))
    assert [r for r in rows if r["kind"] == "check"]
    assert "hunter22" not in str(rows)
