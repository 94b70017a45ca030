"""A standalone Spark cluster from the installed PySpark: a master and workers of one core, on the loopback address only.

Each is a process with a folder and an environment of its own, as on another machine: neither the tests' PYTHONPATH nor their
working folder reaches the executors. What they share is the lakehouse's folder.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import psutil

from game_events.jvm.jars import spark_home
from game_events.jvm.private_folders import private_folder
from game_events.plugins.local.servers.server_process import (
    HOST,
    ServerProcess,
    find,
    free_ports,
    last_lines,
    listens,
    spawn,
    stop,
)
from game_events_tests.support.servers.small_jvm import JAVA_OPTIONS
from game_events_tests.support.waiting import until

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
#: What a machine of the cluster has of its own: programs, and an object store's credentials, which the executors inherit.
MACHINES_OWN = ("PATH", "JAVA_HOME", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED")


@dataclass(frozen=True)
class StandaloneCluster:
    """A running one; `url` is for `GAME_EVENTS_SPARK_MASTER`."""

    folder: Path
    #: Folder of the settings that hold the cluster's secret, for the driver too (`SPARK_CONF_DIR`).
    conf: Path
    master: ServerProcess
    workers: tuple[ServerProcess, ...]

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.master.port}"

    @classmethod
    def start(cls, folder: Path, count: int = 2) -> StandaloneCluster:
        """Start all of it, with so many workers; returns when every worker is registered."""
        (port,) = free_ports(1)
        conf = private_folder(folder / "conf")
        secret = f"spark.authenticate true\nspark.authenticate.secret {token_hex(16)}\n"
        (conf / "spark-defaults.conf").write_text(secret)
        master = _daemon(folder / "master", conf, MASTER, ["--host", HOST, "--port", str(port), "--webui-port", "0"], port)
        until(lambda: listens(port) or _fail_if_gone(master, folder / "master"), 60)
        workers = []
        for number in range(count):
            place = folder / f"worker{number}"
            options = ["--host", HOST, "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(place / "work")]
            workers.append(_daemon(place, conf, WORKER, [*options, f"spark://{HOST}:{port}"], port))
        for number, worker in enumerate(workers):
            place = folder / f"worker{number}"
            said = place / "daemon.log"
            until(lambda w=worker, p=place, s=said: _registered(s) or _fail_if_gone(w, p), 60)
        return cls(folder, conf, master, tuple(workers))

    def stop(self) -> None:
        stop([*self.workers, self.master])

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs."""
        found = []
        for worker in self.workers:
            process = find(worker)
            for child in process.children() if process is not None else ():
                with suppress(psutil.Error):  # what starts processes for a JVM ends soon
                    if EXECUTOR in child.cmdline():
                        found.append(child)
        return found


def _daemon(folder: Path, conf: Path, name: str, arguments: list[str], port: int) -> ServerProcess:
    folder.mkdir(parents=True)
    environment = {key: os.environ[key] for key in MACHINES_OWN if key in os.environ} | {
        "HOME": str(folder),
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONF_DIR": str(conf),
        # Its web page, too, listens nowhere else.
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        # `spark-class` looks for a Python only to find SPARK_HOME; executors are told by the driver which one to run.
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [str(spark_home() / "bin" / "spark-class"), name, *arguments]
    return spawn(command, port=port, cwd=folder, log=folder / "daemon.log", environment=environment)


def _registered(log: Path) -> bool:
    return "Successfully registered with master" in log.read_text(errors="replace")


def _fail_if_gone(process: ServerProcess, folder: Path) -> bool:
    assert find(process) is not None, last_lines(folder / "daemon.log")
    return False
