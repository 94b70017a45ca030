"""Folders that only their user can read, and what becomes of them when a process is killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile

import pytest

from game_events.errors import ConfigurationError
from game_events.jvm import private_folders
from game_events.jvm.private_folders import LOCK, TemporaryFolder, private_folder

HOLDER = """
import sys, time
from game_events.jvm.private_folders import TemporaryFolder
folder = TemporaryFolder.make()
(folder.path / "rows").write_text("a player's")
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A temporary folder of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_of_the_state_is_its_users_alone_whoever_made_it_and_with_what_umask(tmp_path):
    there = tmp_path / "open"
    there.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        made = private_folder(tmp_path / "state" / "stack")
    finally:
        os.umask(before)
    assert [mode(private_folder(there)), mode(made)] == [0o700, 0o700]
    assert mode(private_folder(made)) == 0o700


def test_a_folder_of_another_user_is_refused_as_its_files_would_be_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_STATE_DIR"):
        private_folder(tmp_path)


def test_temporary_files_are_private_and_go_with_their_process_also_when_that_is_killed(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", HOLDER], env=environment, stdout=subprocess.PIPE, text=True) as holder:
        folder = type(tmp_path)(holder.stdout.readline().strip())
        assert mode(folder) == 0o700
        TemporaryFolder.make().release()
        assert (folder / "rows").exists(), "it is in use"
        holder.send_signal(signal.SIGKILL)
    TemporaryFolder.make().release()
    assert list(tmp_path.iterdir()) == []


def test_a_server_holds_the_folder_of_whoever_started_it(tmp_path):
    made = TemporaryFolder.make()
    (made.path / "rows").touch()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=(made.lock,)) as server:
        os.close(made.lock)
        TemporaryFolder.make().release()
        assert (made.path / "rows").exists()
        server.kill()
    private_folders.remove_left_behind()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_and_links_are_left_alone(tmp_path, monkeypatch):
    elsewhere, linked = tmp_path / "elsewhere", tmp_path / f"{private_folders.PREFIX}link"
    elsewhere.mkdir()
    (elsewhere / LOCK).touch()
    linked.symlink_to(elsewhere)
    private_folders.remove_left_behind()
    assert (elsewhere / LOCK).exists()
    theirs = TemporaryFolder.make()
    os.close(theirs.lock)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    private_folders.remove_left_behind()
    assert theirs.path.exists()
