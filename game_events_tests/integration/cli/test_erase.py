"""`game-events erase`, on real parts: killed, run again, and what it says."""

import io
import sys

from game_events.pipeline.runs.refresh import refresh
from game_events_tests.support.reconciliation import count
from game_events_tests.support.worlds.erasure import places_of
from game_events_tests.support.worlds.quality import Event, assert_sound, send_events

WHOM = "gamer-to-forget"
KEY = "a key of the tests, long enough"


def test_nobody_to_erase_and_no_key_are_said_before_anything_starts(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = cli("erase", "--json")
    assert (said.code, said.result["success"]) == (1, False)
    assert "--gamer-id" in said.err
    assert "cannot be read" in cli("erase", "--file", str(tmp_path / "none")).err
    assert cli("erase", "--gamer-id", WHOM, "--dry-run", "--vacuum").code == 2
    assert cli("erase", "--gamer-id", WHOM, "--resume").code == 2
    said = cli("erase", "--gamer-id", WHOM)
    assert said.code == 1
    assert "GAME_EVENTS_ERASURE_KEY is not set" in said.err
    assert WHOM not in said.everything


def test_an_erasure_that_is_killed_is_finished_by_the_same_command_and_says_what_went(
    cli, environment, make_pipeline, crash, monkeypatch, tmp_path
):
    monkeypatch.setenv("GAME_EVENTS_ERASURE_KEY", KEY)
    send_events(environment, [Event("chess", n, gamer=gamer) for n in range(3) for gamer in (WHOM, "ann")])
    refresh(make_pipeline(environment))
    crash("erase_bronze_committed", work="forget", gamer=WHOM)
    killed = (tmp_path / "driver.log").read_text()
    assert (count(environment, "bronze_events"), count(environment, "silver_chess_events")) == (3, 6)

    # Whoever has lost the ids by now finds them by their hashes.
    found = cli("erase", "--resume", "--dry-run", "--json")
    assert (found.code, found.result["rows"]["silver_chess_events"], found.result["lost_ids"]) == (0, 3, 0), found.err
    assert WHOM not in found.everything
    assert "of 1 the erasure is not finished" in cli("doctor", "--json").out

    # No process list shows an id that comes by standard input.
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{WHOM}\n"))
    said = cli("erase", "--file", "-", "--vacuum", "--json")
    assert said.code == 0, said.err
    assert said.result["finished"]
    assert said.result["rows"]["silver_chess_events"] == 3
    assert "files of older versions removed" in said.err
    assert places_of(environment, WHOM) == []
    assert WHOM not in said.everything + killed
    assert_sound(make_pipeline(environment.model_copy(update={"erasure_key": None})))
    logged = cli("log", "--kind", "erased", "--json").out
    assert said.result["hashes"][0] in logged
    assert cli("erase", "--gamer-id", WHOM, "--dry-run", "--json").result["rows"].get("bronze_events", 0) == 0
