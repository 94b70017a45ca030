"""The alert that the topic's lag is high, and the one that it is over."""

from __future__ import annotations

from game_events.assets.sensors.lag_decision import Memory
from game_events.pipeline.alerts import Alert, send
from game_events.pipeline.standing import Standing
from game_events.settings import Settings


def alert_on_lag(settings: Settings, standing: Standing, memory: Memory) -> Memory:
    """Send one alert when the lag reaches `alert_lag_records`, and one when it has fallen below half of that.

    Returns:
        the memory that knows of it; unchanged if the receiver did not take it, so that the next tick tries again.
    """
    threshold, lag, topic = settings.alert_lag_records, standing.total_lag, standing.name
    if not threshold or settings.alert_webhook_url is None:
        return memory.model_copy(update={"lag_is_high": False})
    # Of the same alert, sent again, the receiver gets the same id.
    ids = sorted({lane.topic_id for lane in standing.seen.latest})
    at = f"{'+'.join(ids[:1])}:{sum(standing.seen.latest.values())}"
    counts = {"lag": lag, "threshold": threshold, "partitions": len(standing.seen.latest)}
    if not memory.lag_is_high and lag >= threshold:
        text = f"{topic}: {lag:,} records are not read yet (alert at {threshold:,})"
        alert = Alert(id=f"lag_high:{at}", event="lag_high", summary=text, counts=counts)
    elif memory.lag_is_high and lag * 2 < threshold:
        text = f"{topic}: lag is down to {lag:,} records"
        alert = Alert(id=f"recovered:lag_high:{at}", event="recovered", of="lag_high", summary=text, counts=counts)
    else:
        return memory
    return memory.model_copy(update={"lag_is_high": alert.event == "lag_high"}) if send(settings, alert) else memory
