"""After how many days rows are removed (`RETENTION_DAYS`): by layer, and for single games and message types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from game_events.config.definitions.computed import is_name

#: What has an age, and those of them of which games and message types may have limits of their own.
LAYERS = ("bronze", "raw", "silver", "quarantine", "event_log")
BY_GAME = ("bronze", "raw", "silver")
#: Stands for every game in a limit of a message type.
EVERY_GAME = "*"
#: Between the layer, the game and the type in a name.
_BETWEEN = ":"


@dataclass(frozen=True)
class RetentionDays:
    """The limits; `days`: layer, `layer:game`, `layer:game:type` or `layer:*:type` -> days; 0: never."""

    days: Mapping[str, float] = field(default_factory=dict)

    def has(self, layer: str) -> bool:
        """Whether any rows of a layer have a limit."""
        return self.shortest(layer) is not None

    def shortest(self, layer: str) -> float | None:
        """The shortest limit in days that any row of a layer has; None: all stay."""
        return min((limit for name, limit in self.days.items() if limit and name.partition(_BETWEEN)[0] == layer), default=None)

    def of(self, layer: str, game: str | None = None, message_type: str | None = None) -> float | None:
        """The limit in days that says most about a row; None: the row stays."""
        of_type = [f"{layer}:{game}:{message_type}", f"{layer}:{EVERY_GAME}:{message_type}"] if message_type else []
        days = next((self.days[name] for name in (*of_type, f"{layer}:{game}", layer) if name in self.days), 0)
        return days or None

    def games(self, layer: str) -> frozenset[str]:
        """Games with limits of their own."""
        return frozenset(game for game, _ in self._exceptions(layer) if game != EVERY_GAME)

    def types(self, layer: str, game: str | None = None) -> frozenset[str]:
        """Message types with limits of their own, of one game or of any."""
        named = ((of, message_type) for of, message_type in self._exceptions(layer) if message_type)
        return frozenset(message_type for of, message_type in named if game is None or of in (game, EVERY_GAME))

    def _exceptions(self, layer: str) -> Iterable[tuple[str, str]]:
        for name in self.days:
            of, _, rest = name.partition(_BETWEEN)
            game, _, message_type = rest.partition(_BETWEEN)
            if of == layer and game:
                yield game, message_type


def problem_of(days: Mapping[str, float]) -> str | None:
    """What is wrong with limits, in words; None: nothing."""
    for name, limit in days.items():
        layer, *more = name.split(_BETWEEN, 2)
        if layer not in LAYERS:
            return f"{name!r}: the layer must be one of {', '.join(LAYERS)}"
        if more and layer not in BY_GAME:
            return f"{name!r}: only {', '.join(BY_GAME)} may have limits of games"
        if more and not (is_name(more[0]) or (more[0] == EVERY_GAME and len(more) > 1)):
            return f"{name!r}: must be layer:game, layer:game:type or layer:{EVERY_GAME}:type"
        if len(more) > 1 and not more[1].strip():
            return f"{name!r}: the name of the message type is missing"
        if not 0 <= limit < MOST_DAYS:
            return f"{name!r}: must be days from 0 (never) to {MOST_DAYS:,}"
    return None


#: 1,000 years: a time so long ago still has a year.
MOST_DAYS = 365_000
