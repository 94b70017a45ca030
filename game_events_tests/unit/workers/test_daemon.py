"""Spark's Python daemon: the path and the modules of its workers, and how their tasks are read."""

import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from game_events.workers.daemon import SESSION_WITH_FILES, PromptInput, promptly, without_archives

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


@pytest.mark.parametrize(("session", "inherited"), [({}, True), ({SESSION_WITH_FILES: "its id"}, False)])
def test_its_workers_inherit_libraries_and_this_project_unless_their_session_ships_files(session, inherited):
    program = """
import sys
from game_events.workers import daemon
import pyspark.daemon
before = pyspark.daemon.worker_main
def manager():
    own = "game_events.workers.decode" in sys.modules
    print("ptars" in sys.modules, own, pyspark.daemon.worker_main is not before, flush=True)
    whole()
whole, pyspark.daemon.manager = pyspark.daemon.manager, manager
daemon.main()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | session) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == f"True {inherited} True\n".encode()
        assert len(started.stdout.read(4)) == 4, "its port: it is ready"
        started.communicate()
    assert started.returncode is not None


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
