"""What a task that sends has of a receiver: its address and credentials, the calls to it, and their rate limit.

A transient failure (429, 408, 425, 5xx, a broken connection, a time-out) is retried after exponential backoff with jitter, and
not before a `Retry-After`, for which all calls of the task wait. Each attempt has the same key and the same bytes.

Guarantee: neither `repr` nor an error shows the address's path or a credential. Workers get them as part of the pickled
function, which no plan, log or page of Spark shows.
"""

import asyncio
import base64
import itertools
import random
import ssl
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from game_events.config.masking import mask_all, secret_parts, value_of
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.plugins.export.settings import ExportSettings


@dataclass(frozen=True)
class ExportTarget:
    """One receiver; picklable.

    Attributes:
        headers: of every call, with the credentials.
        secrets: texts that are masked in tables, logs and errors.
        calls: concurrent calls of one task.
        limits: (calls, seconds) of each rate limit: then one task has all calls.
        ca: PEM certificates of trusted authorities; None: the system's.
    """

    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    as_object: bool
    calls: int
    timeout_s: float
    attempts: int
    retry_delay_s: float
    limits: tuple[tuple[int, float], ...] = ()
    ca: str | None = field(repr=False, default=None)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The target of the settings.

        Raises:
            ConfigurationError: the export is off, or its settings contradict each other.
        """
        export = ExportSettings.of(settings)
        if export.rest_url is None:
            raise ConfigurationError("the export is off: set GAME_EVENTS_REST_URL to the address that rows are POSTed to")
        url = export.rest_url.get_secret_value()
        if "@" in urlsplit(url).netloc:
            raise ConfigurationError(
                "GAME_EVENTS_REST_URL must hold no password: set GAME_EVENTS_REST_USER and GAME_EVENTS_REST_PASSWORD"
            )
        if export.rest_body == "object" and export.rest_rows_per_call != 1:
            raise ConfigurationError("GAME_EVENTS_REST_BODY=object: set GAME_EVENTS_REST_ROWS_PER_CALL=1, or send arrays")
        credentials, secrets = _credentials(export)
        windows = {1.0: export.rest_calls_per_s, 60.0: export.rest_calls_per_min}
        limits = tuple((calls, seconds) for seconds, calls in windows.items() if calls)
        return cls(
            url=url,
            headers={"Content-Type": "application/json", **credentials},
            secrets=tuple({url, *secret_parts(url), *secrets}),
            as_object=export.rest_body == "object",
            calls=export.rest_calls_per_task * (export.rest_tasks if limits else 1),
            timeout_s=export.rest_timeout_s,
            attempts=export.rest_max_attempts,
            retry_delay_s=export.rest_retry_delay_s,
            limits=limits,
            # The content, as workers may be on other machines.
            ca=settings.tls_ca_file.read_text("utf-8", "replace") if settings.tls_ca_file is not None else None,
        )

    @property
    def shown(self) -> str:
        """The address without secrets: scheme, host and port."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def masked(self, text: str) -> str:
        """A text without secrets."""
        return mask_all(text, self.secrets)


