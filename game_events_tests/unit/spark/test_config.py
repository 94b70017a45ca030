"""What a cluster and a Connect server are told, and what travels to them. Nothing is started."""

from __future__ import annotations

import importlib
import os
import stat
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import psutil
import pytest
from pyspark.errors import PySparkException

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.jvm.jars import spark_jars, spark_series
from game_events.lakehouse.data.staging import StagedFile, unseen
from game_events.lakehouse.tables import Table
from game_events.orchestration import resources
from game_events.orchestration.runs import errors_decide
from game_events.plugins.local.servers import connect_server
from game_events.spark import session
from game_events.spark.config import (
    CLASS_PATH_KEY,
    DAEMON,
    DAEMON_KEY,
    packed,
    server_only_settings,
    session_config,
    shares_python_environment,
    ship_code,
    spark_config,
)
from game_events.spark.connect import CONNECT_MODE, connect, is_session_lost, named

#: What has to be said of a standalone cluster.
SAID = {"spark.authenticate": "true"}
TOKEN = "hush"


class Session:
    """A fake that takes files."""

    def __init__(self):
        self.sent = []

    def addArtifacts(self, path, pyfile):  # noqa: N802 - Spark's own name
        assert pyfile
        self.sent.append(path)


def test_the_jars_are_on_the_class_path_of_a_local_jvm_and_sent_to_a_clusters_machines():
    jars = ",".join(map(str, spark_jars()))
    local = spark_config(load_settings(spark_master="local[2]", spark_conf={CLASS_PATH_KEY: "/own.jar"}))
    assert local["spark.jars"] == ""
    assert local[CLASS_PATH_KEY].replace(":", ",") == f"{jars},/own.jar"
    cluster = spark_config(load_settings(spark_master="spark://127.0.0.1:7077", spark_conf=SAID))
    assert cluster["spark.jars"] == jars
    lz4 = [jar for jar in spark_jars() if jar.name.startswith("lz4-java")]
    assert len(lz4) == (spark_series() != "4.2"), "Spark 4.2 has one without known holes itself"
    assert cluster[CLASS_PATH_KEY] == ":".join(map(str, lz4))


@pytest.mark.parametrize(
    ("options", "here"),
    [
        ({}, True),
        ({"spark_master": "local[4]"}, True),
        ({"spark_master": "spark://master:7077"}, False),
        ({"spark_master": "yarn"}, False),
        ({"spark_master": "k8s://https://cluster:6443"}, False),
        ({"spark_remote": "sc://localhost:15002"}, True),
        ({"spark_remote": "unix:/tmp/x/socket"}, True),
        ({"spark_remote": "sc://127.0.0.1:15002/;user_id=x"}, True),
        ({"spark_remote": "sc://spark.example.com:443/;use_ssl=true"}, False),
        ({"spark_remote": "sc://spark.example.com"}, False),
    ],
)
def test_code_is_sent_to_other_machines_unless_somebody_says_otherwise(options, here):
    assert shares_python_environment(load_settings(**options)) == here
    for choice, sent in (("auto", not here), ("always", True), ("never", False)):
        session = Session()
        ship_code(session, load_settings(spark_ship_code=choice, **options))
        assert session.sent == ([str(packed())] if sent else [])


def test_what_is_sent_is_this_code_whole_and_named_by_its_content(tmp_path):
    package = tmp_path / "some_package"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__.py", "inner/__init__.py"):
        (package / file).write_text("")
    (package / "inner" / "answer.py").write_text("ANSWER = 42\n")
    (package / "notes.txt").write_text("not imported")
    archive = packed(package)
    sys.path.insert(0, str(archive))
    try:
        assert importlib.import_module("some_package.inner.answer").ANSWER == 42
    finally:
        sys.path.remove(str(archive))
        for name in [m for m in sys.modules if m.startswith("some_package")]:
            del sys.modules[name]
    assert archive.name.startswith("some_package-")
    assert "some_package/notes.txt" not in zipfile.ZipFile(archive).namelist()
    packed.cache_clear()
    same = packed(package)
    assert (same != archive, same.name) == (True, archive.name)
    (package / "inner" / "answer.py").write_text("ANSWER = 43\n")
    packed.cache_clear()
    assert packed(package).name != archive.name


def test_files_of_the_user_are_checked_before_anything_is_sent(tmp_path):
    helper, other = tmp_path / "helper.py", tmp_path / "data.csv"
    helper.write_text("")
    other.write_text("")
    session = Session()
    ship_code(session, load_settings(spark_py_files=f"{helper}"))
    assert session.sent == [str(helper)]
    for bad in (other, tmp_path / "nowhere.zip"):
        with pytest.raises(ConfigurationError, match=f"GAME_EVENTS_SPARK_PY_FILES: {bad}"):
            ship_code(session, load_settings(spark_py_files=[str(helper), str(bad)]))
    assert len(session.sent) == 1


