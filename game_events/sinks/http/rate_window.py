"""How many calls may be made in any second and any minute: the decision alone, without clock or network.

A call counts from the moment it is permitted until one window after it has reached the receiver at the latest. When that was,
only the receiver knows. Every call takes the way there, the receiver's work and the way back at their quickest (together: the
shortest of many answers); by how much longer one took, so much later it may have come. One that is not answered counts as
arrived `GRACE_S` after its permission.

Guarantee: if every call reaches the receiver within `GRACE_S` of its permission, no window [t, t + 1 s) or [t, t + 60 s) of the
receiver's clock, wherever it begins, has more calls in it than the cap.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from math import inf

#: Seconds within which a call that was permitted reaches the receiver.
GRACE_S = 0.5
#: Seconds that arrivals may differ by besides, and the share of the shortest answer that is counted on: on a busy machine even
#: that one was held up.
SLACK_S, COUNTED_ON = 0.02, 0.9
#: Answers from which on the shortest says something: the first ones may all have been held up.
KNOWN = 20
#: The shortest of so many answers counts, and of as many before them.
REMEMBERED = 5_000


@dataclass
class Caps:
    """Sliding windows over all tasks' calls; times in seconds of one clock.

    Attributes:
        windows: (calls, seconds) of each cap.
    """

    windows: tuple[tuple[int, float], ...]
    _open: dict[int, float] = field(default_factory=dict)
    _arrived: list[float] = field(default_factory=list)
    _shortest: tuple[float, float] = (inf, inf)
    _answers: int = 0
    _next: int = 0
    _not_before: float = -inf

    @classmethod
    def of(cls, per_second: int, per_minute: int) -> Caps:
        """Caps of the settings; 0 is none."""
        return cls(tuple((calls, seconds) for calls, seconds in ((per_second, 1.0), (per_minute, 60.0)) if calls))

    def ask(self, now: float) -> int | None:
        """Permit a call: its number; None: not now."""
        self._age(now)
        if self._wait(now) > 0:
            return None
        self._next += 1
        self._open[self._next] = now
        self._not_before = now + max(((seconds + SLACK_S) / calls for calls, seconds in self.windows), default=0.0)
        return self._next

    def answered(self, number: int, now: float) -> None:
        """A call that was permitted is over, whatever its answer; one that was never made counts as made."""
        began = self._open.pop(number, None)
        if began is None:
            return  # it took longer than the grace, and has been counted
        self._answers += 1
        before, lately = self._shortest
        if self._answers % REMEMBERED == 0:
            before, lately = lately, inf
        self._shortest = (before, min(lately, now - began))
        quickest = COUNTED_ON * min(self._shortest) - SLACK_S if self._answers >= KNOWN else 0.0
        insort(self._arrived, max(began, now - quickest))

    def wait_s(self, now: float) -> float:
        """Seconds until it makes sense to ask again."""
        self._age(now)
        return self._wait(now)

    def _wait(self, now: float) -> float:
        """0: a call may be made now."""
        # Evenly: of calls in a bunch, a small error about when they arrived would let a whole bunch too many follow.
        longest = max(0.0, self._not_before - now)
        for calls, seconds in self.windows:
            first = bisect_right(self._arrived, now - seconds)
            too_many = len(self._arrived) - first + len(self._open) - calls + 1
            if too_many <= 0:
                continue
            # Those that have arrived leave the window one by one; an open one leaves it a grace and a window after its start.
            graces = (began + GRACE_S for began in self._open.values())
            leave = next(islice(merge(islice(self._arrived, first, None), graces), too_many - 1, None))
            longest = max(longest, leave + seconds - now, 1e-4)
        return longest

    def _age(self, now: float) -> None:
        for number, began in [item for item in self._open.items() if item[1] + GRACE_S <= now]:
            del self._open[number]
            insort(self._arrived, began + GRACE_S)
        keep = bisect_right(self._arrived, now - max((seconds for _, seconds in self.windows), default=0.0))
        del self._arrived[:keep]
