"""A small HTTP server that takes rows, is as slow and as faulty as it is told to be, and logs every call.

For tests, benchmarks and for trying an export out. It binds to loopback only, keeps nothing, and wants no login unless it is
given one. Straight on httptools, the parser that uvicorn uses: it must not be what a benchmark measures.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

import httptools

from game_events.sinks.http.mock.faults import FaultChoice, MockFaults

HOST = "127.0.0.1"
_REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    413: "Content Too Large",
    422: "Unprocessable",
    429: "Too Many",
    503: "Unavailable",
}
#: Bytes of a body; of a longer one the rest is read and forgotten.
MAX_BODY_BYTES = 64 * 2**20
_STATUS = {"none": 200, "error": 503, "throttle": 429, "refuse": 422}


class MockApi:
    """The server's state: what it does to calls, and what came."""

    def __init__(
        self,
        faults: MockFaults,
        log: TextIO | None = None,
        *,
        bodies: bool = False,
        authorization: tuple[str, str] | None = None,
    ) -> None:
        """Nothing listens yet.

        Args:
            faults: latency and faults.
            log: gets a JSON line for each call.
            bodies: whether the lines hold the bodies.
            authorization: a header and the value that it must have, or the answer is 401.
        """
        self.faults, self._log, self._bodies = faults, log, bodies
        self.authorization = authorization
        self.choice = FaultChoice(faults)
        self.calls = self.rows = 0

    def note(self, key: str, body: bytes, rows: int, status: int | str, came: float) -> None:
        """Log a call: its key, rows, answer, and when it came (seconds since 1970)."""
        self.calls += 1
        accepted = status in (200, "accept_then_timeout")
        self.rows += rows if accepted else 0
        if self._log is not None:
            entry: dict[str, Any] = {"time": came, "key": key, "rows": rows, "status": status, "accepted": accepted}
            if self._bodies:
                entry["body"] = json.loads(body) if body else None
            self._log.write(json.dumps(entry) + "\n")
            self._log.flush()

    async def serve(
        self, port: int, ready: Callable[[int], None], tls: tuple[Path, Path] | None = None, stop: asyncio.Event | None = None
    ) -> None:
        """Listen on loopback until stopped; `ready` is told the port (0 chooses a free one)."""
        loop = asyncio.get_running_loop()
        context = None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
        server = await loop.create_server(lambda: _Connection(self), HOST, port, ssl=context, backlog=1024)
        async with server:
            ready(server.sockets[0].getsockname()[1])
            await (stop.wait() if stop is not None else asyncio.Event().wait())


class _Connection(asyncio.Protocol):
    """One kept-alive connection; calls on it come one after the other."""

    def __init__(self, api: MockApi) -> None:
        self._api = api
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._close()

    # --- called by the parser

    def on_message_begin(self) -> None:
        self._headers, self._body, self._size = {}, [], 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_BODY_BYTES:
            self._body.clear()
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        came, api = time.time(), self._api
        wanted = api.authorization
        allowed = wanted is None or self._headers.get(wanted[0].lower()) == wanted[1]
        method = self._parser.get_method()
        if method != b"POST":
            self._answer(401 if not allowed else 200 if method in (b"GET", b"HEAD") else 204)
            return
        body = b"".join(self._body)
        key = self._headers.get("idempotency-key", "")
        if not allowed:
            api.note(key, body, 0, 401, came)
            self._answer(401)
            return
        if self._size > MAX_BODY_BYTES:
            self._answer(413)
            return
        try:
            content = json.loads(body)
        except ValueError:
            self._answer(400)
            return
        rows = len(content) if isinstance(content, list) else 1
        fault = api.choice.next()
        wait = api.faults.latency_s(rows) if fault in ("none", "accept_then_timeout") else 0.0
        api.note(key, body, rows, _STATUS.get(fault, fault), came)
        if fault == "close":
            self._close()
        elif fault in ("hang", "accept_then_timeout"):
            return
        elif wait:
            asyncio.get_running_loop().call_later(wait, self._answer, _STATUS[fault])
        else:
            self._answer(_STATUS[fault], {"Retry-After": api.choice.retry_after()} if fault == "throttle" else {})

    # ---

    def _answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        if self._transport is None:
            return
        # What a refusal repeats of the request, as real services do: nobody may log it unmasked.
        body = b'{"error": "not taken", "authorization": "%s"}' % self._headers.get("authorization", "").encode()
        content = b"" if self._parser.get_method() != b"POST" else body if status in (401, 422) else b"{}"
        lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + content)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
