"""A small HTTP server of JSON whose answers a test decides; with a certificate it is one of HTTPS."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

#: (method, path with query, headers by any spelling of their names, body) -> (status, value; a text is sent as it is).
Answer = Callable[[str, str, Mapping[str, str], Any], tuple[int, Any]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Quiet: of a client that does not trust the certificate, or breaks off."""


@contextlib.contextmanager
def json_server(answer: Answer, certificate: Path | None = None) -> Iterator[str]:
    """The address of a server that ends with the block. `certificate`: PEM file of its key and chain."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(length)
            is_json = "json" in (self.headers.get("Content-Type") or "")
            body = json.loads(content) if content and is_json else content.decode()
            status, said = answer(self.command, self.path, cast("Mapping[str, str]", self.headers), body or None)
            text = (said if isinstance(said, str) else json.dumps(said)).encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = do_HEAD = _answer  # noqa: N815 - the names of the base class

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = _Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"{'https' if certificate else 'http'}://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
