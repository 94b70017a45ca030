"""The archive of Spark's classes: which one is used, and that none or a bad one changes nothing but the time."""

from __future__ import annotations

import os
import subprocess

import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.jvm import class_archive
from game_events.jvm.class_archive import SPARK_HOME, archive_of, archiving_options, is_usable, keep, sharing_options
from game_events.jvm.jars import spark_jars
from game_events.jvm.java import DEFAULT_JAVA_OPTIONS, find_java, version_text
from game_events.spark.config import CLASS_PATH_KEY, LATE_OPTIMIZATION, SMALL_RUN, java_options, spark_config

SAID = {"spark.authenticate": "true"}


@pytest.fixture
def spark_home(tmp_path, monkeypatch):
    """A Spark of two jars; archives are below the test's folder."""
    monkeypatch.setenv("GAME_EVENTS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    for name in ("a.jar", "b.jar"):
        (tmp_path / "spark" / "jars" / name).write_bytes(b"jar")
    return tmp_path / "spark"


@pytest.fixture
def kept(spark_home, tmp_path):
    """An archive in its place."""
    archive = archive_of([], spark_home)
    keep(written(tmp_path), archive)
    return archive


def written(folder, name="new"):
    file = folder / name
    file.write_bytes(b"classes")
    return file


def test_another_java_or_another_jar_has_another_archive(spark_home, tmp_path, monkeypatch):
    names = [archive_of([], spark_home)]
    own = written(tmp_path, "own.jar")
    names.append(archive_of([own], spark_home))
    os.utime(own, ns=(1, 1))  # Java compares the times of jars
    names.append(archive_of([own], spark_home))
    (spark_home / "jars" / "c.jar").write_bytes(b"jar")
    names.append(archive_of([own], spark_home))
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    for build in ("a", "b"):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"17.0.1\" build {build}'\n")
        java.chmod(0o700)
        version_text.cache_clear()  # a new process
        names.append(archive_of([own], spark_home))
    assert len(set(names)) == len(names)
    assert archive_of([own], spark_home) == names[-1]


def test_an_archive_is_used_once_it_is_in_its_place(spark_home, tmp_path):
    archive = archive_of([], spark_home)
    assert sharing_options(archive) == ()
    keep(written(tmp_path), archive)
    assert f"-XX:SharedArchiveFile={archive}" in sharing_options(archive)
    assert "-Xshare:auto" in sharing_options(archive)
    assert archive.parent.stat().st_mode & 0o777 == 0o700


def test_what_another_user_could_have_written_is_not_used(kept):
    assert is_usable(kept)
    for path in (kept, kept.parent):
        before = path.stat().st_mode & 0o777
        path.chmod(before | 0o020)
        assert not is_usable(kept)
        path.chmod(before)
    assert is_usable(kept)
    moved = kept.rename(kept.with_name("elsewhere"))
    kept.symlink_to(moved)
    assert sharing_options(kept) == ()


def test_a_jvm_that_wrote_nothing_leaves_no_archive(spark_home, tmp_path):
    archive = archive_of([], spark_home)
    (tmp_path / "empty").touch()
    for file in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(ConfigurationError, match="wrote no archive"):
            keep(file, archive)
    assert not archive.exists()


def test_old_archives_are_deleted(kept, tmp_path):
    for number in range(class_archive.KEPT + 2):
        old = written(kept.parent, f"old-{number}.jsa")
        os.utime(old, (number, number))
    keep(written(tmp_path), kept)
    left = {f"old-{number}.jsa" for number in range(2, class_archive.KEPT + 2)}
    assert {f.name for f in kept.parent.iterdir()} == left | {kept.name}


@pytest.mark.parametrize("content", [b"", b"no archive", b"\0" * 100_000])
def test_java_starts_without_a_word_beside_a_damaged_archive(kept, content):
    kept.chmod(0o600)
    kept.write_bytes(content)
    done = subprocess.run([find_java(), *sharing_options(kept), "-version"], capture_output=True, text=True, check=True)
    assert "warning" not in (done.stdout + done.stderr).lower()


def test_java_takes_an_archive_that_it_has_written(tmp_path):
    archive = tmp_path / "classes"
    launcher = ["-cp", f"{SPARK_HOME}/jars/*", "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "x"]

    home = {"SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": "2.13"}

    def java(*options):
        command = [find_java(), *options, *launcher]
        return subprocess.run(command, env=os.environ | home, capture_output=True, text=True, check=True).stdout

    java(*archiving_options(archive))
    told = java("-Xlog:class+load", f"-XX:SharedArchiveFile={archive}")
    assert "org.apache.spark.launcher.Main source: shared objects file (top)" in told


def test_the_jars_are_on_the_class_path_of_a_local_jvm_and_sent_to_a_clusters_machines():
    jars = ",".join(map(str, spark_jars()))
    local = spark_config(load_settings(spark_master="local[2]", spark_conf={CLASS_PATH_KEY: "/own.jar"}))
    assert local["spark.jars"] == ""
    assert local[CLASS_PATH_KEY].replace(":", ",") == f"{jars},/own.jar"
    cluster = spark_config(load_settings(spark_master="spark://127.0.0.1:7077", spark_conf=SAID))
    assert cluster["spark.jars"] == jars
    assert "lz4-java" in cluster[CLASS_PATH_KEY]
    assert ":" not in cluster[CLASS_PATH_KEY]


@pytest.mark.usefixtures("spark_home")
def test_a_local_jvm_is_told_of_the_archive_that_is_there(tmp_path):
    local, cluster = load_settings(spark_master="local[2]"), load_settings(spark_master="yarn")
    assert java_options(local, [], small_run=False) == LATE_OPTIMIZATION
    archive = archive_of([])
    keep(written(tmp_path), archive)
    assert java_options(local, [], small_run=False) == (*sharing_options(archive), *LATE_OPTIMIZATION)
    assert sharing_options(archive) != ()
    assert java_options(cluster, [], small_run=False) == LATE_OPTIMIZATION


def test_only_a_small_run_goes_without_the_optimizing_compiler():
    settings = load_settings(spark_master="local[2]")
    usual, small = (spark_config(settings, small_run=is_small)[DEFAULT_JAVA_OPTIONS] for is_small in (False, True))
    assert small == usual.replace(" ".join(LATE_OPTIMIZATION), " ".join(SMALL_RUN)) != usual
    assert "TieredStopAtLevel" not in usual
