"""Reproducible stream of simulated records: games, versions, order, faults."""

from collections.abc import Iterator
from itertools import cycle
from random import Random
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from game_events.config.producer import DEFAULT_GAMES, GAME_FIELDS, Fields
from game_events.producer.events import DEFAULT_BASE_TIME, EventFactory, GameEvent, PoisonKind, SimulatedRecord
from game_events.producer.schema_versions import MAX_VERSION

__all__ = ["DEFAULT_GAMES", "Simulation", "version_numbers"]

GameName = Annotated[str, Field(min_length=1)]
Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]
#: A count means 1 .. count; a tuple names the versions.
Versions = Version | Annotated[tuple[Version, ...], Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def version_numbers(versions: Versions) -> tuple[int, ...]:
    """``2`` means (1, 2); a tuple means itself, sorted, each once."""
    return tuple(range(1, versions + 1)) if isinstance(versions, int) else tuple(sorted(set(versions)))


class Simulation(BaseModel):
    """Arguments of one wave of events, which determine its records and their order.

    Duplicates and poison are additional to `records_per_game_and_version`, each right after its original; their shares do not
    change events.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    games: Annotated[tuple[GameName, ...], Field(min_length=1)] = DEFAULT_GAMES
    records_per_game_and_version: int = Field(100, ge=1)
    versions: Versions = 2
    seed: int = 0
    gamers_per_game: int = Field(20, ge=1)
    base_time: AwareDatetime = DEFAULT_BASE_TIME
    late_share: Share = 0.0
    duplicate_share: Share = 0.0
    poison_share: Share = 0.0
    interleaving: tuple[Version, ...] | None = None
    fields: Fields = GAME_FIELDS

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.games)) != len(self.games):
            raise ValueError("games names a game twice")
        if self.interleaving is not None and set(self.interleaving) != set(self.version_numbers):
            raise ValueError(f"interleaving must hold exactly the versions {self.version_numbers}")
        return self

    @property
    def version_numbers(self) -> tuple[int, ...]:
        """The versions in use, ascending."""
        return version_numbers(self.versions)

    def events(self) -> Iterator[GameEvent]:
        """Each original event once; versions alternate until each is used up."""
        factory = EventFactory(self.seed, self.gamers_per_game, self.base_time, self.late_share, self.fields)
        for round_of_versions in self._rounds():
            for game in self.games:
                for version in round_of_versions:
                    yield factory.make(game, version)

    def records(self) -> Iterator[SimulatedRecord]:
        """The stream, faults included."""
        again = Random(f"duplicates/{self.seed}")  # noqa: S311 - simulation, no secrets
        spoil = Random(f"poison/{self.seed}")  # noqa: S311
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