def _credentials(settings: ExportSettings) -> tuple[dict[str, str], list[str]]:
    token = value_of(settings.rest_bearer_token)
    password = value_of(settings.rest_password)
    key = value_of(settings.rest_api_key)
    ways = {
        "GAME_EVENTS_REST_BEARER_TOKEN": token is not None,
        "GAME_EVENTS_REST_USER": settings.rest_user is not None or password is not None,
        "GAME_EVENTS_REST_API_KEY": key is not None,
    }
    chosen = [name for name, is_set in ways.items() if is_set]
    if len(chosen) > 1:
        raise ConfigurationError(f"{' and '.join(chosen)} are both set: the receiver wants one of them")
    if token is not None:
        return {"Authorization": f"Bearer {_header_value(chosen[0], token)}"}, [token]
    if key is not None:
        return {settings.rest_api_key_header: _header_value(chosen[0], key)}, [key]
    if not chosen:
        return {}, []
    if settings.rest_user is None or password is None:
        raise ConfigurationError("set both GAME_EVENTS_REST_USER and GAME_EVENTS_REST_PASSWORD, or neither")
    pair = base64.b64encode(f"{settings.rest_user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}, [password, pair]


def _header_value(setting: str, value: str) -> str:
    if not value.isprintable():
        raise ConfigurationError(f"{setting} has a line break or another character that no header may have")
    return value


#: Seconds within which a granted call reaches the receiver.
GRACE_S = 0.5

#: Margin in seconds, and the share of the quickest answer that is relied on: on a busy machine even that one was delayed.
SLACK_S = 0.02
RELIED_ON = 0.9

#: Answers from which on the quickest is known: the first ones may all have been delayed. The newest `REMEMBERED` count.
KNOWN = 20
REMEMBERED = 5_000


@dataclass
class RateWindow:
    """Sliding windows of (calls, seconds) for each limit, without a clock: times are in seconds of one clock of the caller's.

    A call counts from its grant until one window after its latest possible arrival at the receiver: `grace_s` after the grant,
    or earlier once it is answered, by the quickest answer seen (way there, receiver's work and way back together).

    Guarantee: if every call arrives within `grace_s` of its grant, no window [t, t + 1 s) or [t, t + 60 s) of the receiver's
    clock, wherever it begins, has more calls than the limit. (GCRA over a window longer by one round trip has the same
    guarantee, but uses only 91% of a limit per second at a latency of 95 ms, where this uses more than 95%.)
    """

    windows: tuple[tuple[int, float], ...] = ()
    grace_s: float = GRACE_S
    _arrivals: list[float] = field(default_factory=list)  # latest possible ones, in order
    # (number, seconds) of answers that are quicker than each one after them: the first is the quickest.
    _quickest: deque[tuple[int, float]] = field(default_factory=deque)
    _answers: int = 0
    _not_before: float = 0.0

    def resume(self, ages: Iterable[float], now: float) -> None:
        """Count calls of a window before this one: seconds since the latest possible arrival of each (`ages`)."""
        self._arrivals = sorted(now - age for age in ages)

    def resume_used_up(self, now: float) -> None:
        """Count as many calls as the limits have, all of them on their way: what an earlier window has granted is not known."""
        self._arrivals = [now + self.grace_s] * max((calls for calls, _ in self.windows), default=0)

    def ages(self, now: float) -> list[float]:
        """For `resume`; negative: a call may be on its way."""
        return [now - arrival for arrival in self._arrivals]

    def acquire(self, now: float) -> bool:
        """Grant a call, unless it has to wait."""
        if not self.windows:
            return True
        if self.wait_s(now) > 0:
            return False
        insort(self._arrivals, now + self.grace_s)
        # Evenly: after calls in a bunch, a small error about their arrival would grant a whole bunch too many.
        self._not_before = now + max((seconds + SLACK_S) / calls for calls, seconds in self.windows)
        return True

    def release(self, granted: float, now: float) -> None:
        """Note that the call that was granted then has ended; one that was not made counts too."""
        if not self.windows or granted + self.grace_s <= now:
            return  # counts with its grace
        quickest = self._quickest_with(now - granted)
        reliable = RELIED_ON * quickest - SLACK_S if self._answers >= KNOWN else 0.0
        del self._arrivals[bisect_left(self._arrivals, granted + self.grace_s)]
        insort(self._arrivals, min(max(granted, now - reliable), granted + self.grace_s))

    def _quickest_with(self, latency: float) -> float:
        """The quickest of the newest answers, with one more."""
        while self._quickest and self._quickest[-1][1] >= latency:
            self._quickest.pop()
        self._answers += 1
        self._quickest.append((self._answers, latency))
        if self._quickest[0][0] <= self._answers - REMEMBERED:
            self._quickest.popleft()
        return self._quickest[0][1]

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


#: Statuses of transient failures.
LATER = frozenset({408, 425, 429})

#: Statuses of refused credentials: no other chunk avoids them.
LOCKED_OUT = frozenset({401, 403, 407})

#: Longest backoff, and longest `Retry-After` that is respected, in seconds.
MAX_PAUSE_S = 60.0
MAX_RETRY_AFTER_S = 3_600.0

#: Characters of an answer that are stored, and bytes that are read.
EXCERPT_CHARS = 500
MAX_ANSWER_BYTES = 64 * 1024

#: Latencies that a task keeps.
LATENCIES = 2_000

#: Answers to a method that the receiver does not have: it is there.
NO_SUCH_METHOD = frozenset({405, 501})

OFF = "(GAME_EVENTS_REST_PREFLIGHT chooses another call, or none)"


@dataclass(frozen=True)
class ChunkOutcome:
    """Outcome of a chunk.

    Attributes:
        taken: the receiver answered 2xx.
        status: status of the last answer; None: no answer.
        reason: the last failure.
        answer: beginning of the last answer's body, without secrets.
        attempts: number of calls.
        for_good: another attempt would fail too.
    """

    taken: bool
    status: int | None
    reason: str
    answer: str
    attempts: int
    for_good: bool = False


class _Answer(NamedTuple):
    """Answer to one call: status (None: there was none), that or the kind of failure, beginning of the body, `Retry-After`."""

    status: int | None
    kind: str
    excerpt: str = ""
    retry_after: float | None = None


@dataclass
class Calls:
    """A task's calls to a receiver.

    Attributes:
        answers: status, or kind of failure -> number of calls.
        latencies: seconds of the first `LATENCIES` answered calls.
    """

    target: ExportTarget
    session: aiohttp.ClientSession
    window: RateWindow = field(default_factory=RateWindow)
    answers: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    _not_before: float = 0.0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    async def deliver(self, key: str, body: bytes) -> ChunkOutcome:
        """Send a chunk."""
        for attempt in itertools.count(1):
            answer = await self._call(key, body)
            self.answers[answer.kind] += 1
            if answer.status is not None and 200 <= answer.status < 300:
                return ChunkOutcome(True, answer.status, "", "", attempt)
            excerpt = self.target.masked(answer.excerpt)[:EXCERPT_CHARS]
            said = answer.kind if answer.status is None else f"HTTP {answer.status}"
            if answer.status is not None and answer.status < 500 and answer.status not in LATER:
                return ChunkOutcome(False, answer.status, f"refused: {said}", excerpt, attempt, for_good=True)
            if answer.retry_after is not None:
                self._not_before = max(self._not_before, time.monotonic() + min(answer.retry_after, MAX_RETRY_AFTER_S))
            if attempt == self.target.attempts:
                break
            longest = min(self.target.retry_delay_s * 2 ** (attempt - 1), MAX_PAUSE_S)
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret about a pause
        return ChunkOutcome(False, answer.status, f"not taken in {attempt} attempts, the last: {said}", excerpt, attempt)

    async def _call(self, key: str, body: bytes) -> _Answer:
        granted = await self._permit()
        began = time.monotonic()
        try:
            async with self.session.post(
                self.target.url, data=body, headers={"Idempotency-Key": key}, allow_redirects=False
            ) as response:
                content = await _beginning(response)
                if len(self.latencies) < LATENCIES:
                    self.latencies.append(time.monotonic() - began)
                excerpt = content[: 4 * EXCERPT_CHARS].decode(errors="replace")
                return _Answer(
                    response.status, str(response.status), excerpt, retry_after_s(response.headers.get("Retry-After"))
                )
        except TimeoutError:
            return _Answer(None, "timeout")
        except aiohttp.ClientError as error:
            return _Answer(None, failure_of(error))
        finally:
            self._release(granted)

    async def _permit(self) -> float:
        """Wait until a call may be made, by every `Retry-After` and the rate limit; returns the time of its grant."""
        while True:
            while (pause := self._not_before - time.monotonic()) > 0:
                await asyncio.sleep(pause + random.uniform(0, 0.05))  # noqa: S311 - not all at the same moment
            async with self._turn:  # the first that came is the next
                granted = await self._acquire()
            if self._not_before <= time.monotonic():
                return granted
            self._release(granted)  # a `Retry-After` has come meanwhile

    async def _acquire(self) -> float:
        while not self.window.acquire(now := time.monotonic()):
            self._released.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._released.wait(), self.window.wait_s(time.monotonic()))
        return now

    def _release(self, granted: float) -> None:
        self.window.release(granted, time.monotonic())
        self._released.set()


