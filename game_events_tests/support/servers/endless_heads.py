"""A server whose answers never come to their body."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

#: Kind -> how each answer begins, and what follows without end.
KINDS = {
    "drip": (b"HTTP/1.1 200 OK\r\nX-A: ", b"a"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
}


@dataclass
class EndlessHeads:
    """A running server.

    Attributes:
        address: host and port.
        asked: connections that there were.
        open: connections that there are.
    """

    kind: str
    address: str = ""
    asked: int = 0
    open: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def _answer(self, connection: socket.socket) -> None:
        first, more = KINDS[self.kind]
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(first)
            # Each piece comes long before a time-out of one read.
            while not self.stop.wait(0.05):
                connection.sendall(more)
        self.open -= 1

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection = listener.accept()[0]
                self.asked, self.open = self.asked + 1, self.open + 1
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()


@contextmanager
def endless_heads(kind: str) -> Iterator[EndlessHeads]:
    """A server of a kind."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        served = EndlessHeads(kind, f"127.0.0.1:{listener.getsockname()[1]}")
        threading.Thread(target=served._serve, args=[listener], daemon=True).start()
        try:
            yield served
        finally:
            served.stop.set()
            listener.shutdown(socket.SHUT_RDWR)
