"""A real HTTP server that takes alerts, and can be told to be busy, to refuse, or to hang."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "planted-token-51c2"


class Receiver:
    """What came, and what to answer next."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        #: Answers of the next requests: a status, or seconds to hang; then 200.
        self.next: list[int | float] = []
        #: Where its answers lead.
        self.location: str | None = None
        #: Requests there were, also those that were refused, with their methods.
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append("GET")
                self.send_response(200)
                self.end_headers()

            def do_POST(self) -> None:
                outer.asked.append("POST")
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = outer.next.pop(0) if outer.next else 200
                if isinstance(answer, float):
                    time.sleep(answer)
                    answer = 200
                if answer == 200:
                    outer.bodies.append(body)
                    outer.headers.append(dict(self.headers))
                self.send_response(answer)
                if outer.location is not None:
                    self.send_header("Location", outer.location)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where alerts go: with a token, as real webhooks have one."""
        return f"http://127.0.0.1:{self._server.server_port}/hook/{TOKEN}"

    @property
    def events(self) -> list[str]:
        """What was told, in order."""
        return [body["event"] for body in self.bodies]

    @contextmanager
    def running(self) -> Iterator[Receiver]:
        """While it takes alerts."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield self
        self._server.shutdown()
        self._server.server_close()
        thread.join()
