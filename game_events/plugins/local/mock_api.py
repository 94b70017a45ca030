"""`game-events mock-api`: an HTTP receiver with chosen latency and faults, for tests, benchmarks and to try the export with.

It binds to loopback, keeps no rows, and asks for no login. Faults are drawn from a seed: they are repeatable.
"""

import asyncio
import json
import random
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from email.utils import formatdate
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from aiohttp import web

from game_events.cli.output import Json, Output
from game_events.errors import ConfigurationError

HOST = "127.0.0.1"
MAX_BODY_BYTES = 64 * 2**20
_STATUS = {"none": 200, "error": 503, "throttle": 429, "refuse": 422}
_SHARES = ("error", "throttle", "hang", "close", "accept_then_timeout", "refuse")


def mock_api(  # noqa: PLR0913, PLR0917 - the command's options
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: a free one.")] = 8088,
    latency_ms: Annotated[float, typer.Option(min=0, help="How long an answer takes.")] = 0.0,
    latency_per_row_ms: Annotated[float, typer.Option(min=0, help="And how much longer for each row.")] = 0.0,
    error_share: Annotated[float, typer.Option(min=0, max=1, help="Calls answered 503.")] = 0.0,
    throttle_share: Annotated[float, typer.Option(min=0, max=1, help="Calls answered 429 with Retry-After.")] = 0.0,
    hang_share: Annotated[float, typer.Option(min=0, max=1, help="Calls that are never answered.")] = 0.0,
    close_share: Annotated[float, typer.Option(min=0, max=1, help="Connections closed without an answer.")] = 0.0,
    accept_then_timeout_share: Annotated[
        float, typer.Option(min=0, max=1, help="Calls with rows that are taken, and without an answer.")
    ] = 0.0,
    refuse_share: Annotated[float, typer.Option(min=0, max=1, help="Calls answered 422.")] = 0.0,
    rate_limit: Annotated[float, typer.Option(min=0, help="Calls a second; more are answered 429. 0: any number.")] = 0.0,
    retry_after_s: Annotated[int, typer.Option(min=0, help="Seconds of the Retry-After header of a 429.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the choice of faults.")] = 1,
    log: Annotated[Path | None, typer.Option(help="Append a JSON line for each call: time, key, rows, status.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="With the rows in it.")] = False,
    as_json: Json = False,
) -> None:
    """Take rows on loopback until Ctrl-C; nothing is kept but the log."""
    options = locals()
    output = Output(as_json=as_json)
    faults = MockFaults(**{f.name: options[f.name] for f in fields(MockFaults)})
    with ExitStack() as closing, suppress(KeyboardInterrupt):
        try:
            lines = closing.enter_context(log.open("a")) if log is not None else None
        except OSError as error:
            raise ConfigurationError(f"--log: {log} cannot be written: {error.strerror}") from None
        api = MockApi(faults, lines, bodies=bodies)

        def ready(chosen: int) -> None:
            output.say(f"taking rows on http://{HOST}:{chosen}/ until Ctrl-C")
            output.result({"url": f"http://{HOST}:{chosen}/", "port": chosen})

        try:
            asyncio.run(api.serve(port, ready))
        except OSError as error:
            raise ConfigurationError(f"port {port} cannot be taken ({error.strerror}): choose another with --port") from None


@dataclass(frozen=True)
class MockFaults:
    """Latency and shares of faulty answers: the options of the command."""

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


class MockApi:
    """The server; it chooses each call's fault in the order of the seed."""

    def __init__(
        self, faults: MockFaults, log: TextIO | None = None, *, bodies: bool = False, max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        """Nothing listens yet.

        `log` gets a JSON line for each call, with its body if `bodies`; a body of more than `max_body_bytes` is refused.
        """
        self.faults = faults
        self._log = log
        self._bodies = bodies
        self._max_body_bytes = max_body_bytes
        self._random = random.Random(faults.seed)  # noqa: S311 - faults, not secrets
        self._recent: deque[float] = deque()
        self._as_date = True

    async def serve(
        self, port: int, ready: Callable[[int], None], tls: ssl.SSLContext | None = None, stop: asyncio.Event | None = None
    ) -> None:
        """Listen on loopback until stopped; `ready` gets the port (0 chooses a free one)."""
        app = web.Application(client_max_size=self._max_body_bytes)
        app.router.add_route("*", "/{path:.*}", self.answer)
        # Calls without an answer end when the caller gives up, or with the server.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, port, ssl_context=tls, backlog=1024).start()
            ready(runner.addresses[0][1])
            await (stop or asyncio.Event()).wait()
        finally:
            await runner.cleanup()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The answer to a call, once its latency is over."""
        arrived = time.time()
        if request.method != "POST":
            return web.Response(status=200 if request.method in {"GET", "HEAD"} else 204)
        key = request.headers.get("Idempotency-Key", "")
        body = await request.read()
        try:
            content = json.loads(body)
        except ValueError:
            return web.Response(status=400)
        rows = len(content) if isinstance(content, list) else 1
        fault = self._fault()
        self.note(key, body, rows, _STATUS.get(fault, fault), arrived)
        if fault not in _STATUS:
            await self._never(request, fault)
        if fault == "none":
            await asyncio.sleep((self.faults.latency_ms + self.faults.latency_per_row_ms * rows) / 1000)
        if fault == "refuse":
            return self.refused(request, 422)
        headers = {"Retry-After": self._retry_after()} if fault == "throttle" else {}
        return web.Response(status=_STATUS[fault], text="{}", headers=headers)

    @staticmethod
    async def _never(request: web.Request, fault: str) -> None:
        """No answer: wait until the connection ends, which this server or the caller closes."""
        if fault == "close" and request.transport is not None:
            request.transport.abort()
        await asyncio.Event().wait()

    @staticmethod
    def refused(request: web.Request, status: int) -> web.Response:
        """An answer that repeats a header of the request, as real services do: it must be masked wherever it is logged."""
        return web.json_response(
            {"error": "not taken", "authorization": request.headers.get("Authorization", "")}, status=status
        )

    def note(self, key: str, body: bytes, rows: int, status: int | str, arrived: float) -> None:
        """Log a call: its key, rows, answer, and arrival (seconds since 1970)."""
        if self._log is not None:
            accepted = status in {200, "accept_then_timeout"}
            entry: dict[str, Any] = {"time": arrived, "key": key, "rows": rows, "status": status, "accepted": accepted}
            if self._bodies:
                entry["body"] = json.loads(body) if body else None
            self._log.write(json.dumps(entry) + "\n")
            self._log.flush()

    def _fault(self) -> str:
        """The fault of the call that has just arrived; "none": none."""
        drawn = self._random.random()
        for name in _SHARES:
            drawn -= getattr(self.faults, f"{name}_share")
            if drawn < 0:
                return name
        return "throttle" if self._too_many() else "none"

    def _retry_after(self) -> str:
        """The header of a 429: seconds and an HTTP date by turns, as both are in use."""
        self._as_date = not self._as_date
        if self._as_date:
            # A date has whole seconds: one more, so that it is never past.
            return formatdate(time.time() + self.faults.retry_after_s + 1, usegmt=True)
        return str(self.faults.retry_after_s)

    def _too_many(self) -> bool:
        if not self.faults.rate_limit:
            return False
        now = time.monotonic()
        while self._recent and self._recent[0] <= now - 1.0:
            self._recent.popleft()
        if len(self._recent) >= self.faults.rate_limit:
            return True
        self._recent.append(now)
        return False
