"""Java and the pinned JVM parts; Ivy itself runs only where the cache is cold."""

import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from game_events.errors import ConfigurationError, TransientError
from game_events.stack import jars
from game_events.stack.java import find_java


@pytest.fixture
def fake_java(tmp_path, monkeypatch):
    """Installs a `java` that answers with the given text and exit code, and nothing else on PATH."""

    def install(script: str):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        java = folder / "java"
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(java.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        return java

    return install


def version(text: str) -> str:
    return f"echo 'openjdk version \"{text}\"' >&2"


def test_missing_java_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigurationError, match=r"no java on PATH.*apt-get install openjdk-17-jre-headless.*JAVA_HOME"):
        find_java()


def test_a_wrong_java_home_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=rf"no java in JAVA_HOME={re.escape(str(tmp_path))}.*apt-get"):
        find_java()


@pytest.mark.parametrize(("text", "major"), [("1.8.0_452", 8), ("11.0.2", 11), ("16-ea", 16)])
def test_old_java_is_refused(fake_java, text, major):
    fake_java(version(text))
    with pytest.raises(ConfigurationError, match=rf"is Java {major}: install Java 17"):
        find_java()


@pytest.mark.parametrize("text", ["17.0.15", "21", "25-ea"])
def test_new_java_is_taken(fake_java, text):
    java = fake_java(version(text))
    assert find_java() == java


def test_java_that_does_not_run_is_named(fake_java):
    fake_java("echo libjvm is missing >&2; exit 1")
    with pytest.raises(ConfigurationError, match="libjvm is missing"):
        find_java()


def test_failed_resolution_shows_ivys_last_lines_and_leaves_nothing_half_done(fake_java, tmp_path, monkeypatch):
    fake_java(f"case $1 in -version) {version('17')};; *) echo some.org#thing: not found; exit 1;; esac")
    monkeypatch.setenv("GAME_EVENTS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(TransientError, match=r"(?s)could not fetch.*some\.org#thing: not found"):
        jars.resolve()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["jars.lock"]


def test_two_at_once_resolve_once_and_the_archive_is_unpacked(fake_java, tmp_path, monkeypatch):
    # Stands for Ivy: fills the three folders of the pattern it is given, slowly, and counts its runs.
    fake_java(f"""case $1 in -version) {version("17")}; exit;; esac
        for last; do :; done
        out=${{last%%/*}}; echo run >> {tmp_path}/runs; sleep 0.3
        mkdir -p "$out/spark" "$out/kafka" "$out/registry" && cd "$out/registry" && touch ../spark/a.jar ../kafka/b.jar
        touch x-runner.jar && tar czf x.tar.gz x-runner.jar && rm x-runner.jar""")
    monkeypatch.setenv("GAME_EVENTS_CACHE", str(tmp_path / "cache [1]"))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _n: jars.resolve(), range(2))
    assert first == second
    assert (tmp_path / "runs").read_text() == "run\n"
    assert [path.name for path in first.spark] == ["a.jar"]
    assert [path.name for path in first.registry.iterdir()] == ["x-runner.jar"]


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GAME_EVENTS_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_CACHE"):
        jars.resolve()


def test_a_cached_call_takes_milliseconds():
    jars.resolve()
    start = time.perf_counter()
    parts = jars.resolve()
    assert time.perf_counter() - start < 0.05
    assert any(jar.name.startswith("spark-sql-kafka") for jar in parts.spark)
    assert any(jar.name.startswith("delta-spark") for jar in parts.spark)
    assert list(parts.registry.glob("*-runner.jar"))
