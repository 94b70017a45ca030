"""A real Hive metastore, as a server of its own: Hive 2.3.10 of PySpark's jars, with a Derby database in a folder."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from game_events.jvm.jars import find_java, spark_home
from game_events.plugins.local.servers.server_process import HOST, free_ports
from game_events_tests.support.servers.small_jvm import JAVA_OPTIONS
from game_events_tests.support.waiting import until


class HiveMetastore:
    """Started and stopped as often as wanted: the database outlives the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        values = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"{folder}/warehouse",
            # Else it needs a package for its log that PySpark does not have.
            "hive.async.log.enabled": "false",
        }
        properties = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in values.items()
        )
        folder.mkdir(exist_ok=True)
        (folder / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")

    @property
    def uri(self) -> str:
        return f"thrift://{HOST}:{self._port}"

    @property
    def spark_conf(self) -> dict[str, str]:
        """Of a session that uses it."""
        return {"spark.hadoop.hive.metastore.uris": self.uri, "spark.sql.warehouse.dir": f"{self._folder}/warehouse"}

    def start(self) -> None:
        class_path = f"{self._folder}:{spark_home()}/jars/*"
        command = [str(find_java()), *JAVA_OPTIONS.split(), "-cp", class_path]
        command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self._port)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self._answers, 60)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        process = self._process
        assert process is not None
        assert process.poll() is None, (self._folder / "log").read_text()[-3000:]
        with socket.socket() as client:
            return client.connect_ex((HOST, self._port)) == 0


@contextmanager
def hive_metastore(folder: Path) -> Iterator[HiveMetastore]:
    """One that runs, and ends with the block."""
    server = HiveMetastore(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
