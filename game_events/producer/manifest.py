"""Manifest of sent records: the expected results in all tables."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from game_events.errors import DataError
from game_events.producer.events import PoisonKind


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


#: In the file always with six digits, so that equal manifests are equal bytes.
Moment = Annotated[datetime, PlainSerializer(_iso, return_type=str, when_used="json")]


class NumberTruth(BaseModel):
    """Sum, minimum and maximum of one key's numeric field."""

    model_config = ConfigDict(frozen=True)

    total: float
    low: float
    high: float

    def merge(self, other: NumberTruth) -> NumberTruth:
        """Both together."""
        return NumberTruth(total=self.total + other.total, low=min(self.low, other.low), high=max(self.high, other.high))


class GamerTruth(BaseModel):
    """Expected gold values of one gamer, duplicates included.

    Attributes:
        numbers: numeric field -> its values' aggregates.
    """

    model_config = ConfigDict(frozen=True)

    session_count: int
    min_timestamp: Moment
    max_timestamp: Moment
    numbers: dict[str, NumberTruth] = Field(default_factory=dict)

    def merge(self, other: GamerTruth) -> GamerTruth:
        """Both together."""
        return GamerTruth(
            session_count=self.session_count + other.session_count,
            min_timestamp=min(self.min_timestamp, other.min_timestamp),
            max_timestamp=max(self.max_timestamp, other.max_timestamp),
            numbers={name: mine.merge(other.numbers[name]) for name, mine in self.numbers.items() if name in other.numbers},
        )


class Manifest(BaseModel):
    """All records sent to one topic.

    Attributes:
        records_total: Kafka records, poison included.
        records: {game: {version: decodable records, duplicates included}}.
        duplicates: number of repeated events among them.
        poison: {kind: records}.
        truth: {game: {gamer: truth}}.
    """

    model_config = ConfigDict(frozen=True)

    topic: str
    seeds: tuple[int, ...]
    schema_ids: dict[int, int]
    records_total: int = 0
    records: dict[str, dict[int, int]] = Field(default_factory=dict)
    duplicates: int = 0
    poison: dict[PoisonKind, int] = Field(default_factory=dict)
    tombstones: int = 0
    truth: dict[str, dict[str, GamerTruth]] = Field(default_factory=dict)

    @property
    def decodable(self) -> int:
        """Records that silver must hold, over all games."""
        return sum(sum(by_version.values()) for by_version in self.records.values())

    def merge(self, other: Manifest) -> Manifest:
        """This wave and another one; DataError for another topic, or other schema ids."""
        if self.topic != other.topic:
            raise DataError(f"manifests of two topics do not add up: {self.topic!r} and {other.topic!r}")
        for version in self.schema_ids.keys() & other.schema_ids.keys():
            one, two = self.schema_ids[version], other.schema_ids[version]
            if one != two:
                raise DataError(f"version {version} of {self.topic!r} has schema id {one} and {two}: registry reset?")
        truth = {game: dict(gamers) for game, gamers in self.truth.items()}
        for game, gamers in other.truth.items():
            known = truth.setdefault(game, {})
            for gamer, value in gamers.items():
                known[gamer] = known[gamer].merge(value) if gamer in known else value
        return Manifest(
            topic=self.topic,
            seeds=self.seeds + other.seeds,
            schema_ids=self.schema_ids | other.schema_ids,
            records_total=self.records_total + other.records_total,
            records={
                game: dict(Counter(self.records.get(game, {})) + Counter(other.records.get(game, {})))
                for game in self.records | other.records
            },
            duplicates=self.duplicates + other.duplicates,
            poison=dict(Counter(self.poison) + Counter(other.poison)),
            tombstones=self.tombstones + other.tombstones,
            truth=truth,
        )

    def save(self, path: Path) -> None:
        """Write JSON atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".tmp")
        draft.write_text(self.model_dump_json(indent=1) + "\n", "utf-8")
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a saved manifest."""
        return cls.model_validate_json(path.read_text("utf-8"))
