"""Spark's Python daemon: the path of its workers, without archives of modules that are installed; and when it ends."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from game_events.pipeline.worker_daemon import SESSION, without_archives

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
    ended.wait(60)
    ended.communicate()


def test_the_daemon_of_all_sessions_ends_when_spark_closes_its_input():
    kept = daemon({})
    with pytest.raises(subprocess.TimeoutExpired):
        kept.wait(2.5)  # two looks of its loop
    kept.communicate()
    assert kept.returncode is not None
