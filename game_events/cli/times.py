"""How a user says a time: so long ago, or a date."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from game_events.errors import ConfigurationError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def since(text: str | None, now: datetime | None = None, option: str = "--since") -> datetime | None:
    """`30m`, `12h`, `1d`, `2w` before now; or an ISO date or time (without a zone: UTC).

    Raises:
        ConfigurationError: it is neither; the message shows what it may be.
    """
    if text is None:
        return None
    length = re.fullmatch(r"(\d{1,9})([smhdw])", text.strip())
    try:
        if length:
            return (now or datetime.now(UTC)) - timedelta(**{_UNITS[length[2]]: int(length[1])})
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{option}: {text!r} is no time: 30m, 12h, 1d, 2w, or 2026-03-01T12:00") from None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
