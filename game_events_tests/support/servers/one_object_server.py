"""An object store with one object, in a process of its own, which keeps connections open.

Each line on stdin is answered by the number of open connections. The tests' other object store (`object_store_server`) closes
each connection after its answer.
"""

from __future__ import annotations

import sys
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers each request with the object."""

    protocol_version = "HTTP/1.1"
    connections = 0

    def handle(self) -> None:
        Handler.connections += 1
        super().handle()
        Handler.connections -= 1

    def do_HEAD(self) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": "1", "ETag": '"a"', "Last-Modified": formatdate(usegmt=True)}.items():
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(b"x")

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    for _ in sys.stdin:
        print(Handler.connections, flush=True)
