"""A small proxy in front of the real registry: it hides ids, refuses, breaks, stalls, wants a login, counts what was asked."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

#: (status, content type, body) instead of the registry's answer; None: ask the registry.
Answer = tuple[int, str, bytes] | None
JSON = "application/vnd.schemaregistry.v1+json"


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Quiet: of a client that shows no certificate, or breaks off."""


class RegistryProxy:
    """Attributes: `url`; `answer`, a function of the path that a test may replace at any time; `asked`, the paths so far.

    `takes`: of a token whether it is taken; None: none is wanted. `certificate`: PEM file of the proxy's key and chain, for
    https; `authority`: PEM file of the authority whose certificates clients must show.
    """

    def __init__(self, upstream: str, certificate: Path | None = None, authority: Path | None = None) -> None:
        self._upstream = urlsplit(upstream)
        self.answer: Callable[[str], Answer] = lambda _: None
        self.asked: list[str] = []
        self.takes: Callable[[str], bool] | None = None
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.removeprefix(proxy._upstream.path)
                proxy.asked.append(path)
                token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
                refused = proxy.takes is not None and not proxy.takes(token)
                given = (401, JSON, b'{"error_code":40101,"message":"no such token"}') if refused else proxy.answer(path)
                status, kind, body = given if given is not None else proxy._forward(self.path)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            if authority is not None:
                context.load_verify_locations(authority)
                context.verify_mode = ssl.CERT_REQUIRED
            # The handshake is made in the thread of each connection.
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        base = "https://localhost" if certificate else "http://127.0.0.1"
        self.url = f"{base}:{self._server.server_port}{self._upstream.path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _forward(self, path: str) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(self._upstream.hostname or "", self._upstream.port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", JSON), answer.read()
        finally:
            connection.close()

    # --- what it can be told to do

    def hide(self, *schema_ids: int) -> None:
        """These ids are unknown, and no subject has a version of them: as if they were not registered yet."""

        def answer(path: str) -> Answer:
            if any(
                path.startswith(f"/schemas/ids/{i}") and not path[len(f"/schemas/ids/{i}") :][:1].isdigit() for i in schema_ids
            ):
                return 404, JSON, b'{"error_code":40403,"message":"Schema not found"}'
            return (404, JSON, b'{"error_code":40401,"message":"Subject not found"}') if path.startswith("/subjects") else None

        self.answer = answer

    def rename(self, names: Mapping[int, int]) -> None:
        """These ids are there, too: each with the schema of another one."""

        def answer(path: str) -> Answer:
            number = path.removeprefix("/schemas/ids/").partition("?")[0]
            known = names.get(int(number)) if path.startswith("/schemas/ids/") and number.isdigit() else None
            return self._forward(f"{self._upstream.path}/schemas/ids/{known}") if known is not None else None

        self.answer = answer

    def show_all(self) -> None:
        """As the registry is."""
        self.answer = lambda _: None

    def always(self, status: int, body: bytes = b"{}", kind: str = JSON, after_s: float = 0.0) -> None:
        """Every question gets this answer, after a while."""

        def answer(_: str) -> Answer:
            time.sleep(after_s)
            return status, kind, body

        self.answer = answer


@contextlib.contextmanager
def registry_proxy(upstream: str, certificate: Path | None = None, authority: Path | None = None) -> Iterator[RegistryProxy]:
    """A proxy that ends with the block."""
    proxy = RegistryProxy(upstream, certificate, authority)
    try:
        yield proxy
    finally:
        proxy.close()
