"""The mock API in a thread, and what it was sent."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from game_events.plugins.local.mock_api import MAX_BODY_BYTES, MockApi, MockFaults


class LockedApi(MockApi):
    """Answers 401 to calls without a header of that value (`authorization`); None: to none."""

    authorization: tuple[str, str] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.authorization is None or request.headers.get(self.authorization[0]) == self.authorization[1]:
            return await super().answer(request)
        if request.method == "POST":
            self.note(request.headers.get("Idempotency-Key", ""), await request.read(), 0, 401, time.time())
        return self.refused(request, 401)


class Receiver:
    """A receiver that runs, and its log."""

    def __init__(self, api: MockApi, log: Path, port: int, scheme: str) -> None:
        self.api, self._log, self.port = api, log, port
        self.url = f"{scheme}://127.0.0.1:{port}/rows"

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Every call that came, in order."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the calls that it took, repeated ones too."""
        return [row for call in self.calls if call["accepted"] for row in _rows(call["body"])]

    def bodies_by_key(self) -> dict[str, set[str]]:
        """Key -> the different bodies that came under it."""
        found: dict[str, set[str]] = {}
        for call in self.calls:
            found.setdefault(call["key"], set()).add(json.dumps(call["body"]))
        return found

    def busiest(self, seconds: float) -> int:
        """Most calls that came in any window of so many seconds."""
        return busiest(sorted(call["time"] for call in self.calls), seconds)

    @property
    def keys(self) -> Counter[str]:
        """Key -> calls that were taken."""
        return Counter(call["key"] for call in self.calls if call["accepted"])


def busiest(times: list[float], seconds: float) -> int:
    """Most of these moments, in order, that lie in any window of so many seconds."""
    start = most = 0
    for end, at in enumerate(times):
        while times[start] <= at - seconds:
            start += 1
        most = max(most, end - start + 1)
    return most


def _rows(body: Any) -> list[dict[str, Any]]:
    return body if isinstance(body, list) else [body]


@contextmanager
def receiving(
    log: Path,
    tls: tuple[Path, Path] | None = None,
    authorization: tuple[str, str] | None = None,
    port: int = 0,
    max_body_bytes: int = MAX_BODY_BYTES,
    **faults: Any,
) -> Iterator[Receiver]:
    """While it listens; `max_body_bytes` as of `MockApi`, `faults` as of `MockFaults`."""
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    ports: list[int] = []

    def ready(found: int) -> None:
        ports.append(found)
        started.set()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
    if context is not None:
        context.load_cert_chain(*tls)
    with log.open("a") as out:
        api = LockedApi(MockFaults(**faults), out, bodies=True, max_body_bytes=max_body_bytes)
        api.authorization = authorization
        thread = threading.Thread(target=lambda: loop.run_until_complete(api.serve(port, ready, context, stop)), daemon=True)
        thread.start()
        assert started.wait(10)
        try:
            yield Receiver(api, log, ports[0], "https" if tls else "http")
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(10)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
