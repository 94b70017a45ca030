"""Delivery of one chunk: calls until it is accepted, refused for good, or out of attempts; and a call before the first chunk.

A transient failure (429, 408, 425, 5xx, a broken connection, a time-out) is retried after exponential backoff with jitter, and
not before a `Retry-After`, for which all calls of the task wait. Each attempt has the same key and the same bytes.

The receiver of an export: address, credentials and options of a call, from the settings.

Guarantee: neither `repr` nor an error shows the address's path or a credential. Workers get them as part of the pickled
function, which no plan, log or page of Spark shows.
"""

import asyncio
import base64
import random
import ssl
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from game_events.config.masking import mask_all, secret_parts, value_of
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.plugins.export.rate_limiter import RateLimiter
from game_events.plugins.export.settings import ExportSettings


@dataclass(frozen=True)
class RestTarget:
    """One receiver; picklable.

    Attributes:
        headers: of every call, with the credentials.
        secrets: texts that are masked in tables, logs and errors.
        calls: concurrent calls of one task.
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
        return cls(
            url,
            {"Content-Type": "application/json", **credentials},
            tuple({url, *secret_parts(url), *secrets}),
            export.rest_body == "object",
            export.rest_calls_per_task,
            export.rest_timeout_s,
            export.rest_max_attempts,
            export.rest_retry_delay_s,
            # The content, as workers may be on other machines.
            _authorities(settings.tls_ca_file),
        )

    @property
    def shown(self) -> str:
        """The address without secrets: scheme, host and port."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def at(self, path: str) -> str:
        """Another path at the same address."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc, path, "", "")) if path else self.url

    def trust(self) -> ssl.SSLContext | bool:
        """Trust in the receiver's certificate, which is always verified."""
        return True if self.ca is None else ssl.create_default_context(cadata=self.ca)

    def masked(self, text: str) -> str:
        """A text without secrets."""
        return mask_all(text, self.secrets)


def _credentials(settings: ExportSettings) -> tuple[dict[str, str], list[str]]:
    """Headers of the configured authentication, and its secrets."""
    token = settings.rest_bearer_token
    password = settings.rest_password
    key = settings.rest_api_key
    ways = {
        "GAME_EVENTS_REST_BEARER_TOKEN": token is not None,
        "GAME_EVENTS_REST_USER": settings.rest_user is not None or password is not None,
        "GAME_EVENTS_REST_API_KEY": key is not None,
    }
    named = [name for name, is_set in ways.items() if is_set]
    if len(named) > 1:
        raise ConfigurationError(f"{' and '.join(named)} are both set: the receiver wants one of them")
    if not (value_of(token if key is None else key) or "").isprintable():
        raise ConfigurationError(f"{named[0]} has a line break or another character that no header may have")
    if token is not None:
        return {"Authorization": f"Bearer {token.get_secret_value()}"}, [token.get_secret_value()]
    if key is not None:
        return {settings.rest_api_key_header: key.get_secret_value()}, [key.get_secret_value()]
    if named:
        if settings.rest_user is None or password is None:
            raise ConfigurationError("set both GAME_EVENTS_REST_USER and GAME_EVENTS_REST_PASSWORD, or neither")
        pair = base64.b64encode(f"{settings.rest_user}:{password.get_secret_value()}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}, [password.get_secret_value(), pair]
    return {}, []


def _authorities(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"GAME_EVENTS_TLS_CA_FILE: {file} cannot be read ({type(error).__name__})") from None


#: Statuses of transient failures.
LATER = frozenset({408, 425, 429})

#: Statuses of refused credentials: no other chunk avoids them.
LOCKED_OUT = frozenset({401, 403, 407})

#: Longest backoff, and longest `Retry-After` that is respected, in seconds.
MAX_PAUSE_S, MAX_RETRY_AFTER_S = 60.0, 3_600.0

#: Characters of an answer that are stored, and bytes that are read.
EXCERPT_CHARS, MAX_ANSWER_BYTES = 500, 64 * 1024

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


@dataclass
class Calls:
    """A task's calls to a receiver.

    Attributes:
        answers: status, or kind of failure -> number of calls.
        latencies: seconds of the first `LATENCIES` answered calls.
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
                self.target.url, data=body, headers={"Idempotency-Key": key}, allow_redirects=False
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
    """A client for a target. Answers are not decompressed, as that could fill the memory."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=target.trust(), **options),
        timeout=aiohttp.ClientTimeout(total=target.timeout_s),
        headers=target.headers | {"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """First bytes of an answer; the connection of a longer one is closed."""
    found = bytearray()
    async for part in response.content.iter_any():
        found += part
        if len(found) > MAX_ANSWER_BYTES:
            response.close()
            break
    return bytes(found[:MAX_ANSWER_BYTES])


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


def preflight(settings: Settings, target: RestTarget) -> None:
    """Check the receiver's address, certificate and credentials by the call of the setting `rest_preflight`, without rows.

    Raises:
        ConfigurationError: the certificate is not trusted, or the credentials or the address are refused.
        TransientError: the receiver does not answer, or is busy.
    """
    if not ExportSettings.of(settings).rest_preflight:
        return
    method, _, path = ExportSettings.of(settings).rest_preflight.partition(" ")
    url = target.at(path)
    try:
        status = asyncio.run(_call(target, method, url))
    except TimeoutError:
        raise TransientError(f"{target.shown} did not answer {method} within {target.timeout_s:g} s") from None
    except aiohttp.InvalidURL:
        raise ConfigurationError("GAME_EVENTS_REST_URL is no address that can be called") from None
    except aiohttp.ClientError as error:
        what = failure_of(error)
        if what == "certificate not trusted":
            raise ConfigurationError(
                f"{target.shown}: the receiver's certificate is not trusted: GAME_EVENTS_TLS_CA_FILE names its authority's "
                "PEM file"
            ) from None
        raise TransientError(f"{target.shown}: {what}; no row was sent") from None
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


async def _call(target: RestTarget, method: str, url: str) -> int:
    async with client(target) as session, session.request(method, url, allow_redirects=False) as answer:
        return answer.status
