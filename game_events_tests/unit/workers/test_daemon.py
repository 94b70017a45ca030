"""Spark's Python daemon: the path and the modules of its workers."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from game_events.workers.daemon import SESSION_WITH_FILES, without_archives

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
def manager():
    own = "game_events.workers.decode" in sys.modules
    print("ptars" in sys.modules, own, "pyspark.worker" in sys.modules, flush=True)
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
