"""HTTP receiver with chosen latency and faults, for tests, benchmarks and for trying an export out.

It binds to loopback, keeps no rows, and asks for no login unless it is given one. Faults are drawn from a seed: they are
repeatable.
"""

import asyncio
import json
import random
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, TextIO

from aiohttp import web

HOST = "127.0.0.1"
MAX_BODY_BYTES = 64 * 2**20
_STATUS = {"none": 200, "error": 503, "throttle": 429, "refuse": 422}
_SHARES = ("error", "throttle", "hang", "close", "accept_then_timeout", "refuse")


@dataclass(frozen=True)
class MockFaults:
    """Latency and shares of faulty answers.

    Attributes:
        latency_ms, latency_per_row_ms: time until an answer.
        error_share: 503.
        throttle_share: 429 with `Retry-After`, in seconds and as a date by turns.
        hang_share: no answer, nothing accepted.
        close_share: the connection is closed without an answer, nothing accepted.
        accept_then_timeout_share: the rows are accepted, the answer never comes.
        refuse_share: 422: nothing accepted, and a retry would not help.
        rate_limit: calls a second; more are answered 429. 0: any number.
        retry_after_s: value of `Retry-After`.
        seed: of the choice.
    """

    latency_ms: float = 0.0
    latency_per_row_ms: float = 0.0
    error_share: float = 0.0
    throttle_share: float = 0.0
    hang_share: float = 0.0
    close_share: float = 0.0
    accept_then_timeout_share: float = 0.0
    refuse_share: float = 0.0
    rate_limit: float = 0.0
    retry_after_s: int = 1
    seed: int = 1

    def latency_s(self, rows: int) -> float:
        """Seconds that a call with so many rows takes."""
        return (self.latency_ms + self.latency_per_row_ms * rows) / 1000


class FaultChoice:
    """Fault of each call, in the order of the seed."""

    def __init__(self, faults: MockFaults) -> None:
        self._faults = faults
        self._random = random.Random(faults.seed)  # noqa: S311 - faults, not secrets
        self._recent: deque[float] = deque()
        self._as_date = True

    def next(self) -> str:
        """The fault of the call that has just arrived; "none": none."""
        drawn = self._random.random()
        for name in _SHARES:
            drawn -= getattr(self._faults, f"{name}_share")
            if drawn < 0:
                return name
        return "throttle" if self._too_many() else "none"

    def retry_after(self) -> str:
        """The header of a 429: seconds and an HTTP date by turns, as both are in use."""
        self._as_date = not self._as_date
        if self._as_date:
            # A date has whole seconds: one more, so that it is never past.
            return formatdate(time.time() + self._faults.retry_after_s + 1, usegmt=True)
        return str(self._faults.retry_after_s)

    def _too_many(self) -> bool:
        if not self._faults.rate_limit:
            return False
        now = time.monotonic()
        while self._recent and self._recent[0] <= now - 1.0:
            self._recent.popleft()
        if len(self._recent) >= self._faults.rate_limit:
            return True
        self._recent.append(now)
        return False


class MockApi:
    """The server, and counts of its calls and accepted rows."""

    def __init__(
        self,
        faults: MockFaults,
        log: TextIO | None = None,
        *,
        bodies: bool = False,
        authorization: tuple[str, str] | None = None,
    ) -> None:
        """Nothing listens yet.

        `log` gets a JSON line for each call, with its body if `bodies`; without the header and value of `authorization` the
        answer is 401.
        """
        self.faults, self._log, self._bodies = faults, log, bodies
        self.authorization = authorization
        self.choice = FaultChoice(faults)
        self.calls = self.rows = 0

    async def serve(
        self, port: int, ready: Callable[[int], None], tls: tuple[Path, Path] | None = None, stop: asyncio.Event | None = None
    ) -> None:
        """Listen on loopback until stopped; `ready` gets the port (0 chooses a free one)."""
        context = None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._answer)
        # Calls without an answer end when the caller gives up, or with the server.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, port, ssl_context=context, backlog=1024).start()
            ready(runner.addresses[0][1])
            await (stop or asyncio.Event()).wait()
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        arrived, required = time.time(), self.authorization
        allowed = required is None or request.headers.get(required[0]) == required[1]
        if request.method != "POST":
            return web.Response(status=401 if not allowed else 200 if request.method in {"GET", "HEAD"} else 204)
        key, body = request.headers.get("Idempotency-Key", ""), await request.read()
        if not allowed:
            self._note(key, body, 0, 401, arrived)
            return self._refused(request, 401)
        try:
            content = json.loads(body)
        except ValueError:
            return web.Response(status=400)
        rows = len(content) if isinstance(content, list) else 1
        fault = self.choice.next()
        self._note(key, body, rows, _STATUS.get(fault, fault), arrived)
        if fault == "close" and request.transport is not None:
            request.transport.abort()
        if fault not in _STATUS:
            await asyncio.Event().wait()  # until the connection ends
        if fault == "none":
            await asyncio.sleep(self.faults.latency_s(rows))
        if fault == "refuse":
            return self._refused(request, 422)
        headers = {"Retry-After": self.choice.retry_after()} if fault == "throttle" else {}
        return web.Response(status=_STATUS[fault], text="{}", headers=headers)

    @staticmethod
    def _refused(request: web.Request, status: int) -> web.Response:
        """An answer that repeats a header of the request, as real services do: it must be masked wherever it is logged."""
        return web.json_response(
            {"error": "not taken", "authorization": request.headers.get("Authorization", "")}, status=status
        )

    def _note(self, key: str, body: bytes, rows: int, status: int | str, arrived: float) -> None:
        """Log a call: its key, rows, answer, and arrival (seconds since 1970)."""
        self.calls += 1
        accepted = status in {200, "accept_then_timeout"}
        self.rows += rows if accepted else 0
        if self._log is not None:
            entry: dict[str, Any] = {"time": arrived, "key": key, "rows": rows, "status": status, "accepted": accepted}
            if self._bodies:
                entry["body"] = json.loads(body) if body else None
            self._log.write(json.dumps(entry) + "\n")
            self._log.flush()
