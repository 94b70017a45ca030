"""Java and the pinned JVM parts; Ivy itself runs only where the cache is cold."""

import hashlib
import io
import os
import re
import stat
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.jvm import jars
from game_events.jvm.jars import find_java
from game_events.spark.config import spark_config


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


@pytest.fixture
def pins(tmp_path, monkeypatch):
    """Writes a list of pins for the files that the test's Ivy makes, and a cache of its own."""
    monkeypatch.setenv("GAME_EVENTS_CACHE", str(tmp_path / "cache [1]"))
    listed = tmp_path / "jars.sha256"
    monkeypatch.setattr(jars, "PINS", listed)
    monkeypatch.setattr(jars, "spark_series", lambda: "4.1")
    folders = {"spark": "spark-4.1", "s3": "s3-4.1"}

    def write(**texts: bytes):
        lines = []
        for name, text in texts.items():
            folder, _, file = name.partition("__")
            lines.append(f"{hashlib.sha256(text).hexdigest()}  {folders.get(folder, folder)}/{file.replace('_', '.')}\n")
        listed.write_text("# of this test\n" + "".join(lines))

    write(spark__a_jar=b"delta", kafka__b_jar=b"broker", s3__c_jar=b"store")
    return write


@pytest.fixture
def ivy(fake_java, tmp_path):
    """Stands for Ivy: makes a file for each configuration it is asked for, slowly, and notes what it was asked for."""
    fake_java(f"""case $1 in -version) {version("17")}; exit;; esac
        for last; do :; done
        out=${{last%%/*}}; sleep 0.3
        mkdir -p "$out/spark-4.1" "$out/kafka" "$out/registry" "$out/s3-4.1"
        while [ "$1" != -confs ]; do shift; done; shift
        for conf; do case $conf in
          spark-4.1) printf delta > "$out/spark-4.1/a.jar"; echo spark >> {tmp_path}/asked;;
          kafka) printf broker > "$out/kafka/b.jar"; echo kafka >> {tmp_path}/asked;;
          registry) echo registry >> {tmp_path}/asked; [ -f {tmp_path}/x.tar.gz ] && cp {tmp_path}/x.tar.gz "$out/registry/";;
          s3-4.1) printf store > "$out/s3-4.1/c.jar"; echo s3 >> {tmp_path}/asked;;
          -retrieve) break;;
        esac; done; exit 0""")
    return lambda: (tmp_path / "asked").read_text().split()


def archive(folder, **files: bytes) -> bytes:
    """A registry's distribution with these files."""
    with tarfile.open(folder / "x.tar.gz", "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name.replace("_", "."))
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return (folder / "x.tar.gz").read_bytes()


@pytest.mark.usefixtures("pins")
def test_failed_resolution_shows_ivys_last_lines_and_leaves_nothing_half_done(fake_java, tmp_path):
    fake_java(f"case $1 in -version) {version('17')};; *) echo some.org#thing: not found; exit 1;; esac")
    with pytest.raises(TransientError, match=r"(?s)could not fetch.*some\.org#thing: not found"):
        jars.spark_jars()
    assert [path.name for path in (tmp_path / "cache [1]").iterdir()] == ["jars.lock"]


@pytest.mark.usefixtures("pins")
def test_two_at_once_fetch_once_and_who_needs_spark_alone_asks_for_nothing_else(ivy):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _n: jars.spark_jars(), range(2))
    assert first == second
    assert [path.name for path in first] == ["a.jar"]
    assert ivy() == ["spark"]
    assert [path.name for path in jars.s3_jars()] == ["c.jar"]
    assert ivy() == ["spark", "s3"]


def test_broker_and_registry_are_fetched_for_a_stack_and_the_registrys_archive_is_unpacked(ivy, pins, tmp_path):
    packed = archive(tmp_path, runner_jar=b"registry")
    pins(spark__a_jar=b"delta", kafka__b_jar=b"broker", registry__x_tar_gz=packed, registry__runner_jar=b"registry")
    parts = jars.folder_of(jars.STACK)
    assert [path.relative_to(parts).as_posix() for path in sorted(parts.rglob("*.jar"))] == [
        "kafka/b.jar",
        "registry/runner.jar",
    ]
    assert jars.folder_of(jars.STACK) == parts
    assert ivy() == ["kafka", "registry"]


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ({"spark__a_jar": b"another"}, r"spark-4\.1/a\.jar has the SHA-256 \w{64}, not the pinned \w{64}"),
        ({"spark__b_jar": b"delta"}, r"spark-4\.1/a\.jar is in no list of this version"),
        ({"spark__a_jar": b"delta", "spark__b_jar": b""}, r"spark-4\.1/b\.jar is missing"),
    ],
)
@pytest.mark.usefixtures("ivy")
def test_what_is_fetched_and_is_not_what_is_pinned_is_refused_by_name_and_never_reaches_the_cache(pins, tmp_path, listed, says):
    pins(**listed)
    with pytest.raises(ConfigurationError, match=rf"the Java part {says}; nothing of it is run: the repository, or a proxy"):
        jars.spark_jars()
    assert [path.name for path in (tmp_path / "cache [1]").iterdir() if path.name.startswith("spark")] == []