def test_a_session_that_lacks_code_is_given_to_nobody(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "connect", lambda *_: Session())
    monkeypatch.setenv("GAME_EVENTS_SPARK_REMOTE", "sc://h:1")
    monkeypatch.setenv("GAME_EVENTS_SPARK_PY_FILES", str(tmp_path / "helper.py"))
    resource = resources.SparkResource()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="GAME_EVENTS_SPARK_PY_FILES"):
            _ = resource.spark_session
    (tmp_path / "helper.py").write_text("")
    assert resource.spark_session.sent[0] == str(tmp_path / "helper.py")


def test_a_driver_listens_on_loopback_where_its_executors_are_on_this_machine():
    for master in ("local[2]", "spark://127.0.0.1:7077", "spark://localhost:7077", "spark://[::1]:7077"):
        conf = spark_config(load_settings(spark_master=master, spark_conf=SAID))
        assert (conf["spark.driver.bindAddress"], conf["spark.driver.host"]) == ("127.0.0.1", "127.0.0.1")
    conf = spark_config(load_settings(spark_master="spark://master:7077", spark_conf=SAID))
    assert conf["spark.driver.bindAddress"] == "0.0.0.0"  # noqa: S104 - executors elsewhere have to reach it
    assert "spark.driver.host" not in conf


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2,3]", "yarn", "k8s://https://cluster:6443"])
def test_sparks_ports_want_a_secret_wherever_spark_makes_one(master):
    assert spark_config(load_settings(spark_master=master))["spark.authenticate"] == "true"
    theirs = load_settings(spark_master=master, spark_conf={"spark.authenticate": "false"})
    assert spark_config(theirs)["spark.authenticate"] == "false"


@pytest.mark.parametrize("master", ["spark://master:7077", "spark://127.0.0.1:7077", "local-cluster[2,1,1024]"])
def test_a_cluster_with_a_secret_of_its_own_is_used_only_if_the_settings_say_whether_it_has_one(master):
    with pytest.raises(ConfigurationError, match=r"spark\.authenticate.*spark-defaults\.conf"):
        spark_config(load_settings(spark_master=master))
    for said in ("true", "false"):
        conf = spark_config(load_settings(spark_master=master, spark_conf={"spark.authenticate": said}))
        assert conf["spark.authenticate"] == said


def test_a_jvm_puts_temporary_files_where_nobody_else_reads_them_unless_the_user_says_where(tmp_path):
    option = spark_config(load_settings())["spark.driver.defaultJavaOptions"]
    folder = Path(option.split('"')[1].removeprefix("-Djava.io.tmpdir="))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    theirs = load_settings(spark_conf={"spark.local.dir": str(tmp_path), "spark.driver.extraJavaOptions": "-Xss4m"})
    conf = spark_config(theirs)
    assert (conf["spark.local.dir"], conf["spark.driver.defaultJavaOptions"]) == (str(tmp_path), option)


@pytest.mark.parametrize(
    "options",
    [
        {"spark_master": "spark://master:7077", "spark_conf": {"spark.authenticate": "true"}},
        {"spark_conf": {"spark.pyspark.python": "/usr/bin/python3"}},
        {"spark_ship_code": "always"},
    ],
)
def test_workers_that_may_lack_this_project_are_pysparks_own(monkeypatch, options):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    assert spark_config(load_settings())[DAEMON_KEY] == DAEMON
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name)
    assert DAEMON_KEY not in spark_config(load_settings(**options))


