"""Sliding-window rate limit over all tasks' calls: the decision alone, without clock or network.

A call counts from its grant until one window after its latest possible arrival at the receiver: `GRACE_S` after the
grant, or earlier once it is answered, by the quickest answer seen (way there, receiver's work and way back together).

Guarantee: if every call arrives within `GRACE_S` of its grant, no window [t, t + 1 s) or [t, t + 60 s) of the receiver's
clock, wherever it begins, has more calls than the limit. (GCRA over a window longer by one round trip has the same guarantee,
but uses only 91% of a limit per second at a latency of 95 ms, where this uses more than 95%.)
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Self

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
