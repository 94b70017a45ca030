"""When the sensor `kafka_lag` starts a run: a decision over plain values, without Dagster or a broker."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from game_events.pipeline.observability.lag import Standing

#: A run that got nowhere is tried again after so long, doubled each time, up to the second figure.
FIRST_WAIT_S = 30.0
LONGEST_WAIT_S = 900.0
#: Layers left behind are first left to automation, or to whoever materializes them by hand.
GRACE_S = 60.0
#: Events of the topic's asset are at least so far apart, unless the lag is gone.
TELL_EVERY_S = 60.0


class Memory(BaseModel):
    """The sensor's cursor.

    Attributes:
        asked: position at the last request, `attempts`: requests made at it, `asked_at`: when (seconds since 1970).
        seen: position at the last tick, `seen_at`: when it was first seen.
        told: offsets of the last event of the topic's asset, `told_at`: when.
        lag_is_high: an alert was sent, and none yet that it is over.
    """

    asked: str = ""
    attempts: int = 0
    asked_at: float = 0.0
    seen: str = ""
    seen_at: float = 0.0
    told: str = ""
    told_at: float = 0.0
    lag_is_high: bool = False

    @classmethod
    def read(cls, cursor: str | None) -> Memory:
        """A cursor's memory; an empty one if it is none."""
        try:
            return cls.model_validate_json(cursor or "{}")
        except ValidationError:
            return cls()


@dataclass(frozen=True)
class LagDecision:
    """Whether to ask for a run.

    Attributes:
        why: why, or why not, in words.
        run_key: of the request; None: no run.
        memory: the next cursor.
    """

    why: str
    run_key: str | None
    memory: Memory


def wait_s(attempts: int) -> float:
    """Seconds after the last of so many requests at one position."""
    return min(FIRST_WAIT_S * 2.0 ** min(attempts - 1, 20), LONGEST_WAIT_S) if attempts else 0.0


def decide(standing: Standing, memory: Memory, now: float) -> LagDecision:
    """A run if there is something to do, and the last runs for it did not get nowhere just now."""
    position = standing.position
    if position != memory.seen:
        memory = memory.model_copy(update={"seen": position, "seen_at": now})
    why = reason(standing)
    if why is None:
        return LagDecision(f"nothing to do: bronze has every record of {standing.name}", None, memory)
    attempts = memory.attempts if memory.asked == position else 0
    due = memory.asked_at + wait_s(attempts) if attempts else 0.0
    if not standing.to_read:
        due = max(due, memory.seen_at + GRACE_S)
    if now < due:
        tried = f"; {attempts} runs for it got nowhere" if attempts else ""
        return LagDecision(f"{why}{tried}; the next run is due in {due - now:.0f} s", None, memory)
    key = f"{position}-{attempts + 1}"
    return LagDecision(why, key, memory.model_copy(update={"asked": position, "attempts": attempts + 1, "asked_at": now}))


def reason(standing: Standing) -> str | None:
    """What there is to do, in words."""
    if standing.ahead:
        return f"{', '.join(map(str, standing.ahead))} end before what bronze has read"
    if standing.total_lag:
        return f"{standing.name}: {standing.total_lag:,} records to read"
    if not standing.made:
        return f"{standing.name}: where bronze starts is not settled yet"
    if standing.failed:
        shown = ", ".join(standing.failed[:10])
        more = f" and {len(standing.failed) - 10} more" if len(standing.failed) > 10 else ""
        return f"games that failed or wait: {shown}{more}"
    if standing.behind:
        return f"behind the layer before: {', '.join(standing.behind)}"
    return None
