"""A Spark Connect server from the installed PySpark, one JVM for many short-lived clients, behind a private Unix socket.

Any user of the machine could listen on the server's loopback port before it starts, after it died, or on the IPv6 address, and
would get the requests (Spark Connect 4.0 has no Unix socket). So clients connect to a socket in a private folder. Each
connection is forwarded to the port only after the system's tables show that the server's process has accepted it.
"""

import asyncio
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from game_events.config.network import UNIX_SOCKET
from game_events.jvm.jars import spark_home
from game_events.jvm.private_folders import TemporaryFolder, private_folder, process_temporary_folder
from game_events.plugins.local.servers import shared_workers_server
from game_events.plugins.local.servers.server_process import HOST, ServerProcess, find, spawn
from game_events.spark.config import DEFAULT_JAVA_OPTIONS, EXTRA_JAVA_OPTIONS

log = logging.getLogger(__name__)

#: A client's variables, which would make the server a client.
CLIENT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")

PLUGINS = "spark.plugins"

#: The job of a killed client ends after so long without requests for its results; a living one asks within 10 s.
DETACHED_S = 30


def server_config(port: int) -> dict[str, str]:
    """Settings of the server, added to those of the application."""
    return {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.execute.manager.detachedTimeout": f"{DETACHED_S}s",
        "spark.connect.execute.manager.maintenanceInterval": "5s",
        "spark.connect.execute.reattachable.senderMaxStreamDuration": "10s",
        # Idle sessions cost little; those of killed clients end then. A continuous run creates a new one.
        "spark.connect.session.manager.defaultSessionTimeout": "30m",
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
    # Without memory it would not answer; it exits and is restarted.
    whole[EXTRA_JAVA_OPTIONS] = f"{whole.get(EXTRA_JAVA_OPTIONS, '')} -XX:+ExitOnOutOfMemoryError".strip()
    # Its own folder, which exists until the server ends.
    temporary = TemporaryFolder.make()
    options = whole.get(DEFAULT_JAVA_OPTIONS, "").replace(process_temporary_folder().java_option, "")
    whole[DEFAULT_JAVA_OPTIONS] = f"{temporary.java_option} {options}".strip()
    properties.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in whole.items()))
    environment = {key: value for key, value in os.environ.items() if key not in CLIENT_VARIABLES} | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        # The server, not the client, chooses the workers' interpreter.
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    # Spark's defaults as for a JVM of a run's own: they hold a cluster's secret.
    command = [str(spark_home() / "bin" / "spark-submit"), "--properties-file", str(properties), "--load-spark-defaults"]
    if shared_workers is None:
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    else:
        command += [shared_workers_server.__file__, str(shared_workers)]
    try:
        return spawn(command, port=port, cwd=folder, log=log, environment=environment, inherited=(temporary.lock,))
    finally:
        os.close(temporary.lock)


_NOT_OF_JAVA = {'"': '"', "b": "\\u0008"}


def _escaped(value: str) -> str:
    """A value in a Java properties file, ISO 8859-1 (`java.util.Properties.load`)."""
    # JSON's escapes, but quotes need none, and Java has none for a backspace.
    text = re.sub(r'\\(\\|"|b)', lambda escape: _NOT_OF_JAVA.get(escape[1], escape[0]), json.dumps(value)[1:-1])
    return "\\" + text if text.startswith(" ") else text


#: Seconds within which the server must accept a connection.
ACCEPT_S = 10.0


class PrivateSocket:
    """A Unix socket that forwards to one process's port, in its own thread, until it is closed."""

    def __init__(self, path: Path, server: Callable[[], ServerProcess | None], accept_s: float = ACCEPT_S) -> None:
        """Listens at once, in a private folder, at a path of 100 characters at most; without a server it closes connections.

        `accept_s`: seconds within which the server must accept a connection.
        """
        self._server = server
        self._accept_s = accept_s
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="private_socket", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()
        self._thread.start()
        starting = asyncio.start_unix_server(self._connected, str(path))
        self._listener = asyncio.run_coroutine_threadsafe(starting, self._loop).result()

    @property
    def address(self) -> str:
        """Its address for clients."""
        return f"{UNIX_SOCKET}{self._path}"

    def close(self) -> None:
        """Close all connections and remove the socket."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._path.unlink(missing_ok=True)

    async def _end(self) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs has one
        self._connections.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the client's connection is closed, and it retries
        finally:
            writer.close()
            self._connections.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = self._server()
        if server is None:
            return
        from_server, to_server = await asyncio.open_connection(HOST, server.port)
        try:
            if not await _accepted_by(server, to_server.get_extra_info("sockname"), self._accept_s):
                said = "port=%s not_answered_by=%s the connection was closed before anything was sent"
                log.warning(said, server.port, server.pid)
                return
            ways = (_copy(reader, to_server), _copy(from_server, writer))
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            to_server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


async def _accepted_by(server: ServerProcess, ours: tuple[str, int], accept_s: float) -> bool:
    """Whether that process accepts our connection; waits until some process has."""
    pause = 0.01
    with suppress(TimeoutError):
        async with asyncio.timeout(accept_s):
            while (process := find(server)) is not None:
                if await asyncio.to_thread(_has_connection, process, server.port, ours):
                    return True
                await asyncio.sleep(pause)
                pause *= 2
    return False


def _has_connection(process: psutil.Process, port: int, peer: tuple[str, int]) -> bool:
    with suppress(psutil.Error):
        # Java's sockets are those of IPv6, with IPv4's addresses in them.
        return any(
            c.laddr.port == port and c.raddr and (c.raddr.ip.removeprefix("::ffff:"), c.raddr.port) == peer
            for c in process.net_connections("tcp")
        )
    return False
