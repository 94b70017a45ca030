"""What commands print is what they were given, and does nothing to the terminal it is printed on."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import sys

import pytest
from rich.console import Console

from game_events.cli.output import Output, harmless
from game_events.config.logging import PROGRESS_LOGGER

ODD = "leads to [/definitions/x], [red] and topic[0]@3 [user.name]"
#: Clear the screen, the clipboard, a link, C1's own escape, a carriage return that overwrites, letters turned round.
HOSTILE = "a\x1b[2J\x1b]52;c;cm0gLXJm\x07\x1b]8;;http://evil\x1b\\\\b\x9b31m\rok\x7f\x00\u202egnp.exe\u2028\ufeffz"
FORGED = "no error\nok   kafka   everything is fine"


def test_brackets_of_other_people_are_printed_as_they_are(capfd):
    output = Output(as_json=False)
    output.say(ODD)
    output.table("a [/title]", ("detail", "[link=http://evil]gamer_id[/link]", "[/x]"), [(ODD, 1, 2)])
    output.step("step", f": {ODD}")
    said = capfd.readouterr().out
    assert said.count("[/definitions/x], [red]") == 3
    assert "a [/title]" in said
    assert "[link=http://evil]gamer_id[/link]" in said
    assert "[/x]" in said


@pytest.mark.parametrize("wide", [False, True])
def test_nothing_that_is_printed_moves_the_cursor_or_begins_a_line(capfd, monkeypatch, wide):
    monkeypatch.setenv("COLUMNS", "40" if wide else "2000")
    output = Output(as_json=False)
    output.table(HOSTILE, (HOSTILE, FORGED), [(HOSTILE, FORGED), (FORGED, 1)], wide=wide)
    with output.working("at work"):
        pass
    output.say(HOSTILE)
    output.say(FORGED)
    output.step(HOSTILE, FORGED)
    said = capfd.readouterr().out
    assert all(c == "\n" or c.isprintable() for c in said), sorted({c for c in said if not c.isprintable()})
    assert not [line for line in said.splitlines() if line.startswith("ok   kafka")]
    assert "\\x1b[2J" in said
    assert "\\u202egnp.exe\\u2028\\ufeffz" in said


def test_letters_of_all_languages_and_emoji_stay():
    for text in ("Zażółć", "ключ", "日本語", "می‌خواهم", "👩‍👩‍👧", "a\u0301", "\\x1b is no escape"):
        assert harmless(text) == text


def test_a_table_with_more_columns_than_fit_is_shown_row_by_row(capfd, monkeypatch):
    monkeypatch.setattr(Console, "width", property(lambda _: 100))
    names = [f"column_{n:02}" for n in range(77)]
    Output(as_json=False).table("", names, [[f"value {n}" for n in range(77)], range(77)], wide=True)
    lines = capfd.readouterr().out.splitlines()
    assert (len(lines), lines[0], lines[78]) == (2 * 78, "row 1", "row 2")
    assert lines[8].split() == ["column_07", "value", "7"]
    Output(as_json=False).table("", names[:4], [[1, 2, 3, 4]], wide=True)
    assert "row 1" not in capfd.readouterr().out


def test_programs_get_json_whatever_the_numbers_are(capfd):
    Output(as_json=True).result({"rows": [[math.inf, -math.inf, {"a": [math.nan, 0.5]}, None, True, "\x1b\u2028"]]})
    said = capfd.readouterr().out
    assert len(said.splitlines()) == 1

    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    body = json.loads(said, parse_constant=refuse)
    assert body == {"rows": [["Infinity", "-Infinity", {"a": ["NaN", 0.5]}, None, True, "\x1b\u2028"]]}


def test_nested_values_are_json_in_csv(capfd):
    nested = [["", "é", "\t\n\"'\\"], {"🎲": 2, "ключ": None}, [{"a": [1.5, math.nan]}], 1, None, "text"]
    Output(as_json=False).csv(["a", "b", "c", "d", "e", "f"], [nested])
    _, row = csv.reader(io.StringIO(capfd.readouterr().out))
    assert json.loads(row[0]) == nested[0]
    assert json.loads(row[1]) == nested[1]
    assert json.loads(row[2]) == [{"a": [1.5, "NaN"]}]
    assert row[3:] == ["1", "", "text"]
    assert "ключ" in row[1]


def test_progress_that_a_command_shows_is_not_logged_as_well(cli, monkeypatch):
    def retries():
        with Output(as_json=False).working("at work"):
            logging.getLogger(PROGRESS_LOGGER).warning("trying again")
        logging.getLogger(PROGRESS_LOGGER).warning("shown by the log alone")

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr("game_events.cli.main.command_line", lambda: lambda **_: (retries(), sys.exit(0)))
    found = cli("run")
    assert found.out == "  trying again\n"
    assert found.err == f"WARNING {PROGRESS_LOGGER} shown by the log alone\n"
