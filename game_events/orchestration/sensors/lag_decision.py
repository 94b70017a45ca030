"""When the sensor `kafka_lag` starts a run: a decision over plain values, without Dagster or a broker."""

from dataclasses import dataclass

from game_events.orchestration.sensors.ticks import Cursor
from game_events.pipeline.observability.lag import PipelineLag

#: Seconds before a run without progress is retried, doubled each time, and the longest ones.
FIRST_WAIT_S = 30.0
LONGEST_WAIT_S = 900.0
#: Seconds that layers with a lag are left to automation, or to a materialization by hand.
GRACE_S = 60.0
#: Events of the topic's asset are at least so far apart, unless the lag is gone.
EVENT_EVERY_S = 60.0


class Memory(Cursor):
    """The sensor's cursor.

    Attributes:
        asked: offsets at the last request, `attempts`: requests made at it, `asked_at`: when (seconds since 1970).
        seen: offsets at the last tick, `seen_at`: when it was first seen.
        reported: offsets of the last event of the topic's asset, `reported_at`: when.
        lag_is_high: an alert was sent, and none yet that it is over.
    """

    asked: str = ""
    attempts: int = 0
    asked_at: float = 0.0
    seen: str = ""
    seen_at: float = 0.0
    reported: str = ""
    reported_at: float = 0.0
    lag_is_high: bool = False


@dataclass(frozen=True)
class LagDecision:
    """Whether to ask for a run (its key; None: no run), why or why not, and the next cursor."""

    why: str
    run_key: str | None
    memory: Memory


def wait_s(attempts: int) -> float:
    """Seconds to wait after so many requests at the same offsets."""
    return min(FIRST_WAIT_S * 2.0 ** min(attempts - 1, 20), LONGEST_WAIT_S) if attempts else 0.0


def decide(lag: PipelineLag, memory: Memory, now: float) -> LagDecision:
    """A run if there is something to do, unless the last runs for it made no progress and the wait is not over."""
    position = lag.progress_digest
    if position != memory.seen:
        memory = memory.model_copy(update={"seen": position, "seen_at": now})
    why = reason(lag)
    if why is None:
        return LagDecision(f"nothing to do: bronze has every record of {lag.name}", None, memory)
    attempts = memory.attempts if memory.asked == position else 0
    due = memory.asked_at + wait_s(attempts) if attempts else 0.0
    if not lag.to_read:
        due = max(due, memory.seen_at + GRACE_S)
    if now < due:
        tried = f"; {attempts} runs made no progress" if attempts else ""
        return LagDecision(f"{why}{tried}; the next run is due in {due - now:.0f} s", None, memory)
    key = f"{position}-{attempts + 1}"
    return LagDecision(why, key, memory.model_copy(update={"asked": position, "attempts": attempts + 1, "asked_at": now}))


def reason(lag: PipelineLag) -> str | None:
    """What there is to do, in words."""
    if lag.ahead:
        return f"{', '.join(map(str, lag.ahead))} end before what bronze has read"
    if lag.total_lag:
        return f"{lag.name}: {lag.total_lag:,} records to read"
    if not lag.made:
        return f"{lag.name}: where bronze starts is not settled yet"
    if lag.failed:
        shown = ", ".join(lag.failed[:10])
        more = f" and {len(lag.failed) - 10} more" if len(lag.failed) > 10 else ""
        return f"games that failed or wait: {shown}{more}"
    if lag.behind:
        return f"behind the layer before: {', '.join(lag.behind)}"
    return None