def client(target: ExportTarget, **options: Any) -> aiohttp.ClientSession:  # noqa: ANN401 - aiohttp's own
    """A client for a target, whose certificate it verifies. Answers are not decompressed, as that could fill the memory."""
    trust = True if target.ca is None else ssl.create_default_context(cadata=target.ca)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trust, **options),
        timeout=aiohttp.ClientTimeout(total=target.timeout_s),
        headers=target.headers | {"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """First bytes of an answer; the connection of a longer one is closed."""
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > MAX_ANSWER_BYTES:
            response.close()
            break
    return bytes(content[:MAX_ANSWER_BYTES])


def failure_of(error: Exception) -> str:
    """Kind of a connection's failure, without the client's message, which may have the address."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "certificate not trusted"
    if isinstance(error, aiohttp.ClientSSLError):
        return "no TLS connection (is it https there?)"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "not reachable"
    return "connection broken" if isinstance(error, aiohttp.ClientConnectionError) else type(error).__name__


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a `Retry-After` header: a number or an HTTP date (RFC 9110, 10.2.3); None: no valid header."""
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


def preflight(settings: Settings, target: ExportTarget) -> None:
    """Check the receiver's address, certificate and credentials by the call of the setting `rest_preflight`, without rows.

    Raises:
        ConfigurationError: the certificate is not trusted, or the credentials or the address are refused.
        TransientError: the receiver does not answer, or is busy.
    """
    method, _, path = ExportSettings.of(settings).rest_preflight.partition(" ")
    if not method:
        return
    parts = urlsplit(target.url)
    url = urlunsplit((parts.scheme, parts.netloc, path, "", "")) if path else target.url
    status = _preflight_status(target, method, url)
    if status < 300 or status in NO_SUCH_METHOD:
        return
    said = f"{target.shown} answered {method} with HTTP {status}"
    if status in LOCKED_OUT:
        raise ConfigurationError(
            f"{said}: it does not let us in; look at GAME_EVENTS_REST_BEARER_TOKEN, _USER or _API_KEY {OFF}"
        )
    if status in LATER or status >= 500:
        raise TransientError(f"{said}; no row was sent")
    raise ConfigurationError(f"{said}: look at GAME_EVENTS_REST_URL {OFF}")


def _preflight_status(target: ExportTarget, method: str, url: str) -> int:
    async def call() -> int:
        async with client(target) as session, session.request(method, url, allow_redirects=False) as answer:
            return answer.status

    try:
        return asyncio.run(call())
    except TimeoutError:
        raise TransientError(f"{target.shown} did not answer {method} within {target.timeout_s:g} s") from None
    except aiohttp.InvalidURL:
        raise ConfigurationError("GAME_EVENTS_REST_URL is no address that can be called") from None
    except aiohttp.ClientError as error:
        failure = failure_of(error)
        if failure == "certificate not trusted":
            raise ConfigurationError(
                f"{target.shown}: the receiver's certificate is not trusted: GAME_EVENTS_TLS_CA_FILE names its authority's "
                "PEM file"
            ) from None
        raise TransientError(f"{target.shown}: {failure}; no row was sent") from None
