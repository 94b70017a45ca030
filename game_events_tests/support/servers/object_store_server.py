"""An S3-compatible server for the tests, in a process of its own: moto's, behind what a real store does and moto does not.

Real stores decide a conditional PUT atomically and refuse unknown keys; they also fail, and are away. What it shall do next is
told on stdin, one line each, answered by the same line on stdout:

    down            close the port; connections that are open break
    up              open it again; what was stored is still there
    fail STATUS N   answer the next N requests with this status
    deny [TEXT]     refuse every request with this text in its path, none without a text
    unsafe          from now on ignore the condition of a conditional PUT, as older stores do
    safe            honour it again
    key KEY         from now on this key alone is known
    wait MS         let every request wait so many milliseconds, as a store in another building does
    requests        answered by the number of requests so far
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from game_events.lakehouse.storage import WRITERS

#: Only reached by who writes alone.
RIVALS_WAIT_S = 60.0
REFUSED = "<Error><Code>InvalidAccessKeyId</Code><Message>The access key does not exist in our records.</Message></Error>"
FAILED = "<Error><Code>{code}</Code><Message>Please reduce your request rate.</Message></Error>"
CODES = {503: "SlowDown", 500: "InternalError", 403: "AccessDenied"}


class Quiet(WSGIRequestHandler):
    """No line for each request."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *_: object) -> None:
        pass


class Store:
    """The WSGI application."""

    def __init__(self, key: str) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self.key = key
        # moto answers some of several concurrent writes of one key with status 500; a client's retry would meet no rival.
        self._one_write = threading.Lock()
        self._rivals = threading.Barrier(WRITERS)
        self.fail: tuple[int, int] = (0, 0)
        self.requests = 0
        self.unsafe = False
        self.deny = ""
        self.wait_s = 0.0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.requests += 1
        time.sleep(self.wait_s)
        status, left = self.fail
        if left > 0:
            self.fail = (status, left - 1)
            return self._answer(environ, start_response, status, FAILED.format(code=CODES.get(status, "InternalError")))
        if f"Credential={self.key}/" not in environ.get("HTTP_AUTHORIZATION", ""):
            return self._answer(environ, start_response, 403, REFUSED)
        if self.deny and self.deny in environ.get("PATH_INFO", ""):
            return self._answer(environ, start_response, 403, FAILED.format(code=CODES[403]))
        conditional = "HTTP_IF_NONE_MATCH" in environ
        if self.unsafe and environ.pop("HTTP_IF_NONE_MATCH", None):
            # All rivals have looked before the first of them has written: on a slow machine, too.
            with suppress(threading.BrokenBarrierError):
                self._rivals.wait(RIVALS_WAIT_S)
        if conditional:
            with self._one_write:
                return list(self._app(environ, start_response))
        return list(self._app(environ, start_response))

    @staticmethod
    def _answer(environ: dict[str, Any], start_response: Callable[..., Any], status: int, body: str) -> Iterable[bytes]:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(f"{status} no", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body.encode()]


def serve(store: Store, port: int) -> BaseWSGIServer:
    server = make_server("127.0.0.1", port, store, threaded=True, request_handler=Quiet)
    server.daemon_threads = True  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


def main() -> None:
    store = Store(sys.argv[1])
    server = serve(store, 0)
    port = server.server_port
    print(port, flush=True)
    for line in sys.stdin:
        words = line.split()
        answer = line.strip()
        if words[0] == "down":
            server.shutdown()
            server.server_close()
        elif words[0] == "up":
            server = serve(store, port)
        elif words[0] == "fail":
            store.fail = (int(words[1]), int(words[2]))
        elif words[0] == "deny":
            store.deny = "".join(words[1:])
        elif words[0] in ("safe", "unsafe"):
            store.unsafe = words[0] == "unsafe"
        elif words[0] == "key":
            store.key = words[1]
        elif words[0] == "wait":
            store.wait_s = float(words[1]) / 1_000
        elif words[0] == "requests":
            answer = str(store.requests)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
