"""Simulated events and their generation."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random

from game_events.config.producer import GAME_FIELDS, Fields
from game_events.producer.schema_versions import custom_columns

DEFAULT_BASE_TIME = datetime(2024, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
US_PER_S = 1_000_000
US_PER_DAY = 86_400 * US_PER_S
#: Share of the custom values that are left unset, so that NULL occurs.
UNSET_SHARE = 0.05
MAX_DAYS_LATE = 30


class PoisonKind(StrEnum):
    """Kinds of undecodable record values."""

    UNFRAMED_JSON = "unframed_json"  # JSON text instead of a framed message
    WRONG_MAGIC = "wrong_magic"  # a complete message with a wrong magic byte
    TRUNCATED = "truncated"  # a valid frame; the payload ends within a field
    UNKNOWN_SCHEMA = "unknown_schema"  # a complete message with an unregistered schema id
    EMPTY = "empty"  # zero bytes (not NULL: that would be a tombstone)


@dataclass(frozen=True, slots=True)
class GameEvent:
    """Values of one message.

    Attributes:
        version: version of the schema, 1 .. 10.
        timestamp_us: microseconds since 1970-01-01 UTC.
        game, gamer: the entity and the key.
        values: values of the other fields, in the order of the settings.
        custom: values of ``col_custom_0 ..`` in order; None is unset.
    """

    version: int
    game: str
    gamer: str
    timestamp_us: int
    values: tuple[object, ...]
    custom: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class SimulatedRecord:
    """One Kafka record to write; `poison`: malformed value, None: it decodes; `duplicate`: the event was sent before."""

    event: GameEvent
    poison: PoisonKind | None = None
    duplicate: bool = False


def microseconds(moment: datetime) -> int:
    """Exact integer microseconds since 1970 (`datetime.timestamp` is a float and rounds)."""
    return (moment - EPOCH) // MICROSECOND


def from_microseconds(value: int) -> datetime:
    """The inverse of `microseconds`."""
    return EPOCH + value * MICROSECOND


class EventFactory:
    """Generates events, deterministic for the same arguments and calls."""

    def __init__(
        self, seed: int, gamers_per_game: int, base_time: datetime, late_share: float = 0.0, fields: Fields = GAME_FIELDS
    ) -> None:
        self._random = Random(f"events/{seed}")  # noqa: S311 - simulation, no secrets
        self._late = Random(f"late/{seed}")  # noqa: S311 - separate, so that the share changes no other values
        self._gamers = gamers_per_game
        self._base_us = microseconds(base_time)
        self._late_share = late_share
        self._made = 0
        self._makers = tuple(generator.make for _, generator in fields)

    def make(self, game: str, version: int) -> GameEvent:
        """The next event: about a second after the one before, unless it is late."""
        draw = self._random
        timestamp_us = self._base_us + self._made * US_PER_S + draw.randrange(US_PER_S)
        if self._late.random() < self._late_share:
            timestamp_us -= self._late.randrange(US_PER_DAY, MAX_DAYS_LATE * US_PER_DAY)
        self._made += 1
        return GameEvent(
            version=version,
            game=game,
            gamer=f"{game}-{draw.randrange(self._gamers):04d}",
            timestamp_us=timestamp_us,
            values=tuple(make(draw) for make in self._makers),
            custom=tuple(
                None if draw.random() < UNSET_SHARE else f"c{index}-{draw.getrandbits(48):012x}"
                for index in range(len(custom_columns(version)))
            ),
        )