def test_an_archive_that_is_not_the_pinned_one_is_not_even_unpacked(ivy, pins, tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(b"an error of its own, if anybody reads it")
    pins(kafka__b_jar=b"broker", registry__x_tar_gz=b"another", registry__runner_jar=b"registry")
    with pytest.raises(ConfigurationError, match=r"registry/x\.tar\.gz has the SHA-256"):
        jars.folder_of(jars.STACK)
    assert ivy() == ["kafka", "registry"]


@pytest.mark.usefixtures("ivy", "pins")
@pytest.mark.parametrize("change", ["other bytes", "a file more", "a file less"])
def test_a_cache_that_was_changed_is_refused_at_the_next_start_and_it_says_what_to_delete(change):
    (jar,) = jars.spark_jars()
    if change == "other bytes":
        before = jar.stat()
        jar.write_bytes(b"atled")
        os.utime(jar, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "a file more":
        (jar.parent / "z.jar").write_bytes(b"class path")
    else:
        jar.unlink()
    with pytest.raises(ConfigurationError, match=rf"nothing of it is run: .*delete {re.escape(str(jar.parent.parent))}"):
        jars.spark_jars()


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GAME_EVENTS_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_CACHE"):
        jars.spark_jars()


def test_a_wrong_name_of_a_group_is_refused_with_the_names_there_are(capsys):
    assert jars.main(["sparks"]) == 1
    assert "no Java parts sparks; there are spark, stack, s3" in capsys.readouterr().err


def test_the_pins_are_of_the_ivy_file_as_it_is_and_name_what_each_group_is_for():
    of_ivy = hashlib.sha256(jars.IVY_FILE.read_bytes()).hexdigest()
    assert jars.PINS.read_text().startswith(f"# what ivy.xml names, when its SHA-256 was {of_ivy}\n"), "run `make lock-jars`"
    stack = jars.pinned(jars.STACK)
    assert {name.split("/")[0] for name in stack} == {"kafka", "registry"}
    assert any(name.endswith("-runner.jar") for name in stack)
    for series in jars.SPARK_SERIES:
        spark = jars.pinned(jars.SPARK[series])
        assert any(name.startswith(f"spark-{series}/delta-spark_{series}") for name in spark)
        assert not any("kafka" in name for name in spark), "workers read Kafka by librdkafka"
        assert any(name.startswith(f"s3-{series}/hadoop-aws") for name in jars.pinned(jars.S3[series]))


def test_the_java_parts_for_hadoop_are_of_the_installed_pysparks_version():
    (client,) = (jars.spark_home() / "jars").glob("hadoop-client-api-*.jar")
    hadoop = client.stem.rpartition("-")[2]
    assert f"s3-{jars.spark_series()}/hadoop-aws-{hadoop}.jar" in jars.pinned(jars.S3[jars.spark_series()])


@pytest.mark.parametrize(("installed", "series"), [("4.0.0", "4.0"), ("4.0.5", "4.0"), ("4.0.6.dev1", "4.0")])
def test_the_installed_pyspark_decides_which_java_parts_are_used(monkeypatch, installed, series):
    monkeypatch.setattr("importlib.metadata.version", lambda _name: installed)
    assert jars.spark_series() == series


@pytest.mark.parametrize("installed", ["3.5.9", "4.1.4", "4.2.0", "5.0.0"])
def test_a_pyspark_that_the_tests_have_not_passed_on_is_refused_with_what_to_install(monkeypatch, installed, capsys):
    monkeypatch.setattr("importlib.metadata.version", lambda _name: installed)
    with pytest.raises(ConfigurationError, match=rf"PySpark {installed} is installed, .* runs on 4\.0: pip install"):
        jars.spark_jars()
    assert jars.main([]) == 1
    assert "pip install 'pyspark[connect]==4.0.*'" in capsys.readouterr().err


@pytest.mark.usefixtures("pins")
def test_a_lakehouse_alone_asks_for_sparks_jars_only(ivy, tmp_path):
    """A fresh pod of a cluster needs no broker."""
    spark_config(Settings(lakehouse=str(tmp_path)))
    assert ivy() == ["spark"]
    assert spark_config(Settings(lakehouse="s3://bucket/prefix"))["spark.jars"].endswith("/s3-4.1/c.jar")
    assert ivy() == ["spark", "s3"]
