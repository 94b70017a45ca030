"""Central rate limiter of an export: a WebSocket server beside the driver, and the client of Spark's tasks.

One server grants each call: a fixed share of the limit for each task would waste it whenever tasks are uneven, wait for a
`Retry-After`, or fewer of them run than were planned. It listens on loopback unless the executors are on other machines, and
answers only clients that have the run's token.

Protocol, over one connection for each task: an empty message asks for a call, the server answers with the call's number when it
may be made, and the client sends the number back when the call is over.

Sliding-window rate limit over all tasks' calls: the decision alone, without clock or network.

A call counts from its grant until one window after its latest possible arrival at the receiver: `GRACE_S` after the
grant, or earlier once it is answered, by the quickest answer seen (way there, receiver's work and way back together).

Guarantee: if every call arrives within `GRACE_S` of its grant, no window [t, t + 1 s) or [t, t + 60 s) of the receiver's
clock, wherever it begins, has more calls than the limit. (GCRA over a window longer by one round trip has the same guarantee,
but uses only 91% of a limit per second at a latency of 95 ms, where this uses more than 95%.)
"""

import asyncio
import hmac
import logging
import secrets
import socket
import threading
from bisect import bisect_left, bisect_right, insort
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import aiohttp
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from game_events.config.network import LOOPBACK, is_loopback, workers_are_local
from game_events.config.settings import Settings
from game_events.errors import TransientError
from game_events.plugins.export.settings import ExportSettings

#: Seconds within which a granted call reaches the receiver.
GRACE_S = 0.5

#: Margin in seconds, and the share of the quickest answer that is relied on: on a busy machine even that one was delayed.
SLACK_S, RELIED_ON = 0.02, 0.9

#: Answers from which on the quickest is known: the first ones may all have been delayed. The newest `REMEMBERED` count.
KNOWN, REMEMBERED = 20, 5_000


@dataclass
class RateWindow:
    """Sliding windows of (calls, seconds) for each limit; times in seconds of one clock; `grace_s`: as `GRACE_S`."""

    windows: tuple[tuple[int, float], ...]
    grace_s: float = GRACE_S
    _open: dict[int, float] = field(default_factory=dict)  # call -> time of its grant
    _arrivals: list[float] = field(default_factory=list)  # latest possible ones, in order
    _latencies: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _calls: int = 0
    _not_before: float = 0.0

    @classmethod
    def of(cls, per_second: int, per_minute: int, grace_s: float = GRACE_S) -> Self:
        """Limits of the settings; 0 is none."""
        return cls(tuple((calls, seconds) for calls, seconds in ((per_second, 1.0), (per_minute, 60.0)) if calls), grace_s)

    def acquire(self, now: float) -> int | None:
        """Grant a call and return its number, or None if it has to wait."""
        if self.wait_s(now) > 0:
            return None
        self._calls += 1
        self._open[self._calls] = now
        insort(self._arrivals, now + self.grace_s)
        # Evenly: after calls in a bunch, a small error about their arrival would grant a whole bunch too many.
        self._not_before = now + max(((seconds + SLACK_S) / calls for calls, seconds in self.windows), default=0.0)
        return self._calls

    def release(self, number: int, now: float) -> None:
        """Note that a call has ended; one that was not made counts too."""
        began = self._open.pop(number, None)
        if began is None or began + self.grace_s <= now:
            return  # counts with its grace
        self._latencies.append(now - began)
        quickest = RELIED_ON * min(self._latencies) - SLACK_S if len(self._latencies) >= KNOWN else 0.0
        del self._arrivals[bisect_left(self._arrivals, began + self.grace_s)]
        insort(self._arrivals, min(max(began, now - quickest), began + self.grace_s))

    def wait_s(self, now: float) -> float:
        """Seconds until the next call may be granted, as far as known; 0: now."""
        longest = max((seconds for _, seconds in self.windows), default=-self.grace_s)
        del self._arrivals[: bisect_right(self._arrivals, now - longest)]
        wait = max(0.0, self._not_before - now)
        for calls, seconds in self.windows:
            too_many = len(self._arrivals) - bisect_right(self._arrivals, now - seconds) - calls + 1
            if too_many > 0:
                leaving = self._arrivals[-calls]
                wait = max(wait, leaving + seconds - now, 1e-4)
        return wait


#: Seconds that a task waits for the connection.
CONNECT_S = 10.0

#: Seconds, and connections at a time, without the run's token: a task sends it at once. Beyond that the oldest is closed.
HELLO_S, STRANGERS = 5.0, 64

#: Longest wait for the end of connections that were closed.
CLOSE_S = 1.0

GONE = "the run's rate limiter is gone: the run has ended or was killed"


@dataclass(frozen=True)
class LimiterAddress:
    """Address of the server and the run's token; picklable."""

    host: str
    port: int
    token: str = field(repr=False)


