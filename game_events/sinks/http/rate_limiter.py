"""Permission to call, from one place for all tasks: a small server beside the driver, and the tasks' client of it.

Fixed shares of a cap would waste it whenever tasks are uneven, wait for a `Retry-After`, or fewer of them run at once than were
planned. So each call asks. One line of JSON each way over one TCP connection per task; the server answers when the call may be
made. It listens on loopback unless the executors are on other machines, and answers only those who know the run's token.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from game_events.config.local_addresses import LOOPBACK, is_loopback, workers_are_local
from game_events.config.settings import Settings
from game_events.errors import TransientError
from game_events.sinks.http.rate_window import Caps

#: Seconds that a task waits for the server's first word.
CONNECT_S = 10.0
#: Seconds that the server waits for the token of one who has connected, and for how many it does: of more the oldest goes, as
#: a task says it at once.
HELLO_S, STRANGERS = 5.0, 64


@dataclass(frozen=True)
class PermitAddress:
    """Where tasks ask; picklable."""

    host: str
    port: int
    token: str = field(repr=False)


class PermitServer:
    """Answers one run's tasks, in a thread of its own, until it is closed."""

    def __init__(self, caps: Caps, host: str) -> None:
        """Nothing listens before `with`.

        Args:
            caps: what is permitted.
            host: name by which the tasks reach this machine; loopback: nobody else can.
        """
        self._caps, self._host = caps, host
        self._token = secrets.token_hex(16)
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rest-permits", daemon=True)
        self._server: asyncio.Server | None = None
        self._pump: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Those whose token has not come, the oldest first.
        self._strangers: dict[asyncio.Task[None], None] = {}

    def __enter__(self) -> PermitAddress:
        self._thread.start()
        bind = LOOPBACK if is_loopback(self._host) else "0.0.0.0"  # noqa: S104 - other machines have to reach it
        try:
            self._server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._client, bind, 0), self._loop).result()
        except BaseException:
            self._end_thread()  # without a server nobody comes to `__exit__`
            raise
        return PermitAddress(self._host, self._server.sockets[0].getsockname()[1], self._token)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._end_thread()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs has one
        self._tasks.add(task)
        asked: set[asyncio.Task[None]] = set()
        try:
            if not await self._is_known(reader, task):
                return
            while line := await reader.readline():
                message = json.loads(line)
                if "done" in message:
                    self._caps.answered(message["done"], time.monotonic())
                    self._give()
                else:
                    answer = asyncio.create_task(self._answer(message["ask"], writer))
                    asked.add(answer)
                    answer.add_done_callback(asked.discard)
        except (ConnectionError, TimeoutError, KeyError, TypeError, ValueError, asyncio.CancelledError):
            pass  # a task that is gone asks no more; its calls count for their grace
        finally:
            for answer in asked:
                answer.cancel()
            writer.close()
            self._strangers.pop(task, None)
            self._tasks.discard(task)

    async def _is_known(self, reader: asyncio.StreamReader, task: asyncio.Task[None]) -> bool:
        """Whether the first line is the run's token."""
        if len(self._strangers) >= STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        self._strangers[task] = None
        hello = await asyncio.wait_for(reader.readline(), HELLO_S)
        self._strangers.pop(task, None)
        return hmac.compare_digest(hello.strip(), self._token.encode())

    async def _answer(self, ask: int, writer: asyncio.StreamWriter) -> None:
        permitted: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append(permitted)
        self._give()
        number = await permitted
        with suppress(ConnectionError):
            writer.write(json.dumps({"ask": ask, "number": number}).encode() + b"\n")

    def _give(self) -> None:
        """Permit whoever has waited longest, as many as may."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        while self._waiting:
            number = self._caps.ask(time.monotonic())
            if number is None:
                break
            waiting = self._waiting.popleft()
            if waiting.cancelled():
                self._caps.answered(number, time.monotonic())
            else:
                waiting.set_result(number)
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        if self._waiting:
            self._pump = self._loop.call_later(self._caps.wait_s(time.monotonic()), self._give)


class Permits:
    """A task's side: `async with` gives leave for one call."""

    def __init__(self, address: PermitAddress | None) -> None:
        """None: every call may be made at once."""
        self._address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._next = 0
        self._listener: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._address is not None:
            where = f"{self._address.host}:{self._address.port}"
            try:
                connecting = asyncio.open_connection(self._address.host, self._address.port)
                self._reader, self._writer = await asyncio.wait_for(connecting, CONNECT_S)
            except (OSError, TimeoutError) as error:
                raise TransientError(
                    f"this executor cannot reach the run's permit server at {where} ({type(error).__name__}): set "
                    "GAME_EVENTS_REST_PERMIT_HOST to an address of the driver's machine that executors can reach"
                ) from None
            self._send_line(self._address.token.encode())
            self._listener = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener
        if self._writer is not None:
            self._writer.close()

    async def ask(self) -> int:
        """Wait until a call may be made; its number.

        Raises:
            TransientError: the run is gone.
        """
        if self._writer is None:
            return 0
        if self._gone:
            raise TransientError("the run that gives leave for calls is gone")
        self._next += 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked[self._next] = answer
        self._send_line(json.dumps({"ask": self._next}).encode())
        return await answer

    def done(self, number: int) -> None:
        """The call is over; if the run is gone nobody counts it any more, and what was answered is still noted."""
        if self._writer is not None and not self._gone:
            self._send_line(json.dumps({"done": number}).encode())

    @property
    def _gone(self) -> bool:
        return self._listener is not None and self._listener.done()

    def _send_line(self, line: bytes) -> None:
        if self._writer is not None:
            self._writer.write(line + b"\n")

    async def _listen(self) -> None:
        assert self._reader is not None  # noqa: S101 - it is connected
        try:
            while line := await self._reader.readline():
                message = json.loads(line)
                answer = self._asked.pop(message["ask"], None)
                if answer is not None and not answer.done():
                    answer.set_result(message["number"])
        except ConnectionError:
            pass
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(TransientError("the run that gives leave for calls is gone"))


def permit_host(settings: Settings) -> str:
    """By what name the executors reach this machine: loopback where they are on it, else the setting, else its own name."""
    if settings.rest_permit_host:
        return settings.rest_permit_host
    return LOOPBACK if workers_are_local(settings) else socket.getfqdn()
