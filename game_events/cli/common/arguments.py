"""Options that several commands share."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from game_events.errors import ConfigurationError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def words(given: list[str] | None) -> list[str]:
    """Words of an option that may be repeated, hold several separated by commas, or both."""
    return [word.strip() for text in given or [] for word in text.split(",") if word.strip()]


Json = Annotated[bool, typer.Option("--json", help="The last line of stdout is one JSON object.")]


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
