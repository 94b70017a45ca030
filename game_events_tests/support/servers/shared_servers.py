"""The servers of a whole test run: one broker, one registry and one Spark JVM, however many processes run the tests.

The process that the user starts makes a folder and names it in the environment; whoever needs a server first starts it there,
the others find it, and the process that made the folder stops them in the end. Tests have topics, subjects, sessions and
folders of their own. A test that breaks a server starts a small one for itself.

``GAME_EVENTS_TEST_SERVERS=/some/folder`` names a folder whose servers stay for the next run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import game_events
import game_events_tests
from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.servers.local_stack import StackState
from game_events.plugins.local.servers.server_process import ServerProcess, find, last_lines, spawn, stop
from game_events_tests.support.waiting import until

VARIABLE = "GAME_EVENTS_TEST_SERVERS"
#: Set by who made the folder: servers end with that process, however it ends.
OWNER = "GAME_EVENTS_TEST_OWNER"
GATEWAY = "gateway.json"
#: The JVM is up after some 10 s; only one that hangs takes as long as this.
START_S = 600


class Gateway(BaseModel):
    """How a process reaches the shared JVM; the port is on loopback, the token is the JVM's own secret."""

    port: int
    token: str


class SharedServers:
    """Those of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def stack(self) -> StackState:
        """A real broker and a real registry."""
        return local_stack.up(self.folder)

    def gateway(self) -> Gateway:
        """The JVM with the one Spark context (spark_jvm.py)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        known, process, log = (self.folder / name for name in (GATEWAY, "spark.json", "spark.log"))
        with (self.folder / "spark.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not known.exists() or find(_recorded(process)) is None:
                known.unlink(missing_ok=True)
                command = [
                    sys.executable,
                    "-m",
                    "game_events_tests.support.servers.spark_jvm",
                    str(known),
                    os.environ.get(OWNER, ""),
                ]
                server = spawn(command, port=0, cwd=self.folder, log=log)
                process.write_text(server.model_dump_json())
                until(lambda: known.exists() or find(server) is None, START_S, what="Spark's JVM")
                assert known.exists(), last_lines(log)
        return Gateway.model_validate_json(known.read_text())

    def stop(self) -> None:
        """End what runs and remove the folder."""
        stop([_recorded(self.folder / "spark.json")])
        local_stack.down(self.folder, delete_data=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _newest_code() -> int:
    """When a file of the project was last changed, in nanoseconds since 1970."""
    return max(f.stat().st_mtime_ns for package in (game_events, game_events_tests) for f in _folder(package).rglob("*.py"))


def _folder(package: ModuleType) -> Path:
    return Path(str(package.__file__)).parent


def _recorded(file: Path) -> ServerProcess | None:
    return ServerProcess.model_validate_json(file.read_text()) if file.exists() else None


@contextmanager
def servers_of_this_run() -> Iterator[None]:
    """A folder for the servers, named in the environment that other processes of the run inherit."""
    if VARIABLE in os.environ:
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="game-events-test-servers-"))
    os.environ |= {VARIABLE: str(folder), OWNER: str(os.getpid())}
    # By default SIGTERM would leave the servers behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        SharedServers(folder).stop()
        del os.environ[VARIABLE], os.environ[OWNER]


@contextmanager
def attached(gateway: Gateway) -> Iterator[SparkSession]:
    """A session of this process's own in the shared JVM: no setting and no view of it reaches another process's."""
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.token}
    # What workers run; read when the context is made.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        java = launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    jvm = java.jvm
    assert jvm is not None
    context = jvm.org.apache.spark.SparkContext.getOrCreate()
    wrapped = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    # Spark gives a job only workers that were started with the same environment: none that has imported older code.
    code = {"GAME_EVENTS_TEST_CODE": str(_newest_code())}
    python = SparkContext(gateway=java, jsc=wrapped, conf=SparkConf(_jconf=wrapped.getConf()), environment=code)
    own = jvm.org.apache.spark.sql.classic.SparkSession.builder().sparkContext(context).getOrCreate().newSession()
    # The first session of a process is the one that `builder.getOrCreate()` gives.
    yield SparkSession(python, own)
    # The JVM goes on; what it could still send to this process is of no interest.
    python._accumulatorServer.shutdown()
