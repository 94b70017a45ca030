"""A lakehouse that commit a9b4bae5 (game_events 0.1) wrote is refused, migrated, read and extended.

It has compacted tables, quarantine, a full refresh, decisions of rules, an erasure, an export with failed calls, an archive.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
from pydantic import SecretStr

from game_events.config.names import FORMER_OWN
from game_events.errors import ConfigurationError
from game_events.pipeline.event_log import recorded
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.export.run import export_rows, replay_failed_calls
from game_events.plugins.files.archive import archive
from game_events.rules import Rule
from game_events_tests.integration.plugins.files.test_pipeline import failed_checks
from game_events_tests.support.killing.sitecustomize import killed_at
from game_events_tests.support.old_lakehouse import (
    ERASURE_KEY,
    EXPORTED_TO,
    FORGOTTEN,
    GAMES,
    NOT_TAKEN,
    REJECTED,
    RULES,
    SCORES_FROM,
    container,
    event,
)
from game_events_tests.support.reconciliation import gold, rows
from game_events_tests.support.servers.rest_receiver import receiving
from game_events_tests.support.worlds.file_samples import put
from game_events_tests.support.worlds.waves import unified, versions

PACKED = Path(__file__).parents[3] / "support" / "data" / "old_lakehouse.zip"
#: Where the migration is killed, and how many tables get another format.
POINTS, MARKED = ("migration_marked", "migration_copied"), 17
COLUMNS = ["game_name", "gamer_id", "n", "event_timestamp", "note"]


@pytest.fixture
def make(make_files, tmp_path):
    """A pipeline over the unpacked lakehouse, with the settings that it was written with."""
    with zipfile.ZipFile(PACKED) as packed:
        packed.extractall(tmp_path)
    rules, key = tuple(Rule.model_validate(rule) for rule in RULES), SecretStr(ERASURE_KEY)
    written_with = {"files_schema": None, "files_message_type": None, "time_column": "event_timestamp", "erasure_key": key}
    return lambda **other: make_files(**{**written_with, "rules": rules, **other})


def assert_holds(settings, end, columns=COLUMNS):
    """Every row of every layer, read by DuckDB, is that of the events below `end`."""
    events = [event(n) for n in range(end)]
    kept = [[e.get(name) for name in columns] for e in events if e["gamer_id"] != FORGOTTEN]
    listed = f"SELECT {', '.join(columns)} FROM t ORDER BY n"
    assert list(map(list, rows(settings, "bronze_events", listed))) == kept
    for game in GAMES:
        silver = [row for row in kept if row[0] == game and row[2] != REJECTED]
        assert list(map(list, rows(settings, f"silver_{game}_events", listed))) == silver
        gamers = groupby(sorted(silver, key=lambda row: row[1]), key=lambda row: row[1])
        times = {gamer: [row[3] for row in of] for gamer, of in gamers}
        assert gold(settings, game) == {gamer: (len(of), min(of), max(of)) for gamer, of in times.items()}
        assert unified(settings, game) == gold(settings, game)


def reasons(settings):
    return Counter(reason for (reason,) in rows(settings, "quarantine_events", "SELECT reason FROM t"))


def files(folder):
    """Path -> content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def data_files(folder):
    """Table, by its name today, and content of every file with rows."""
    of_rows = {path: content for path, content in files(folder).items() if "/_" not in path}
    return sorted((FORMER_OWN.get(Path(path).parts[0], Path(path).parts[0]), content) for path, content in of_rows.items())


