"""A Spark Connect server from the installed PySpark: one JVM that many short-lived clients share, on loopback only."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

from game_events.jvm.java import DEFAULT_JAVA_OPTIONS
from game_events.jvm.private_folders import TemporaryFolder, private_folder
from game_events.stack.ports import HOST, listens
from game_events.stack.server_process import ServerProcess, spawn

MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
SPARK_HOME = Path(pyspark.__file__).parent
#: Variables of a client's process that would make the server one.
CLIENTS_OWN = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: Without memory it would answer nobody, and look alive: it is to end, and be started again.
ENDS = "-XX:+ExitOnOutOfMemoryError"
#: A client that was killed in mid-run cannot end its job: the server does so when nobody has asked for its results for so long.
#: A client that lives asks at least every 10 s (`senderMaxStreamDuration`).
DETACHED_S, STREAM_S, LOOK_S = 30, 10, 5
#: An idle session costs next to nothing; those of clients that were killed go after so long. A continuous run that was idle for
#: longer makes another one.
SESSION_MINUTES = 30


def remote(port: int) -> str:
    """The address for clients of this machine that trust the port: others could listen on it when the server does not."""
    return f"sc://localhost:{port}"


def new_token() -> str:
    """What clients have to know; a server on loopback could be used by every user of the machine otherwise."""
    return secrets.token_urlsafe(32)


def server_config(port: int) -> dict[str, str]:
    """What makes a Spark application a server for clients that come and go."""
    return {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.execute.manager.detachedTimeout": f"{DETACHED_S}s",
        "spark.connect.execute.manager.maintenanceInterval": f"{LOOK_S}s",
        "spark.connect.execute.reattachable.senderMaxStreamDuration": f"{STREAM_S}s",
        "spark.connect.session.manager.defaultSessionTimeout": f"{SESSION_MINUTES}m",
    }


def start(conf: Mapping[str, str], folder: Path, *, port: int, token: str, log: Path) -> ServerProcess:
    """Start a server.

    Args:
        conf: Spark's settings: those of the JVM that runs would start for themselves; `server_config` is added, and what `conf`
            says of the same goes first.
        folder: its working folder; a file with the settings is made in it.
        port: to listen on.
        token: clients have it in ``SPARK_CONNECT_AUTHENTICATE_TOKEN``.
        log: file of its output.
    """
    private_folder(folder)
    properties = folder / "connect.properties"
    # In a file that only this user reads, as a command line is everybody's.
    properties.unlink(missing_ok=True)
    properties.touch(mode=0o600)
    whole = server_config(port) | dict(conf)
    whole[JAVA_OPTIONS] = f"{whole.get(JAVA_OPTIONS, '')} {ENDS}".strip()
    # Of its own, as it goes with the server, whoever has started that.
    temporary = TemporaryFolder.make()
    whole[DEFAULT_JAVA_OPTIONS] = temporary.java_option
    properties.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in whole.items()))
    environment = {key: value for key, value in os.environ.items() if key not in CLIENTS_OWN} | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        # The server, not the client, says which interpreter workers run.
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--properties-file", str(properties)]
    # As for a JVM of a run's own: a cluster's secret is in them.
    command += ["--load-spark-defaults", "--class", MAIN_CLASS]
    try:
        return spawn(command, port=port, cwd=folder, log=log, environment=environment, inherited=(temporary.lock,))
    finally:
        os.close(temporary.lock)


def is_healthy(port: int) -> bool:
    """Whether it takes clients: it listens only when its Spark is ready."""
    return listens(port)


def _escaped(value: str) -> str:
    """A value in a Java properties file, ISO 8859-1 (`java.util.Properties.load`)."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    text = "".join(c if " " <= c <= "~" else "".join(f"\\u{ord(u):04x}" for u in _utf16(c)) for c in text)
    return "\\" + text if text.startswith(" ") else text


def _utf16(character: str) -> str:
    data = character.encode("utf-16-be")
    return "".join(chr(int.from_bytes(data[i : i + 2], "big")) for i in range(0, len(data), 2))
