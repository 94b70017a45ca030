"""What the mock API does to a call: chosen by a seed, so that a test's faults come again."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass
from email.utils import formatdate
from typing import Literal

Fault = Literal["none", "error", "throttle", "hang", "close", "accept_then_timeout", "refuse"]


@dataclass(frozen=True)
class MockFaults:
    """How the mock behaves.

    Attributes:
        latency_ms, latency_per_row_ms: how long an answer takes.
        error_share: 503.
        throttle_share: 429 with `Retry-After`, in seconds and as a date by turns.
        hang_share: no answer, nothing accepted.
        close_share: the connection is closed without an answer, nothing accepted.
        accept_then_timeout_share: the rows are accepted, the answer never comes.
        refuse_share: 422 for good: nothing accepted, and asking again would not help.
        rate_limit: calls a second; more are answered 429. 0: any number.
        retry_after_s: what a throttled caller is told to wait.
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
    """The next call's fault."""

    def __init__(self, faults: MockFaults) -> None:
        self._faults = faults
        self._random = random.Random(faults.seed)  # noqa: S311 - faults, not secrets
        self._recent: deque[float] = deque()
        self._dates = False
        shares = (
            ("error", faults.error_share),
            ("throttle", faults.throttle_share),
            ("hang", faults.hang_share),
            ("close", faults.close_share),
            ("accept_then_timeout", faults.accept_then_timeout_share),
            ("refuse", faults.refuse_share),
        )
        self._bounds: list[tuple[float, Fault]] = []
        upper = 0.0
        for name, share in shares:
            upper += share
            self._bounds.append((upper, name))  # type: ignore[arg-type]

    def next(self) -> Fault:
        """The fault of a call that came just now."""
        drawn = self._random.random()
        for upper, name in self._bounds:
            if drawn < upper:
                return name
        return "throttle" if self._too_many() else "none"

    def retry_after(self) -> str:
        """The header of a 429: seconds and an HTTP date by turns, as both are in use."""
        self._dates = not self._dates
        if not self._dates:
            # A date has whole seconds: one more, so that nobody is told to come at once.
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
