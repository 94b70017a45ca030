"""Records of few bytes that are millions of values once decoded, by Spark with its default heap."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from game_events.config.settings import Settings, load_settings
from game_events_tests.support.commands import GAME_EVENTS
from game_events_tests.support.reconciliation import rows
from game_events_tests.support.servers.small_jvm import OF_A_COMMAND
from game_events_tests.support.worlds.quality import varint

COMMAND = [*GAME_EVENTS, "run", "--json"]
FIELDS = " ".join(f"int64 f{n} = {n};" for n in range(1, 1_001))
PROTO = f"""syntax = "proto3"; import "google/protobuf/timestamp.proto";
message E {{ string game_name = 1; repeated I i = 2; string gamer_id = 3; google.protobuf.Timestamp event_timestamp = 4; }}
message I {{ {FIELDS} }}
"""
#: An element without any bytes: a thousand zeros.
EMPTY = b"\x12\x00"


def records(game: str, elements: int, times: int) -> bytes:
    record = b"\x0a" + varint(len(game)) + game.encode() + EMPTY * elements
    return (varint(len(record)) + record) * times


def test_no_run_ends_by_records_that_expand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    (tmp_path / "e.proto").write_text(PROTO)
    (landing / "a.pb").write_bytes(records("chess", 2, 10) + records("evil", 100_000, 1) + records("rummy", 0, 10))
    (landing / "b.pb").write_bytes(records("wide", 1_000, 40))
    named = {
        "SOURCE": "files",
        "FILES_PATH": landing,
        "FILES_SCHEMA": tmp_path / "e.proto",
        "FILES_MESSAGE_TYPE": "E",
        "FILES_SETTLE_S": 0,
        "LAKEHOUSE": tmp_path / "lakehouse",
        "STATE_DIR": tmp_path / "state",
        "SPARK_MASTER": "local[2]",
        "SPARK_CONF": json.dumps(OF_A_COMMAND),
    }
    for name, value in named.items():
        monkeypatch.setenv(f"GAME_EVENTS_{name}", str(value))
    settings: Settings = load_settings()
    assert settings.spark_driver_memory == "1g"
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rejected"] == {"TOO_MANY_VALUES": 1}
    counts = {game: rows(settings, f"silver_{game}_events", "SELECT count(*) FROM t") for game in ("chess", "rummy", "wide")}
    assert counts == {"chess": [(10,)], "rummy": [(10,)], "wide": [(40,)]}
    # All of the record is there, for a version that takes it.
    ((raw, detail),) = rows(settings, "quarantine_events", "SELECT octet_length(_raw_value), detail FROM t")
    assert (raw >= 200_000, detail[:11]) == (True, "E: more tha")
