"""Spark's Python daemon: the path and the modules of its workers, and when it ends."""

import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType

import pyspark
import pytest

from game_events.pipeline.worker_daemon import SESSION, ChangingModules, PromptInput, promptly, without_archives

HOME = Path(pyspark.__file__).parent
SITE = str(HOME.parent)
OWN = [str(HOME / "python/lib/pyspark.zip"), str(next((HOME / "python/lib").glob("py4j-*-src.zip")))]


def test_archives_of_the_installed_pyspark_leave_the_path():
    jar = str(next((HOME / "jars").glob("spark-core_*.jar")))
    assert without_archives(["", *OWN, jar, "/there/is/no/such/folder", SITE]) == ["", "/there/is/no/such/folder", SITE]


def test_other_archives_stay(tmp_path):
    mine = tmp_path / "mine.zip"
    zipfile.ZipFile(mine, "w").close()
    assert without_archives([str(mine), *OWN, SITE]) == [str(mine), SITE]


def test_where_pyspark_comes_from_the_archives_alone_they_stay(tmp_path):
    assert without_archives([*OWN, str(tmp_path)]) == [*OWN, str(tmp_path)]


def test_archives_of_another_spark_stay(tmp_path):
    other = tmp_path / "spark/python/lib/pyspark.zip"
    other.parent.mkdir(parents=True)
    zipfile.ZipFile(other, "w").close()
    assert without_archives([str(other), SITE]) == [str(other), SITE]


def daemon(session):
    """A daemon that ends as soon as it is idle, with what Spark gives one: two pipes and a session."""
    program = "from game_events.pipeline import worker_daemon; worker_daemon.IDLE_S = 0.0; worker_daemon.main()"
    environment = {key: value for key, value in os.environ.items() if key != SESSION} | session
    command = [sys.executable, "-c", program]
    started = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert len(started.stdout.read(4)) == 4, "its port: it is ready"
    return started


def test_the_daemon_of_one_session_ends_when_it_is_idle():
    ended = daemon({SESSION: "a-session"})
    assert ended.wait(60) == 1, "the code of PySpark's daemon when it ends by itself"
    ended.communicate()


def test_the_daemon_of_all_sessions_ends_when_spark_closes_its_input():
    kept = daemon({})
    with pytest.raises(subprocess.TimeoutExpired):
        kept.wait(2.5)  # two looks of its loop
    kept.communicate()
    assert kept.returncode is not None


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


def test_modules_of_a_library_elsewhere_stay(folder, monkeypatch):
    for place in ("site-packages", "dist-packages"):
        (folder / place).mkdir()
        monkeypatch.syspath_prepend(str(folder / place))
        modules = ChangingModules()
        write(folder / place / f"{NAME}.py", "first", age_s=20)
        first = imported(modules)
        write(folder / place / f"{NAME}.py", "other", age_s=10)
        assert imported(modules) is first
        del sys.modules[NAME]


def test_a_package_with_a_compiled_module_is_loaded_once(folder):
    """As NumPy on `PYTHONPATH`: its second import in a process fails."""
    compiled = Path(next(m.__file__ for m in list(sys.modules.values()) if str(getattr(m, "__file__", "")).endswith(".so")))
    package = folder / "with_a_compiled_module"
    package.mkdir()
    shutil.copy(compiled, package)
    write(package / "__init__.py", "of the package")
    write(folder / f"{NAME}.py", "first", age_s=20)
    part = f"{package.name}.{compiled.name.partition('.')[0]}"
    loaded = []

    def uses_both(infile, outfile):
        task(infile, outfile)
        loaded.append(__import__(package.name))
        # As the import of a compiled module leaves it.
        sys.modules.setdefault(part, ModuleType(part)).__file__ = str(package / compiled.name)

    modules = ChangingModules()
    modules.run(uses_both, None, None)
    write(folder / f"{NAME}.py", "other", age_s=10)
    modules.run(uses_both, None, None)
    assert [module.VALUE for module in found] == ["first", "other"]
    assert loaded[0] is loaded[1]
    found.clear()
    for name in (package.name, part):
        del sys.modules[name]


@pytest.fixture
def connected():
    """The two ends of a connection, as a worker and the JVM have them."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as jvm:
        worker, _ = server.accept()
        with worker:
            yield worker, jvm


def test_a_task_gets_all_that_the_jvm_sends_and_its_own_parts_are_not_held_back(connected):
    worker, jvm = connected
    jvm.sendall(b"command")
    jvm.sendall(b"rows")
    jvm.shutdown(socket.SHUT_WR)
    found = []

    def task(infile, outfile):
        found.append((infile.read(7), infile.read()))
        found.append(worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        outfile.write(b"done")

    with os.fdopen(os.dup(worker.fileno()), "rb") as infile, os.fdopen(os.dup(worker.fileno()), "wb") as outfile:
        promptly(task)(infile, outfile)
    assert found == [(b"command", b"rows"), 1]
    assert jvm.recv(10) == b"done"


def test_the_connection_is_there_for_the_next_task(connected):
    worker, jvm = connected
    for text in (b"first", b"other"):
        jvm.sendall(text)
        with os.fdopen(os.dup(worker.fileno()), "rb") as infile, os.fdopen(os.dup(worker.fileno()), "wb") as outfile:
            promptly(lambda infile, outfile: outfile.write(infile.read(5)))(infile, outfile)
        assert jvm.recv(10) == text


def test_a_connection_without_these_options_is_left_as_it_is():
    worker, jvm = socket.socketpair()
    with worker, jvm, os.fdopen(os.dup(worker.fileno()), "rb") as infile, os.fdopen(os.dup(worker.fileno()), "wb") as outfile:
        jvm.sendall(b"rows")
        promptly(lambda infile, outfile: outfile.write(infile.read(4)))(infile, outfile)
        outfile.flush()
        assert jvm.recv(10) == b"rows"


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="an option of Linux")
def test_each_part_is_acknowledged_as_soon_as_it_was_read():
    done = []

    class Connection:
        def recv_into(self, _buffer):
            done.append("read")
            return 0

        def setsockopt(self, *option):
            done.append(option)

        def close(self):
            pass

    with PromptInput(Connection()) as prompt:
        prompt.readinto(bytearray(1))
        prompt.readinto(bytearray(1))
    at_once = socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1
    assert done == ["read", at_once, "read", at_once]
