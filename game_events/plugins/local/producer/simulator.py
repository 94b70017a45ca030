"""Simulated events, and reproducible streams of them: a wave with faults; for benchmarks a pool that is sent repeatedly."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import cycle, islice
from random import Random
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from game_events.plugins.local.producer.messages import BATCH, MAX_VERSION, BatchMessage, custom_columns
from game_events.plugins.local.settings import DEFAULT_GAMES, GAME_FIELDS, Fields

DEFAULT_BASE_TIME = datetime(2024, 1, 1, tzinfo=UTC)
US_PER_S = 1_000_000
US_PER_DAY = 86_400 * US_PER_S
#: Share of the custom values that are left unset, so that NULL occurs.
UNSET_SHARE = 0.05
MAX_DAYS_LATE = 30
GameName = Annotated[str, Field(min_length=1)]
GameNames = Annotated[tuple[GameName, ...], Field(min_length=1)]
Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]
Share = Annotated[float, Field(ge=0, le=1)]


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
        game, gamer: the entity and the key.
        values: values of the other fields, in the order of the settings.
        custom: values of ``col_custom_0 ..`` in order; None is unset.
    """

    version: int
    game: str
    gamer: str
    time: datetime
    values: tuple[object, ...]
    custom: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class SimulatedRecord:
    """One Kafka record to write; `poison`: malformed value, None: it decodes; `duplicate`: the event was sent before."""

    event: GameEvent
    poison: PoisonKind | None = None
    duplicate: bool = False


class Arguments(BaseModel):
    """Arguments of every simulation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: A count means 1 .. count; a tuple names the versions.
    versions: Version | Annotated[tuple[Version, ...], Field(min_length=1)] = 2
    seed: int = 0
    gamers_per_game: int = Field(20, ge=1)
    base_time: AwareDatetime = DEFAULT_BASE_TIME
    #: Between the times of two events.
    seconds_between: float = Field(1.0, gt=0)
    fields: Fields = GAME_FIELDS
    #: Random characters appended to each event's first custom value that is set, for larger records.
    more_bytes: int = Field(0, ge=0)

    @property
    def version_numbers(self) -> tuple[int, ...]:
        """The versions in use, ascending, each once."""
        return tuple(range(1, self.versions + 1)) if isinstance(self.versions, int) else tuple(sorted(set(self.versions)))

    def random(self, purpose: str) -> Random:
        """A generator of its own for each purpose, so that a share changes no other values."""
        return Random(f"{purpose}/{self.seed}")  # noqa: S311 - simulation, no secrets


class EventFactory:
    """Generates events, deterministic for the same arguments and calls."""

    def __init__(self, arguments: Arguments, late_share: float = 0.0) -> None:
        self._random = arguments.random("events")
        self._late = arguments.random("late")
        self._late_share = late_share
        self._gamers = arguments.gamers_per_game
        self._base_time = arguments.base_time.astimezone(UTC)
        self._seconds_between = arguments.seconds_between
        self._made = 0
        self._more = arguments.random("more")
        self._more_bytes = arguments.more_bytes
        self._makers = tuple(generator.make for _, generator in arguments.fields)

    def make(self, game: str, version: int) -> GameEvent:
        """The next event: about so many seconds after the one before, unless it is late."""
        draw = self._random
        time = self._base_time + timedelta(seconds=self._made * self._seconds_between, microseconds=draw.randrange(US_PER_S))
        if self._late.random() < self._late_share:
            time -= timedelta(microseconds=self._late.randrange(US_PER_DAY, MAX_DAYS_LATE * US_PER_DAY))
        self._made += 1
        gamer = f"{game}-{draw.randrange(self._gamers):04d}"
        values = tuple(make(draw) for make in self._makers)
        custom = tuple(
            None if draw.random() < UNSET_SHARE else f"c{index}-{draw.getrandbits(48):012x}"
            for index in range(len(custom_columns(version)))
        )
        return GameEvent(version, game, gamer, time, values, self._longer(custom) if self._more_bytes else custom)

    def _longer(self, custom: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """The values, the first one that is set with more characters."""
        values = list(custom)
        for index, value in enumerate(values):
            if value is not None:
                values[index] = value + self._more.randbytes((self._more_bytes + 1) // 2).hex()[: self._more_bytes]
                break
        return tuple(values)


class Simulation(Arguments):
    """Arguments of one wave of events, which determine its records and their order.

    Duplicates and poison are additional to `records_per_game_and_version`, each right after its original; their shares do not
    change events.
    """

    games: GameNames = DEFAULT_GAMES
    records_per_game_and_version: int = Field(100, ge=1)
    late_share: Share = 0.0
    duplicate_share: Share = 0.0
    poison_share: Share = 0.0
    interleaving: tuple[Version, ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.games)) != len(self.games):
            raise ValueError("games names a game twice")
        if self.interleaving is not None and set(self.interleaving) != set(self.version_numbers):
            raise ValueError(f"interleaving must hold exactly the versions {self.version_numbers}")
        return self

    def events(self) -> Iterator[GameEvent]:
        """Each original event once; versions alternate until each is used up."""
        factory = EventFactory(self, self.late_share)
        for round_of_versions in self._rounds():
            for game in self.games:
                for version in round_of_versions:
                    yield factory.make(game, version)

    def records(self) -> Iterator[SimulatedRecord]:
        """The stream, faults included."""
        again = self.random("duplicates")
        spoil = self.random("poison")
        kinds = cycle(PoisonKind)
        for event in self.events():
            yield SimulatedRecord(event)
            if again.random() < self.duplicate_share:
                yield SimulatedRecord(event, duplicate=True)
            if spoil.random() < self.poison_share:
                yield SimulatedRecord(event, poison=next(kinds))

    def _rounds(self) -> Iterator[tuple[int, ...]]:
        """One game's versions, by cycles of the interleaving."""
        left = dict.fromkeys(self.version_numbers, self.records_per_game_and_version)
        while any(left.values()):
            this_round = []
            for version in self.interleaving or self.version_numbers:
                if left[version]:
                    left[version] -= 1
                    this_round.append(version)
            yield tuple(this_round)


