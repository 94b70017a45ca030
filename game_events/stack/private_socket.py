"""A private Unix socket in front of a server on a loopback port, with a check of the process that accepts the connection.

Any user of the machine could listen on the port before the server starts, after it died, or on the IPv6 address, and would get
the requests (Spark Connect 4.0 has no Unix socket). So clients connect to a socket in a private folder. Each connection is
forwarded to the port only after the system's tables show that the server's process has accepted it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from game_events.config.local_addresses import UNIX_SOCKET
from game_events.stack.ports import HOST
from game_events.stack.server_process import ServerProcess, find

log = logging.getLogger(__name__)
#: Seconds within which the server must accept a connection; seconds until the first check, doubled each time.
ACCEPT_S, CHECK_S = 10.0, 0.01
CHUNK_BYTES = 1 << 16


class PrivateSocket:
    """A Unix socket that forwards to one process's port, in its own thread, until it is closed."""

    def __init__(self, path: Path, server: Callable[[], ServerProcess | None], accept_s: float = ACCEPT_S) -> None:
        """Listens at once, in a private folder, at a path of 100 characters at most; without a server it closes connections.

        `accept_s`: seconds within which the server must accept a connection.
        """
        self._server, self._accept_s = server, accept_s
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
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


async def _accepted_by(server: ServerProcess, ours: tuple[str, int], accept_s: float) -> bool:
    """Whether that process accepts our connection; waits until some process has."""
    pause = CHECK_S
    with suppress(TimeoutError):
        async with asyncio.timeout(accept_s):
            while (process := find(server)) is not None:
                if await asyncio.to_thread(_has_connection, process, server.port, ours):
                    return True
                await asyncio.sleep(pause)
                pause *= 2
    return False


def _has_connection(process: psutil.Process, port: int, peer: tuple[str, int]) -> bool:
    """Whether a process holds a connection from `port` to `peer`."""
    with suppress(psutil.Error):
        # Java's sockets are those of IPv6, with IPv4's addresses in them.
        return any(
            c.laddr.port == port and c.raddr and (c.raddr.ip.removeprefix("::ffff:"), c.raddr.port) == peer
            for c in process.net_connections("tcp")
        )
    return False
