"""A Spark Connect server from the installed PySpark: one JVM for many short-lived clients, on loopback only."""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from game_events.jvm.class_archive import SPARK_HOME
from game_events.jvm.java import DEFAULT_JAVA_OPTIONS, EXTRA_JAVA_OPTIONS
from game_events.jvm.private_folders import TemporaryFolder, private_folder, process_temporary_folder
from game_events.stack import shared_workers_server
from game_events.stack.ports import HOST
from game_events.stack.server_process import ServerProcess, spawn

MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
#: A client's variables, which would make the server a client.
CLIENT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")
PLUGINS = "spark.plugins"
#: Without memory it would not answer; it exits and is restarted.
EXIT_ON_OOM = "-XX:+ExitOnOutOfMemoryError"
#: The server ends a job of a killed client after so many seconds without requests for its results. A living client requests
#: them at least every 10 s (`senderMaxStreamDuration`).
DETACHED_S, STREAM_S, CHECK_S = 30, 10, 5
#: Idle sessions cost little; after so long those of killed clients end. A continuous run creates a new one then.
SESSION_MINUTES = 30


def server_config(port: int) -> dict[str, str]:
    """Settings of the server, added to those of the application."""
    return {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.execute.manager.detachedTimeout": f"{DETACHED_S}s",
        "spark.connect.execute.manager.maintenanceInterval": f"{CHECK_S}s",
        "spark.connect.execute.reattachable.senderMaxStreamDuration": f"{STREAM_S}s",
        "spark.connect.session.manager.defaultSessionTimeout": f"{SESSION_MINUTES}m",
    }


def start(
    conf: Mapping[str, str], folder: Path, *, port: int, token: str, log: Path, shared_workers: Path | None = None
) -> ServerProcess:
    """Start a server in a working folder, which gets a file with the settings.

    `conf`, Spark's settings as for a JVM of a run's own, overrides `server_config`. Clients have the token in
    ``SPARK_CONNECT_AUTHENTICATE_TOKEN``: without one every user of the machine could use the server.
    `shared_workers`: sessions use each other's Python workers, so all of them must use this process's Python environment; the
    file is written when the server can make sessions.
    """
    private_folder(folder)
    properties = folder / "connect.properties"
    # A private file, as all users can read the command line.
    properties.unlink(missing_ok=True)
    properties.touch(mode=0o600)
    whole = server_config(port) | dict(conf)
    if shared_workers is not None:
        shared_workers.unlink(missing_ok=True)
        plugins = filter(None, (conf.get(PLUGINS), shared_workers_server.SETTINGS[PLUGINS]))
        whole |= shared_workers_server.SETTINGS | {PLUGINS: ",".join(plugins)}
    whole[EXTRA_JAVA_OPTIONS] = f"{whole.get(EXTRA_JAVA_OPTIONS, '')} {EXIT_ON_OOM}".strip()
    # Its own folder, which exists until the server ends.
    temporary = TemporaryFolder.make()
    options = whole.get(DEFAULT_JAVA_OPTIONS, "").replace(process_temporary_folder().java_option, "")
    whole[DEFAULT_JAVA_OPTIONS] = f"{temporary.java_option} {options}".strip()
    properties.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in whole.items()))
    environment = {key: value for key, value in os.environ.items() if key not in CLIENT_VARIABLES} | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        # The server, not the client, chooses the workers' interpreter.
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    # Spark's defaults as for a JVM of a run's own: they hold a cluster's secret.
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--properties-file", str(properties), "--load-spark-defaults"]
    command += ["--class", MAIN_CLASS] if shared_workers is None else [shared_workers_server.__file__, str(shared_workers)]
    try:
        return spawn(command, port=port, cwd=folder, log=log, environment=environment, inherited=(temporary.lock,))
    finally:
        os.close(temporary.lock)


_NOT_OF_JAVA = {'"': '"', "b": "\\u0008"}


def _escaped(value: str) -> str:
    """A value in a Java properties file, ISO 8859-1 (`java.util.Properties.load`)."""
    # JSON's escapes, but quotes need none, and Java has none for a backspace.
    text = re.sub(r'\\(\\|"|b)', lambda found: _NOT_OF_JAVA.get(found[1], found[0]), json.dumps(value)[1:-1])
    return "\\" + text if text.startswith(" ") else text