class BulkSimulation(Arguments):
    """Arguments of a bulk load: a pool of distinct events, sent repeatedly; its manifest is exact.

    Attributes:
        records: Kafka records in total.
        games: how many (``game_0001`` ..), or their names.
        hot_share: share of the pool that belongs to the first game; None spreads evenly.
        pool_per_version: distinct events of each version.
        bad_share: share of events in the pool with a truncated payload, included in `records`; it changes no other event.
        late_share: share of events in the pool that are up to `MAX_DAYS_LATE` days late.
    """

    records: int = Field(ge=1)
    games: Annotated[int, Field(ge=1)] | GameNames = DEFAULT_GAMES
    hot_share: Share | None = None
    gamers_per_game: int = Field(100, ge=1)
    pool_per_version: int = Field(50_000, ge=1)
    bad_share: Share = 0.0
    late_share: Share = 0.0

    @property
    def game_names(self) -> tuple[str, ...]:
        """Names of the games, the hot one first."""
        if isinstance(self.games, int):
            return tuple(f"game_{number:04d}" for number in range(1, self.games + 1))
        return self.games

    def pool(self) -> list[SimulatedRecord]:
        """The distinct events, versions interleaved, some of them malformed; at most `records`."""
        factory = EventFactory(self, self.late_share)
        names = self._names()
        versions = cycle(self.version_numbers)
        spoil = self.random("bad")
        return [
            SimulatedRecord(
                factory.make(next(names), next(versions)),
                poison=PoisonKind.TRUNCATED if spoil.random() < self.bad_share else None,
            )
            for _ in range(min(self.records, self.pool_per_version * len(self.version_numbers)))
        ]

    def times_sent(self, size: int) -> Iterator[int]:
        """Number of times that each event of the pool is sent, in order."""
        rounds, rest = divmod(self.records, size)
        return (rounds + (index < rest) for index in range(size))

    def batches(self, messages: list[BatchMessage]) -> Iterator[list[BatchMessage]]:
        """The pool's messages, repeated, `records` in total."""
        left = islice(cycle(messages), self.records)
        while batch := list(islice(left, BATCH)):
            yield batch

    def _names(self) -> Iterator[str]:
        """The game of each event, the same for a round of versions, so that every game gets every version."""
        names = self.game_names
        draw = self.random("hot")
        others = cycle(names if self.hot_share is None else names[1:] or names)
        while True:
            hot = self.hot_share is not None and draw.random() < self.hot_share
            game = names[0] if hot else next(others)
            yield from (game for _ in self.version_numbers)
