"""Sessions on the server of `game-events up`: none once code was edited, as its workers keep what they have imported."""

from __future__ import annotations

import os
import sys
import zipfile

import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.spark import session
from game_events.spark.session import READY_FILE, begin_session, edited_since_up, new_session

NAME = "module_of_a_user"
LONG_S = 1_000_000_000


@pytest.fixture
def settings(tmp_path):
    """The server is ready now; every module of this process is older."""
    ready = tmp_path / "state" / READY_FILE
    ready.parent.mkdir(parents=True)
    ready.touch()
    return load_settings(state_dir=tmp_path / "state", spark_remote="unix:/tmp/there-is-none")


@pytest.fixture(params=["file", "archive"])
def module(request, settings, tmp_path, monkeypatch):
    """The file of an imported module: its own, or the archive with it."""
    file = tmp_path / f"{NAME}.py"
    if request.param == "archive":
        file = tmp_path / "archive.zip"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"{NAME}.py", "")
        monkeypatch.syspath_prepend(str(file))
    else:
        file.write_text("")
        monkeypatch.syspath_prepend(str(tmp_path))
    __import__(NAME)
    edited(file, settings, -1)
    yield file
    del sys.modules[NAME]


def edited(file, settings, seconds):
    """So many seconds after the server was ready."""
    then_ns = (settings.state_dir / READY_FILE).stat().st_mtime_ns + seconds * 1_000_000_000
    os.utime(file, ns=(then_ns, then_ns))


def test_a_module_that_was_edited_since_the_server_was_ready_is_named(settings, module):
    assert edited_since_up(settings) == []
    edited(module, settings, 1)
    assert edited_since_up(settings) == [str(module)]
    with pytest.raises(ConfigurationError, match=rf"{module} was edited after .*: start `game-events up` again"):
        new_session(settings)


def test_so_is_a_file_that_sessions_ship(settings, tmp_path):
    shipped = tmp_path / "shipped.py"
    shipped.write_text("")
    edited(shipped, settings, 1)
    assert edited_since_up(settings.model_copy(update={"spark_py_files": (str(shipped),)})) == [str(shipped)]


def test_installed_modules_are_not_looked_at(settings):
    edited(settings.state_dir / READY_FILE, settings, -LONG_S)
    assert not [file for file in edited_since_up(settings) if pytest.__file__ in file or os.__file__ in file]


def test_without_a_server_whose_sessions_share_workers_nothing_is_edited(settings, module):
    edited(module, settings, 1)
    (settings.state_dir / READY_FILE).unlink()
    assert edited_since_up(settings) == []


def test_only_a_session_of_ones_own_jvm_is_begun_early(settings, monkeypatch):
    begun = []
    monkeypatch.setattr(session, "begin_call", lambda call, _name: begun.append(call.args))
    begin_session(settings)
    assert begun == []
    own = settings.model_copy(update={"spark_remote": None})
    begin_session(own)
    assert begun == [(own,)]