@pytest.fixture
def command(cli, monkeypatch, tmp_path):
    """The command line on that lakehouse."""
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", str(tmp_path / "lakehouse"))
    monkeypatch.setenv("GAME_EVENTS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    monkeypatch.chdir(tmp_path)
    return cli


def assert_goes_on(make, landing, tmp_path):
    """Only what is new is read, and sent; who was erased stays out; whatever work follows, every row is in its place once."""
    settings = make().settings
    assert_holds(settings, SCORES_FROM)
    assert reasons(settings) == {"UNREADABLE_FILE": 1, "n_known": 1}
    before = versions(settings)
    report = refresh(make())
    assert (report.success, report.tables, versions(settings)) == (True, [], before), "nothing is new, nothing is rebuilt"

    put(landing, "fourth.avro", container(range(SCORES_FROM, 72)))
    put(landing, "cut.avro", container(range(SCORES_FROM, 72))[:-20])
    report = refresh(make())
    assert report.success, report.errors
    assert report.rows("bronze") == 12 - 2
    assert report.suppressed == 2, "what comes later of an erased person is kept out"
    assert_holds(settings, 72, [*COLUMNS, "score"])
    assert reasons(settings) == {"UNREADABLE_FILE": 2, "n_known": 1}
    assert failed_checks(make()) == ["score (double): new"]
    assert_is_exported(make, tmp_path)
    assert_is_archived(make, tmp_path)

    maintain(make(), RunReport())
    assert redecode(make(), RunReport()).rows == 58
    pipeline, report = make(), RunReport()
    with recorded(pipeline, report, "refresh"):
        refresh(pipeline, report)
    assert report.success, report.errors
    assert_holds(settings, 72, [*COLUMNS, "score"])
    assert failed_checks(make()) == ["score (double): new"]


def assert_is_exported(make, tmp_path):
    """New rows are sent, then, as somebody asks for it, those of the calls that have failed; nothing is sent again."""
    kept = [event(n) for n in range(72) if event(n)["gamer_id"] != FORGOTTEN and n != REJECTED]
    with receiving(tmp_path / "received") as receiver:
        sending = {"rest_url": SecretStr(receiver.url), "rest_tasks": 2}
        export_rows(make(**sending), RunReport())
        new = sorted(e["n"] for e in kept if e["n"] >= EXPORTED_TO)
        assert sorted(row["n"] for row in receiver.rows) == new
        assert replay_failed_calls(make(**sending)) == (1, 15)
        export_rows(make(**sending), RunReport())
        failed = sorted(e["n"] for e in kept if e["n"] < EXPORTED_TO and e["game_name"] == NOT_TAKEN)
        assert sorted(row["n"] for row in receiver.rows) == failed + new


def assert_is_archived(make, tmp_path):
    """The archive takes what came since."""
    report = RunReport()
    archive(make(), report, str(tmp_path / "archive"))
    new = [n for n in range(EXPORTED_TO, 72) if event(n)["gamer_id"] != FORGOTTEN]
    assert report.parts["archive"].rows == len(new)


def test_an_old_lakehouse_is_refused_then_migrated_and_goes_on(make, landing, command, tmp_path):
    before = files(tmp_path / "lakehouse")
    with pytest.raises(ConfigurationError, match=r'written by game_events 0\.1: run "game-events migrate" \(shows'):
        refresh(make())
    for words in (("tables",), ("quarantine", "list"), ("log",), ("sql", "SELECT 1 FROM bronze_events"), ("export", "status")):
        said = command(*words)
        assert (said.code, "game-events migrate --apply" in said.err) == (1, True), words
    said = command("migrate")
    assert "what would be changed; stop all runs, then add --apply" in said.out
    planned = command("migrate", "--json").result
    assert not planned["applied"]
    assert {t["table"]: t["becomes"] for t in planned["tables"] if t["becomes"]} == FORMER_OWN
    assert planned["tables"][-1]["table"] == "bronze_events"
    assert files(tmp_path / "lakehouse") == before, "a dry run changes nothing"

    content = data_files(tmp_path / "lakehouse")
    assert command("migrate", "--apply", "--json").result == planned | {"applied": True}
    assert data_files(tmp_path / "lakehouse") == content, "no row was written again"
    again = command("migrate", "--apply")
    assert (again.code, "nothing to migrate" in again.out) == (0, True)
    assert_goes_on(make, landing, tmp_path)


@pytest.mark.parametrize("point", POINTS)
def test_a_migration_that_is_killed_after_each_table_goes_on(make, landing, tmp_path, point):
    more = {"LAKEHOUSE": str(tmp_path / "lakehouse"), "STATE_DIR": str(tmp_path / "state")}
    environment = os.environ | {f"GAME_EVENTS_{name}": value for name, value in more.items()}
    command = [Path(sys.executable).parent / "game-events", "migrate", "--apply"]

    def migrate(place):
        return subprocess.run(command, env=environment | killed_at(place), cwd=tmp_path, check=False).returncode

    copies = [f"{point}:{FORMER_OWN[old]}" for old in sorted(FORMER_OWN)]
    places = copies if point == "migration_copied" else [point] * MARKED
    for place in places:
        with pytest.raises(ConfigurationError, match="migrate --apply"):  # until bronze, the last table, is migrated
            refresh(make())
        assert migrate(place) == -signal.SIGKILL, place
    assert migrate("nowhere") == 0
    assert_goes_on(make, landing, tmp_path)
