"""The Spark that a run of the tests is given: in the JVM that all its processes share, on a standalone cluster, or on a Connect
server.

`GAME_EVENTS_TEST_SPARK=standalone pytest game_events_tests/integration/pipeline` runs tests on that kind.
One process has one kind: PySpark's functions are either those of classic Spark or those of Connect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe

from pyspark.sql import SparkSession

import game_events_tests
from game_events.config.settings import load_settings
from game_events.plugins.local.servers import connect_server
from game_events.plugins.local.servers.server_process import find, free_ports, last_lines, listens, stop
from game_events.spark.config import packed, session_config, shares_python_environment, ship_code, spark_config
from game_events.spark.connect import TOKEN_VARIABLE, close_session, connect
from game_events_tests.support.servers.shared_servers import SharedServers, attached
from game_events_tests.support.servers.small_jvm import JAVA_OPTIONS, SMALL
from game_events_tests.support.servers.standalone import StandaloneCluster
from game_events_tests.support.waiting import until

LOCAL, STANDALONE, CONNECT = KINDS = ("local", "standalone", "connect")
#: Read when this is imported: the tests themselves see no such setting.
KIND = os.environ.get("GAME_EVENTS_TEST_SPARK", LOCAL)
assert KIND in KINDS, f"GAME_EVENTS_TEST_SPARK={KIND}: {', '.join(KINDS)}"
LOCAL_MASTER = "local[2]"
REMOTE = "GAME_EVENTS_SPARK_REMOTE"
#: The cluster of a run on one, for tests that look at its processes.
running: list[StandaloneCluster] = []


@contextmanager
def spark_of(kind: str, folder: Path, servers: Path) -> Iterator[SparkSession]:
    """A session of a kind, with S3's jars, which one over local tables is not given; `servers`: folder of the shared ones."""
    if kind == CONNECT:
        with _server(folder) as remote:
            settings = load_settings(spark_remote=remote)
            session = connect(settings, session_config(settings))
            yield session
            close_session(session)
    elif kind == STANDALONE:
        cluster = StandaloneCluster.start(folder)
        running.append(cluster)
        os.environ["SPARK_CONF_DIR"] = str(cluster.conf)
        try:
            own = {
                "spark.authenticate": "true",
                "spark.executor.memory": "512m",
                "spark.executor.cores": "1",
                "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            }
            with classic(cluster.url, own) as session:
                yield session
        finally:
            del os.environ["SPARK_CONF_DIR"]
            cluster.stop()
    else:
        with attached(SharedServers(servers).gateway()) as session:
            yield session


@contextmanager
def classic(master: str, own: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session with a JVM of this process's own."""
    builder = SparkSession.builder
    for key, value in _conf(master, own).items():
        builder = builder.config(key, value)
    session, settings = builder.getOrCreate(), load_settings(spark_master=master)
    try:
        ship_code(session, settings)
        if not shares_python_environment(settings):
            # Some tests give workers functions of their own modules.
            session.addArtifacts(str(packed(Path(game_events_tests.__file__).parent)), pyfile=True)
        yield session
    finally:
        session.stop()


def _conf(master: str, own: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings as the project makes them, with S3's jars, for a JVM that lives for some tests."""
    s3 = spark_config(
        load_settings(spark_master=master, spark_conf=own, lakehouse="s3://lake", storage_endpoint="http://127.0.0.1:9")
    )
    conf = spark_config(load_settings(spark_master=master, spark_conf={**SMALL, **own}))
    conf["spark.driver.extraJavaOptions"] += f" {JAVA_OPTIONS}"
    return conf | {"spark.jars": s3["spark.jars"]}


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """A Connect server that this process, and what it starts, uses."""
    (port,) = free_ports(1)
    token, log = token_urlsafe(32), folder / "connect.log"
    server = connect_server.start(_conf(LOCAL_MASTER, {}), folder, port=port, token=token, log=log)
    os.environ |= {TOKEN_VARIABLE: token, REMOTE: f"sc://localhost:{port}"}
    try:
        until(lambda: listens(port) or find(server) is None, 120)
        assert find(server) is not None, last_lines(log)
        yield os.environ[REMOTE]
    finally:
        stop([server])
        del os.environ[TOKEN_VARIABLE], os.environ[REMOTE]
