"""Counts of rules on their way: over retries, over cycles of a run that goes on, into the event log."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa

from game_events.config.settings import load_settings
from game_events.lakehouse.commits.commit import Landed
from game_events.lakehouse.tables import Table
from game_events.orchestration.events import table_metadata
from game_events.pipeline.event_log import RunFacts, event_rows
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult, TableReport
from game_events.rules import Rule
from game_events.workers.results import RuleCounts

RULES = (Rule(name="a", sql="x > 0"), Rule(name="b", sql="y > 0", action="drop", games=("uno",)))


def report(rows, **violated):
    counts = RuleCounts(rows=rows, violated=Counter(violated), dropped=2, held=1, reasons=Counter(a=2))
    made, table = RunReport(readmitted=1), Table("silver_uno_events", "/x")
    made.add_landed("silver", table, Landed(table.name, 1, "id", rows, 1, rows, 1), pa.schema([]), 1, "uno", counts=counts)
    for game in ("uno", "chess"):
        made.add_rules("silver", game, RULES, counts)
    return made


def test_the_cycles_of_a_run_add_up_and_stay_what_they_were():
    first, second = report(10, a=1), report(5, a=2, b=1)
    whole = first.merge(second)
    assert {key[1:]: (r.rows, r.violated) for key, r in whole.rules.items()} == {
        ("uno", "a"): (15, 3),
        ("uno", "b"): (15, 1),
        ("chess", "a"): (15, 3),
    }
    (entry,) = whole.tables
    assert (entry.dropped, entry.quarantined, whole.readmitted) == (4, 6, 2)
    assert first.rules[("silver", "uno", "a")].rows == 10
    assert (entry.violations, first.tables[0].violations) == ({"a": 3, "b": 1}, {"a": 1})


def test_the_event_log_has_a_row_for_each_rule_and_game_that_violates_it():
    rows = [r for r in event_rows(report(10, b=4), RunFacts("refresh", 1.0), load_settings()) if r["kind"] == "rule"]
    assert [(r["layer"], r["game"], r["name"], r["rows"], r["status"], json.loads(r["detail"])) for r in rows] == [
        ("silver", "uno", "b", 4, "drop", {"rows_checked": 10}),
    ]


def test_programs_get_each_rule_once_with_the_games_that_violate_it():
    assert report(10, b=4).to_dict()["rules"] == [
        {"layer": "silver", "rule": "a", "action": "warn", "rows": 20, "violated": 0, "violated_by_game": {}},
        {"layer": "silver", "rule": "b", "action": "drop", "rows": 10, "violated": 4, "violated_by_game": {"uno": 4}},
    ]


def test_a_counter_is_in_the_json_the_event_log_and_the_metadata_of_its_table():
    made = RunReport(tables=[TableReport("bronze", "bronze_events", "/x")])
    made.add(BronzeResult(suppressed=2))
    made.add(BronzeResult(suppressed=1, expired=4, nulled=Counter(seen=2)))
    made.add(BronzeResult(nulled=Counter(seen=1, price=5), definitions={"gamer_id": "_kafka_key"}))
    assert made.to_dict()["nulled"] == {"seen": 3, "price": 5}
    assert (made.to_dict()["suppressed"], made.to_dict()["expired"]) == (3, 4)
    rows = {r["kind"]: r for r in event_rows(made, RunFacts("refresh", 1.0), load_settings())}
    assert (rows["suppressed"]["rows"], rows["expired"]["rows"], rows["expired"]["table"]) == (3, 4, "bronze_events")
    named = {r["name"]: r["rows"] for r in event_rows(made, RunFacts("refresh", 1.0), load_settings()) if r["kind"] == "nulled"}
    assert named == {"seen": 3, "price": 5}
    metadata = table_metadata(made.tables[0], made)
    assert metadata["values_made_null"] == {"seen": 3, "price": 5}
    assert metadata["definitions"] == made.to_dict()["definitions"] == {"gamer_id": "_kafka_key"}
    assert (metadata["suppressed_records"], metadata["expired_rows_lost"]) == (3, 4)
    assert "suppressed_records" not in table_metadata(TableReport("silver", "silver_uno_events", "/x", "uno"), made)


def test_files_that_wait_are_those_of_the_last_poll_and_the_others_are_added_up():
    made = RunReport()
    for counts in ({"taken": 1, "waiting": 2}, {"taken": 3, "waiting": 0}):
        made.add_files(Counter(counts))
    assert made.to_dict()["files"] == {"taken": 4}
