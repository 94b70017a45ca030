"""Reproducible streams of simulated records: a wave with faults, or for benchmarks a pool of events that is sent repeatedly."""

from collections.abc import Iterator
from itertools import cycle, islice
from random import Random
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from game_events.config.producer import DEFAULT_GAMES, GAME_FIELDS, Fields
from game_events.producer.events import DEFAULT_BASE_TIME, EventFactory, GameEvent, PoisonKind, SimulatedRecord
from game_events.producer.kafka_writer import BATCH, BatchMessage
from game_events.producer.schema_versions import MAX_VERSION

GameName = Annotated[str, Field(min_length=1)]
GameNames = Annotated[tuple[GameName, ...], Field(min_length=1)]
Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Arguments(BaseModel):
    """Arguments of every simulation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: A count means 1 .. count; a tuple names the versions.
    versions: Version | Annotated[tuple[Version, ...], Field(min_length=1)] = 2
    seed: int = 0
    base_time: AwareDatetime = DEFAULT_BASE_TIME
    fields: Fields = GAME_FIELDS

    @property
    def version_numbers(self) -> tuple[int, ...]:
        """The versions in use, ascending, each once."""
        return tuple(range(1, self.versions + 1)) if isinstance(self.versions, int) else tuple(sorted(set(self.versions)))

    def _random(self, purpose: str) -> Random:
        """A generator of its own for each purpose, so that a share changes no other values."""
        return Random(f"{purpose}/{self.seed}")  # noqa: S311 - simulation, no secrets


class Simulation(_Arguments):
    """Arguments of one wave of events, which determine its records and their order.

    Duplicates and poison are additional to `records_per_game_and_version`, each right after its original; their shares do not
    change events.
    """

    games: GameNames = DEFAULT_GAMES
    records_per_game_and_version: int = Field(100, ge=1)
    gamers_per_game: int = Field(20, ge=1)
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
        factory = EventFactory(self.seed, self.gamers_per_game, self.base_time, self.late_share, self.fields)
        for round_of_versions in self._rounds():
            for game in self.games:
                for version in round_of_versions:
                    yield factory.make(game, version)

    def records(self) -> Iterator[SimulatedRecord]:
        """The stream, faults included."""
        again, spoil, kinds = self._random("duplicates"), self._random("poison"), cycle(PoisonKind)
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


class BulkSimulation(_Arguments):
    """Arguments of a bulk load: a pool of distinct events, sent repeatedly; its manifest is exact.

    Attributes:
        records: Kafka records in total.
        games: how many (``game_0001`` ..), or their names.
        hot_share: share of the pool that belongs to the first game; None spreads evenly.
        pool_per_version: distinct events of each version.
        bad_share: share of events in the pool with a truncated payload, included in `records`; it changes no other event.
    """

    records: int = Field(ge=1)
    games: Annotated[int, Field(ge=1)] | GameNames = DEFAULT_GAMES
    hot_share: Share | None = None
    gamers_per_game: int = Field(100, ge=1)
    pool_per_version: int = Field(50_000, ge=1)
    bad_share: Share = 0.0

    @property
    def game_names(self) -> tuple[str, ...]:
        """Names of the games, the hot one first."""
        if isinstance(self.games, int):
            return tuple(f"game_{number:04d}" for number in range(1, self.games + 1))
        return self.games

    def pool(self) -> list[SimulatedRecord]:
        """The distinct events, versions interleaved, some of them malformed; at most `records`."""
        factory = EventFactory(self.seed, self.gamers_per_game, self.base_time, fields=self.fields)
        names, versions, spoil = self._names(), cycle(self.version_numbers), self._random("bad")
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
        names, draw = self.game_names, self._random("hot")
        others = cycle(names if self.hot_share is None else names[1:] or names)
        while True:
            hot = self.hot_share is not None and draw.random() < self.hot_share
            game = names[0] if hot else next(others)
            yield from (game for _ in self.version_numbers)
