"""`game-events log` and `report`: over events that were written as runs write them; no service is needed."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import sync_playwright

from game_events.cli.output import since
from game_events.errors import ConfigurationError
from game_events.lakehouse.system_tables import append_events, read_events
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.catalog.report import bucket_of, report_data

NOW = datetime.now(UTC)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
GAMES = [f"game_{n:02}" for n in range(12)]


@pytest.fixture
def lakehouse(tmp_path, monkeypatch):
    """Three runs: five days ago, an hour ago, and one that failed a minute ago."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", str(tmp_path / "lakehouse"))
    found = Lakehouse(str(tmp_path / "lakehouse"))
    append_events(found, run(NOW - timedelta(days=5), 100), "aaaa-1", "refresh#0")
    append_events(found, run(NOW - timedelta(hours=1), 300, lag=7), "bbbb-2", "refresh#0")
    error = {"error": {"class": "TransientError", "text": "<b>the broker</b> is away"}}
    failed = {"kind": "run", "name": "refresh", "status": "failed", "seconds": 1.0, "detail": json.dumps(error)}
    append_events(found, [{**failed, "time": NOW - timedelta(minutes=1)}], "cccc-3", "refresh#0")
    return found


def run(at, rows, lag=0):
    by = {"started_by": {"user": "ana", "host": "etl-1", "version": "0.1.0"}}
    events = [
        {
            "kind": "run",
            "name": "refresh",
            "status": "succeeded",
            "rows": rows,
            "lag": lag,
            "seconds": 3.0,
            "detail": json.dumps(by),
        },
        {"kind": "layer", "layer": "bronze", "rows": rows, "seconds": 2.0},
        {"kind": "rejected", "layer": "quarantine", "name": "EMPTY", "rows": 3},
        {"kind": "rule", "layer": "silver", "game": "game_00", "name": "has_gamer", "rows": 4},
        {
            "kind": "check",
            "layer": "bronze",
            "name": "fresh",
            "status": "passed",
            "detail": json.dumps({"summary": "fresh enough"}),
        },
        {
            "kind": "table",
            "layer": "bronze",
            "table": "bronze_events",
            "rows": rows,
            "table_rows": rows,
            "table_bytes": 5_200_000,
        },
        *(
            {
                "kind": "table",
                "layer": "silver",
                "table": f"silver_{game}_events",
                "game": game,
                "rows": rows - n,
                "table_rows": rows,
            }
            for n, game in enumerate(GAMES)
        ),
    ]
    return [{**event, "time": at} for event in events]


def test_events_are_found_by_run_kind_game_table_and_time_newest_first(cli, lakehouse):
    everything = cli("log", "--json", "--limit", "500").result["events"]
    assert len(everything) == 2 * (6 + len(GAMES)) + 1
    assert everything == sorted(everything, key=lambda e: e["time"], reverse=True)
    assert everything[0]["detail"]["error"]["class"] == "TransientError"
    assert everything[0]["part"] == "refresh#0"
    assert {e["run_id"] for e in cli("log", "--run", "aaaa", "--json").result["events"]} == {"aaaa-1"}
    assert [e["rows"] for e in cli("log", "--kind", "layer", "--json").result["events"]] == [300, 100]
    recent = cli("log", "--since", "2h", "--game", "game_03", "--json").result["events"]
    assert [(e["run_id"], e["table"]) for e in recent] == [("bbbb-2", "silver_game_03_events")]
    assert len(cli("log", "--table", "bronze_events", "--json").result["events"]) == 2
    assert len(cli("log", "--limit", "5", "--json").result["events"]) == 5
    # It is a table like any other.
    assert [t["table"] for t in cli("tables", "--json").result["tables"]] == ["event_log"]
    assert lakehouse.names() == ["event_log"]


def test_for_people_an_event_is_a_line_that_says_what_happened(cli, lakehouse):
    said = cli("log", "--kind", "run").out.splitlines()
    assert re.fullmatch(
        r"[-\d]{10} [\d:]{8} cccc-3 run +refresh: failed, 1.0 s; TransientError: <b>the broker</b> is away", said[0]
    )
    assert said[1].endswith("refresh: succeeded, rows 300, lag 7, 3.0 s; ana@etl-1, version 0.1.0")
    assert "only 2 events are shown" in cli("log", "--limit", "2").out
    assert "no such events" in cli("log", "--game", "nobody").out
    assert lakehouse


def test_an_error_of_many_lines_is_one_line_that_begins_with_what_it_says(cli, lakehouse):
    text = (
        "An error occurred while calling o201.collectToPython.\n: org.apache.spark.SparkException: Job aborted\n\tat org.x\n"
        "2026-01-01 00:00:00 dddd-4   run      refresh: succeeded\x1b[2J"
    )
    error = {"error": {"class": "Py4JJavaError", "text": text}}
    failed = {"kind": "run", "name": "refresh", "status": "failed", "seconds": 1.0, "detail": json.dumps(error)}
    append_events(lakehouse, [{**failed, "time": NOW}], "dddd-4", "refresh#0")
    lines = cli("log", "--kind", "run").out.splitlines()
    assert len(lines) == 4
    assert lines[0].split("; ", 1)[1].startswith("Py4JJavaError: org.apache.spark.SparkException: Job aborted at org.x 2026-")
    assert cli("log", "--run", "dddd", "--json").result["events"][0]["detail"] == error


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--kind", "tables"], "there is no 'tables'; there are run, layer, read, table"),
        (["--since", "soon"], "30m, 12h, 1d, 2w"),
    ],
)
def test_a_word_that_is_none_is_refused_with_those_that_are(cli, lakehouse, arguments, hint):
    assert lakehouse
    said = cli("log", *arguments)
    assert said.code == 1
    assert hint in said.err


