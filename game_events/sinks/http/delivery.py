"""One chunk's calls: tried until it is taken, refused for good, or out of attempts.

A call that failed for the time being (429, 408, 425, 5xx, a connection that broke, no answer in time) is tried again after a
pause that doubles and is spread at random, and never before the time that a `Retry-After` names: then all calls of this task
wait. Whatever came of a call before, each attempt carries the same key and the same bytes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from game_events.sinks.http.rate_limiter import RateLimiter
from game_events.sinks.http.target import RestTarget

KEY_HEADER = "Idempotency-Key"
#: Answers that say nothing about the rows: the same call may be taken later.
LATER = frozenset({408, 425, 429})
#: Answers that a person has to do something about, before any other chunk fares better.
LOCKED_OUT = frozenset({401, 403, 407})
#: Longest pause of one's own between two attempts, and longest one that a receiver is granted, in seconds.
MAX_PAUSE_S, MAX_RETRY_AFTER_S = 60.0, 3_600.0
#: Characters of an answer that are kept, and bytes that are read of it.
EXCERPT_CHARS, MAX_ANSWER_BYTES = 500, 64 * 1024
#: Latencies that a task keeps.
LATENCIES = 2_000


@dataclass(frozen=True)
class ChunkOutcome:
    """What became of a chunk.

    Attributes:
        taken: the receiver has answered 2xx.
        status: of the last answer; None: there was none.
        reason: why it was given up, or what the last failure was.
        answer: beginning of the last answer's body, without secrets.
        attempts: calls made.
        for_good: another attempt would fare no better.
    """

    taken: bool
    status: int | None
    reason: str
    answer: str
    attempts: int
    for_good: bool = False

    @property
    def locked_out(self) -> bool:
        """The receiver does not let us in: nothing is wrong with the rows."""
        return self.status in LOCKED_OUT


@dataclass
class Calls:
    """A task's calls.

    Attributes:
        target: where to.
        session: the task's client, with its pool of connections.
        limiter: rate limiter of the calls.
        answers: status, or kind of failure -> calls.
        latencies: seconds of answered calls, the first `LATENCIES`.
    """

    target: RestTarget
    session: aiohttp.ClientSession
    limiter: RateLimiter
    answers: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    _not_before: float = 0.0

    async def deliver(self, key: str, body: bytes) -> ChunkOutcome:
        """Send a chunk."""
        attempt = 0
        while True:
            attempt += 1
            status, answer, retry_after, failure = await self._call(key, body)
            said = f"HTTP {status}" if status is not None else failure
            self.answers[str(status) if status is not None else failure] += 1
            if status is not None and 200 <= status < 300:
                return ChunkOutcome(True, status, "", "", attempt)
            excerpt = self.target.masked(answer)[:EXCERPT_CHARS]
            if status is not None and status < 500 and status not in LATER:
                return ChunkOutcome(False, status, f"refused: {said}", excerpt, attempt, for_good=True)
            if retry_after is not None:
                self._not_before = max(self._not_before, time.monotonic() + min(retry_after, MAX_RETRY_AFTER_S))
            if attempt >= self.target.attempts:
                return ChunkOutcome(False, status, f"not taken in {attempt} attempts, the last: {said}", excerpt, attempt)
            longest = min(self.target.retry_delay_s * 2 ** (attempt - 1), MAX_PAUSE_S)
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret about a pause

    async def _call(self, key: str, body: bytes) -> tuple[int | None, str, float | None, str]:
        """Status, body of a failure, seconds to wait, kind of failure."""
        while True:
            while (pause := self._not_before - time.monotonic()) > 0:
                await asyncio.sleep(pause + random.uniform(0, 0.05))  # noqa: S311 - not all at the same moment
            number = await self.limiter.acquire()
            if self._not_before <= time.monotonic():
                break
            await self.limiter.release(number)  # a `Retry-After` has come meanwhile
        began = time.monotonic()
        try:
            async with self.session.post(
                self.target.url, data=body, headers={KEY_HEADER: key}, allow_redirects=False
            ) as response:
                taken = 200 <= response.status < 300
                content = await _beginning(response)
                if len(self.latencies) < LATENCIES:
                    self.latencies.append(time.monotonic() - began)
                text = "" if taken else content[: 4 * EXCERPT_CHARS].decode(errors="replace")
                return response.status, text, retry_after_s(response.headers.get("Retry-After")), ""
        except TimeoutError:
            return None, "", None, "timeout"
        except aiohttp.ClientError as error:
            return None, "", None, failure_of(error)
        finally:
            await self.limiter.release(number)


def client(target: RestTarget, **options: Any) -> aiohttp.ClientSession:  # noqa: ANN401 - aiohttp's own
    """A client for a target; within a loop. Answers are taken as they come: unpacking one could fill the memory."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=target.trust(), **options),
        timeout=aiohttp.ClientTimeout(total=target.timeout_s),
        headers=target.headers | {"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """An answer's first bytes; of one that goes on and on nothing more is read, and its connection is not used again."""
    found = bytearray()
    async for part in response.content.iter_any():
        found += part
        if len(found) > MAX_ANSWER_BYTES:
            response.close()
            break
    return bytes(found[:MAX_ANSWER_BYTES])


def failure_of(error: Exception) -> str:
    """What went wrong with a connection, without the client's words, which may repeat the address."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "certificate not trusted"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "not reachable"
    return "connection broken" if isinstance(error, aiohttp.ClientConnectionError) else type(error).__name__


def retry_after_s(value: str | None) -> float | None:
    """Seconds that a `Retry-After` names, as a number or as an HTTP date (RFC 9110, 10.2.3); None if there is none."""
    if value is None:
        return None
    text = value.strip()
    if text.isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return None