class RateLimiterServer:
    """Grants the calls of one run's tasks, in a thread of its own, while it is entered."""

    def __init__(self, limit: RateWindow, host: str, hello_s: float = HELLO_S) -> None:
        """Takes the limit, and the name by which the tasks reach this machine; `hello_s`: for the token."""
        self._limit, self._host, self._token, self._hello_s = limit, host, secrets.token_hex(16), hello_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rest-rate-limiter", daemon=True)
        self._asked: asyncio.Queue[web.WebSocketResponse] = asyncio.Queue()
        self._released = asyncio.Event()
        self._strangers: dict[RequestHandler, None] = {}

    def __enter__(self) -> LimiterAddress:
        self._thread.start()
        try:
            port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        except BaseException:
            self._end_thread()  # `__exit__` is not called
            raise
        return LimiterAddress(self._host, port, self._token)

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._end_thread()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> int:
        # Without a log: aiohttp would write unauthenticated clients' data to it.
        self._http = web.Server(self._connection, logger=logging.Logger(__name__, logging.CRITICAL), access_log=None)
        bind = LOOPBACK if is_loopback(self._host) else "0.0.0.0"  # noqa: S104 - executors on other machines connect
        self._listener = await self._loop.create_server(self._connected, bind, 0)
        self._granting = asyncio.create_task(self._grant())
        return int(self._listener.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._granting.cancel()
        self._listener.close()
        for connection in self._http.connections:
            connection.force_close()
        await self._http.shutdown(CLOSE_S)
        await asyncio.gather(self._granting, return_exceptions=True)

    def _connected(self) -> RequestHandler:
        """Give a connection some seconds for the token."""
        stranger = self._http()
        self._strangers[stranger] = None
        if len(self._strangers) > STRANGERS:
            self._reject(next((known for known in self._strangers if known.transport is not None), stranger))
        self._loop.call_later(self._hello_s, self._reject, stranger)
        return stranger

    def _reject(self, connection: RequestHandler) -> None:
        if connection in self._strangers and connection.transport is not None:
            del self._strangers[connection]
            connection.force_close()

    async def _connection(self, request: web.BaseRequest) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), self._token.encode()):
            return web.Response(status=401)
        self._strangers.pop(request.protocol, None)
        task = web.WebSocketResponse(compress=False, max_msg_size=64)
        await task.prepare(request)
        async for message in task:
            if not message.data:
                self._asked.put_nowait(task)
            else:
                self._limit.release(int(message.data), self._loop.time())
                self._released.set()
        return task

    async def _grant(self) -> None:
        """Grant calls in the order of the requests."""
        while True:
            task = await self._asked.get()
            while not task.closed:
                number = self._limit.acquire(self._loop.time())
                if number is not None:
                    with suppress(ConnectionError):
                        await task.send_str(str(number))
                    break
                self._released.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._released.wait(), self._limit.wait_s(self._loop.time()))


class RateLimiter:
    """A task's client of the server."""

    def __init__(self, address: LimiterAddress | None) -> None:
        """None: there is no limit."""
        self._address = address
        self._asked: deque[asyncio.Future[int]] = deque()

    async def __aenter__(self) -> Self:
        if self._address is not None:
            where = f"{self._address.host}:{self._address.port}"
            self._session = aiohttp.ClientSession(headers={"Authorization": self._address.token})
            try:
                async with asyncio.timeout(CONNECT_S):
                    self._server = await self._session.ws_connect(f"http://{where}/")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                await self._session.close()
                raise TransientError(
                    f"this executor cannot reach the run's rate limiter at {where} ({type(error).__name__}): set "
                    "GAME_EVENTS_REST_PERMIT_HOST to an address of the driver's machine that executors can reach"
                ) from None
            self._listener = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._address is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            await self._server.close()
            await self._session.close()

    async def acquire(self) -> int:
        """Wait until a call may be made; returns its number.

        Raises:
            TransientError: the server is gone.
        """
        if self._address is None:
            return 0
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked.append(granted)
        try:
            await self._server.send_str("")
        except ConnectionError:
            self._fail()
        if self._listener.done():
            self._fail()
        return await granted

    async def release(self, number: int) -> None:
        """Report that a call is over; if the server is gone, its answer is noted all the same."""
        if self._address is not None:
            with suppress(ConnectionError):
                await self._server.send_str(str(number))

    async def _listen(self) -> None:
        async for message in self._server:
            granted = self._asked.popleft()
            if not granted.done():
                granted.set_result(int(message.data))
        self._fail()

    def _fail(self) -> None:
        while self._asked:
            self._asked.popleft().set_exception(TransientError(GONE))


def limiter_host(settings: Settings) -> str:
    """Name by which the executors reach this machine: the setting, else loopback where they run on it, else its own name."""
    return ExportSettings.of(settings).rest_permit_host or (LOOPBACK if workers_are_local(settings) else socket.getfqdn())
