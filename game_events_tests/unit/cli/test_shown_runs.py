"""What a run says at its end."""

import json
from dataclasses import asdict

import pytest
import typer

from game_events.cli.dagster_run import JobResult, finish, show_run
from game_events.cli.output import Output
from game_events.cli.repair import _show_maintenance
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import LayerResult, SilverResult, TableMaintenance, TableReport
from game_events.rules import Rule
from game_events.workers.results import RuleCounts

RULES = (
    Rule(name="noted", sql="note IS NOT NULL"),
    Rule(name="positive", sql="amount > 0", action="quarantine", games=("uno",)),
)


def shown(capsys, violated):
    report = RunReport()
    for game in ("uno", "chess"):
        table = TableReport("silver", f"silver_{game}_events", "/x", game, rows=7, quarantined=len(violated))
        report.add(LayerResult(tables=[table]))
        report.add_rules("silver", game, RULES, RuleCounts(rows=10, violated=RuleCounts().violated + _counter(violated)))
    show_run(Output(as_json=False), report.to_dict())
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def _counter(violated):
    counts = RuleCounts().violated
    counts.update(violated)
    return counts


def test_violated_rules_are_a_table_by_layer_rule_and_action(capsys):
    lines = shown(capsys, {"noted": 1_500, "positive": 2})
    assert "│ silver │ noted │ warn │ 20 │ 3,000 │ 2 │" in lines
    # A rule looks at the rows of its own games only.
    assert "│ silver │ positive │ quarantine │ 10 │ 2 │ 1 │" in lines
    assert "rows kept out of silver by rules: dropped 0, in quarantine 4" in lines


def test_rules_that_hold_are_one_line(capsys):
    assert "rules: all 2 hold" in shown(capsys, {})


def test_maintenance_says_how_many_older_rows_stay_and_why_if_any_do(capsys):
    def said(**numbers):
        entry = asdict(TableMaintenance("silver_uno_events", **numbers))
        _show_maintenance(Output(as_json=False), {"silver_uno_events": entry}, dry_run=False)
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    why = "older rows stay until what is made of them has them, and an export (docs/maintenance.md)"
    waiting = said(expired=3, expired_bytes=1_000, expired_later=2)
    assert "│ silver_uno_events │ 3 │ 1,000 │ 2 │" in waiting
    assert why in waiting
    assert why not in said(expired=3)
    assert not any("by age" in line for line in said())


def test_the_json_of_a_run_that_broke_off_says_that_it_failed_and_why_although_no_table_of_it_failed(capsys):
    with pytest.raises(typer.Exit) as ended:
        finish(Output(as_json=True), JobResult("run-1", False, {"success": True, "errors": []}, "Spark's JVM ended"))
    assert ended.value.exit_code == 1
    said = json.loads(capsys.readouterr().out)
    assert said == {"success": False, "run_id": "run-1", "error": "Spark's JVM ended", "errors": []}


def test_a_run_that_wrote_nothing_says_all_the_same_how_many_rows_belong_to_no_game(capsys):
    report = RunReport()
    report.add(SilverResult(unrouted={"invalid": 3_600}))
    show_run(Output(as_json=False), report.to_dict())
    said = capsys.readouterr().out
    assert "unrouted: invalid 3,600" in said
    assert "nothing new" not in said
    assert "no table was written: 3,600 new rows of bronze belong to none" in said
