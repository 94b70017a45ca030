"""What becomes of a command's output where stdin, stdout or stderr are not what a terminal has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from game_events_tests.support.commands import GAME_EVENTS

#: A command that says when it has begun, and does not end.
SLOW = """
import sys, time, typer
import game_events.cli.main as m

def slow(json: bool = False):
    print("begun", file=sys.stderr, flush=True)
    time.sleep(60)

app = typer.Typer()
app.command()(slow)
m.command_line = lambda: app
m.main()
"""


def in_shell(folder, redirection, *arguments, **environment):
    """A command in a process of its own, with a redirection of the shell."""
    command = ["bash", "-c", f'"$@" {redirection}', "bash", *GAME_EVENTS, *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, check=False)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_stdout_has_no_bytes_for_are_shown_as_escapes(tmp_path, encoding):
    done = in_shell(tmp_path, "", "sql", "SELECT 'ł🎲' AS x", PYTHONIOENCODING=encoding)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert b"\\u0142\\U0001f3b2" in done.stdout


def test_csv_is_utf_8_whatever_the_terminal_is(tmp_path):
    done = in_shell(tmp_path, "", "sql", "--csv", "SELECT 'ł🎲' AS x", PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stdout.decode()) == (0, "x\nł🎲\n")


@pytest.mark.parametrize(
    ("redirection", "code"),
    [("2>&-", 0), ("<&-", 0), (">&-", 0), ("| true; exit ${PIPESTATUS[0]}", 1)],
    ids=["err", "in", "out", "pipe"],
)
def test_a_stream_that_is_closed_is_no_bug(tmp_path, redirection, code):
    done = in_shell(tmp_path, redirection, "tables", "--json")
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False)
    assert done.stdout.startswith(b'{"root"') is (redirection in ("2>&-", "<&-"))


def test_an_error_that_nobody_reads_as_json_is_told_once(tmp_path):
    done = in_shell(tmp_path, "| true; exit ${PIPESTATUS[0]}", "history", "nosuch", "--json")
    assert (done.returncode, b"Traceback" in done.stderr) == (1, False)
    assert b"there is no table 'nosuch'" in done.stderr


@pytest.mark.parametrize("redirection", ["<&-", r"< <(printf '\xff\xfe')"], ids=["closed", "bytes"])
def test_a_query_that_is_no_text_is_refused(tmp_path, redirection):
    done = in_shell(tmp_path, redirection, "sql", "-", "--json")
    assert (done.returncode, b"Traceback" in done.stderr) == (1, False)
    assert b"error: " in done.stderr


@pytest.mark.parametrize("arguments", [("sql",), ("forget", "--dry-run", "--gamer-id"), ("history",)], ids=" ".join)
def test_an_argument_that_is_no_text_is_refused(tmp_path, arguments):
    done = in_shell(tmp_path, r"$'\xff' --json", *arguments, GAME_EVENTS_ERASURE_KEY="x" * 32)
    assert (done.returncode, b"Traceback" in done.stderr) == (1, False)
    assert b"the argument '\\udcff' is not UTF-8" in done.stderr


def test_a_command_that_is_interrupted_says_so_to_programs(tmp_path):
    command = [sys.executable, "-c", SLOW, "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, '{"success": false, "error": "interrupted"}\n')


def test_ids_are_read_from_stdin_as_utf_8_whatever_the_terminal_is(tmp_path):
    read = "import sys, game_events.cli.main as m; m._open_streams(); print(ascii(sys.stdin.read()))"
    command = [sys.executable, "-c", read]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, input="é".encode(), capture_output=True, check=True)
    assert done.stdout == b"'\\xe9'\n"
