"""Modules of a Python worker that outlives a version of their files."""

import os
import sys
import time
import zipfile

import pytest

from game_events.pipeline.worker_modules import ChangingModules

NAME = "module_of_an_extension"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """On the path; bytecode is not kept, as it goes by whole seconds."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop(NAME, None)


def write(file, value, *, age_s=10):
    """A version of the module, written so many seconds ago."""
    file.write_text(f"VALUE = {value!r}\nLOADED = object()\n")
    then = time.time() - age_s
    os.utime(file, (then, then))


def task(infile, outfile):  # noqa: ARG001 - as Spark calls it
    found.append(__import__(NAME))


found = []


def imported(modules):
    modules.run(task, None, None)
    return found.pop()


def test_a_module_is_kept_until_its_file_is_written_again(folder):
    modules = ChangingModules()
    write(folder / f"{NAME}.py", "first", age_s=20)
    first = imported(modules)
    assert imported(modules) is first
    write(folder / f"{NAME}.py", "other", age_s=10)
    assert imported(modules).VALUE == "other"


def test_a_module_of_an_archive_goes_by_the_archive(folder, monkeypatch):
    archive = folder / "extension.zip"
    monkeypatch.syspath_prepend(str(archive))
    modules = ChangingModules()
    for value in ("first", "a longer one"):
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(f"{NAME}.py", f"VALUE = {value!r}")
        assert value == imported(modules).VALUE


def test_a_module_whose_file_was_written_during_the_task_is_read_again(folder):
    modules = ChangingModules()
    write(folder / f"{NAME}.py", "first", age_s=20)

    def written_after_the_import(infile, outfile):
        task(infile, outfile)
        write(folder / f"{NAME}.py", "other", age_s=-1)

    modules.run(written_after_the_import, None, None)
    assert found.pop().VALUE == "first"
    assert imported(modules).VALUE == "other"


def test_a_module_whose_file_is_gone_is_not_used(folder):
    modules = ChangingModules()
    write(folder / f"{NAME}.py", "first")
    imported(modules)
    (folder / f"{NAME}.py").unlink()
    with pytest.raises(ModuleNotFoundError):
        imported(modules)


def test_installed_modules_stay():
    sys.modules.pop("this", None)
    modules = ChangingModules()
    before = set(sys.modules)
    modules.run(lambda *_: __import__("colorsys"), None, None)
    modules.run(lambda *_: None, None, None)
    assert "colorsys" in sys.modules
    assert before <= set(sys.modules)