def test_the_interpreter_of_a_clusters_machines_may_be_another_one(monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    spark_config(load_settings(spark_conf={"spark.pyspark.python": "/opt/venv/bin/python"}))
    assert os.environ["PYSPARK_PYTHON"] == "/opt/venv/bin/python"
    monkeypatch.setenv("PYSPARK_PYTHON", "/from/the/environment")
    spark_config(load_settings(spark_conf={"spark.pyspark.python": "/opt/venv/bin/python"}))
    assert os.environ["PYSPARK_PYTHON"] == "/from/the/environment"


def test_a_session_on_a_server_is_told_what_is_its_own_and_the_rest_is_named():
    settings = load_settings(
        spark_remote="sc://h:1", spark_conf={"spark.sql.shuffle.partitions": "99", "spark.executor.memory": "4g"}
    )
    conf = session_config(settings)
    assert all(key.startswith("spark.sql.") for key in conf)
    assert (conf["spark.sql.session.timeZone"], conf["spark.sql.shuffle.partitions"]) == ("UTC", "99")
    assert server_only_settings(settings) == ["spark.executor.memory"]


def test_a_lost_server_is_tried_again_and_a_refusal_is_not():
    settings = load_settings(spark_remote="sc://h:1/;token=hush", mode="production", max_retries=2)
    restarted = PySparkException("[INVALID_HANDLE.SESSION_CHANGED] The handle 1 is invalid. The server was restarted.")
    away = PySparkException("[RETRIES_EXCEEDED] The maximum number of retries has been exceeded.")  # 4.0, 4.1
    unavailable = PySparkException("<_InactiveRpcError: status = StatusCode.UNAVAILABLE details = ...")  # 4.2
    run = SimpleNamespace(run_id="one")
    context = SimpleNamespace(retry_number=0, run=run, instance=SimpleNamespace(get_run_by_id=lambda _: run))
    for error in (restarted, away, unavailable):
        assert is_session_lost(error)
        found = named(error, settings)
        assert isinstance(found, TransientError)
        assert "sc://h:1 " in str(found)
        with pytest.raises(dg.RetryRequested), errors_decide(context, settings):
            raise error
    refusal = named(PySparkException("<_InactiveRpcError: status = StatusCode.UNAUTHENTICATED details = ..."), settings)
    assert isinstance(refusal, ConfigurationError)
    assert "hush" not in str(refusal) + str(found)
    own = PySparkException("[DIVIDE_BY_ZERO] Division by zero.")
    assert not is_session_lost(own)
    assert named(own, settings) is own


def test_a_session_whose_settings_the_server_refuses_is_given_back(monkeypatch):
    """Else each run that is refused leaves one on the server until its time-out."""
    calls = []

    class Refusing:
        is_stopped = False
        client = SimpleNamespace(set_retry_policies=lambda _: None)
        conf = SimpleNamespace(set=lambda key, _: (_ for _ in ()).throw(PySparkException(f"CANNOT_MODIFY_CONFIG: {key}")))

        def stop(self):
            calls.append("stopped")

    Refusing.__module__ = "pyspark.sql.connect.session"
    builder = SimpleNamespace(channelBuilder=lambda _: SimpleNamespace(create=Refusing))
    monkeypatch.setattr("pyspark.sql.connect.session.SparkSession", SimpleNamespace(builder=builder))
    with pytest.raises(PySparkException, match="CANNOT_MODIFY_CONFIG"):
        connect(load_settings(spark_remote="sc://localhost:1"), {"spark.a": "1"})
    assert calls == ["stopped"]
    assert CONNECT_MODE not in os.environ, "classic Spark's functions would make columns for Connect"


def test_a_servers_settings_are_in_a_file_that_only_its_user_reads_and_its_token_in_none(tmp_path, monkeypatch):
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/command; env > {tmp_path}/environment\n')
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    conf = {
        "spark.jars": "/with space/a.jar",
        "spark.driver.extraJavaOptions": "-Dx=y",
        "spark.sql.x": "back\\slash, \N{VIDEO GAME} and\nline",
    }
    server = connect_server.start(conf, tmp_path / "server", port=1234, token=TOKEN, log=tmp_path / "log")
    psutil.Process(server.pid).wait(60)
    file = tmp_path / "server" / "connect.properties"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = file.read_text().splitlines()
    assert "spark.connect.grpc.binding.address=127.0.0.1" in lines
    assert "spark.connect.grpc.binding.port=1234" in lines
    assert "spark.jars=/with space/a.jar" in lines
    assert "spark.driver.extraJavaOptions=-Dx=y -XX:+ExitOnOutOfMemoryError" in lines
    assert r"spark.sql.x=back\\slash, \ud83c\udfae and\nline" in lines
    environment = (tmp_path / "environment").read_text().splitlines()
    assert "SPARK_CONNECT_AUTHENTICATE_TOKEN=hush" in environment
    assert "SPARK_REMOTE=sc://elsewhere" not in environment
    assert any(line.startswith('spark.driver.defaultJavaOptions="-Djava.io.tmpdir=') for line in lines)
    assert str(file) in (command := (tmp_path / "command").read_text())
    assert "hush" not in file.read_text() + command


def test_a_commit_names_no_file_that_only_another_machine_has(tmp_path):
    table = Table("t", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "here.parquet").write_bytes(b"12345")
    (tmp_path / "t" / "half.parquet").write_bytes(b"123")
    files = [StagedFile("t", f"{name}.parquet", 5, 1, "{}") for name in ("here", "half", "elsewhere")]
    assert unseen(table, files) == ["half.parquet", "elsewhere.parquet"]
    assert unseen(Table("t", "s3://bucket/t"), files) == []