def test_a_time_is_so_long_ago_or_a_date():
    now = datetime(2026, 3, 2, tzinfo=UTC)
    assert since("36h", now) == datetime(2026, 2, 28, 12, tzinfo=UTC)
    assert since("1w", now) == datetime(2026, 2, 23, tzinfo=UTC)
    assert since("2026-03-01") == datetime(2026, 3, 1, tzinfo=UTC)
    assert since("2026-03-01T12:00+02:00") == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert since(None) is None
    for bad in ("1y", "999999999w", "yesterday", ""):
        with pytest.raises(ConfigurationError, match="is no time"):
            since(bad)


def test_the_numbers_of_the_report_are_those_of_the_events(lakehouse):
    data = report_data(read_events(lakehouse))
    assert (data.head["runs"], data.head["failed_runs"], data.head["bronze_rows"], data.head["lag"]) == (3, 1, 400, 7)
    assert (data.head["rejected_rows"], data.head["rule_rows"], data.head["games"]) == (6, 8, 12)
    assert [r["rate"] for r in data.layers] == [50.0, 150.0]
    assert [r["lag"] for r in data.lag] == [0, 7]
    # The largest games by name, the others as one; nothing is left out of the sum.
    assert {r["series"] for r in data.games} == {*GAMES[:8], "others"}
    assert sum(r["rows"] for r in data.games) == sum(400 - 2 * n for n in range(len(GAMES)))
    assert {r["series"] for r in data.rules} == {"game_00: has_gamer"}
    assert (data.tables[0]["table"], data.tables[0]["rows"], data.tables[0]["bytes"]) == ("bronze_events", 300, 5_200_000)
    assert [(c["name"], c["status"], c["failures"]) for c in data.checks] == [("fresh", "passed", 0)]
    assert [e["error"] for e in data.errors] == ["TransientError: <b>the broker</b> is away"]


def test_a_chart_has_no_more_points_than_an_eye_tells_apart():
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    spans = {
        60: "10 seconds",
        7200: "1 minute",
        86400: "10 minutes",
        5 * 86400: "1 hour",
        30 * 86400: "6 hours",
        10**8: "1 day",
    }
    assert {s: bucket_of(begin, begin + timedelta(seconds=s)) for s in spans} == spans
    assert bucket_of(None, None) == "10 seconds"


def test_the_report_is_one_page_that_shows_what_happened_and_what_it_shows_cannot_become_markup(cli, lakehouse, tmp_path):
    assert lakehouse
    said = cli("report", "--json")
    assert said.code == 0, said.everything
    assert (said.result["runs"], said.result["games"]) == (3, 12)
    page = (tmp_path / "report.html").read_text()
    assert said.result["report"] == str(tmp_path / "report.html")
    for title in ("Throughput (rows per second)", "Lag (records)", "Rows by game (rows)", "Durations (seconds)", "Last errors"):
        assert f"<h2>{title}</h2>" in page
    assert "&lt;b&gt;the broker&lt;/b&gt; is away" in page
    assert "<b>the broker</b>" not in page
    assert "5.2 MB" in page
    assert re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", page) == []


def test_without_events_the_page_says_what_to_do_and_a_file_that_cannot_be_written_is_named(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", str(tmp_path / "lakehouse"))
    said = cli("report", "--out", "empty.html", "--json")
    assert (said.code, said.result["runs"]) == (0, 0)
    assert "every `game-events run` leaves some" in said.err
    assert "Every <code>game-events run</code> leaves some" in (tmp_path / "empty.html").read_text()
    assert "every `game-events run` leaves some" in cli("log").out
    assert not (tmp_path / "lakehouse").exists()
    refused = cli("report", "--out", str(tmp_path / "no/such/folder/r.html"))
    assert refused.code == 1
    assert "r.html cannot be written: No such file or directory" in refused.err


def heard(page, event):
    """A list that fills with the page's events of a kind."""
    found = []

    def hear(item):  # not the list's own method: Playwright notes something on the function it is given
        found.append(item)

    page.on(event, hear)
    return found


@pytest.mark.scenario
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the PATH")
def test_a_browser_draws_every_chart_in_its_place_in_light_and_dark_and_loads_nothing_else(cli, lakehouse, tmp_path):
    assert lakehouse
    assert cli("report").code == 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
            asked, wrong = heard(page, "request"), heard(page, "pageerror")
            page.goto((tmp_path / "report.html").as_uri())
            page.wait_for_function("document.querySelectorAll('.plotly-graph-div .main-svg').length >= 12")
            inside = "[...document.querySelectorAll('.charts section')].every(s => s.scrollWidth <= s.clientWidth + 1)"
            page.wait_for_function(inside)
            ink = page.evaluate("getComputedStyle(document.querySelector('.ytick text')).fill")
            assert ink == {"light": "rgb(29, 39, 51)", "dark": "rgb(228, 233, 239)"}[scheme]
            assert [request.url for request in asked] == [(tmp_path / "report.html").as_uri()]
            assert wrong == []
        browser.close()
