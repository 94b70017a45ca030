"""Manifest of sent records: the expected results in all tables, and how it is built from the records."""

from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Self, cast

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from game_events.config.producer import GAME_FIELDS, Fields
from game_events.errors import DataError
from game_events.producer.simulator import PoisonKind, SimulatedRecord, from_microseconds


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

    def merge(self, other: Self) -> Self:
        """Both together."""
        return type(self)(total=self.total + other.total, low=min(self.low, other.low), high=max(self.high, other.high))


class GamerTruth(BaseModel):
    """Expected gold values of one gamer, duplicates included, and aggregates of the numeric fields."""

    model_config = ConfigDict(frozen=True)

    session_count: int
    min_timestamp: Moment
    max_timestamp: Moment
    numbers: dict[str, NumberTruth] = Field(default_factory=dict)

    def merge(self, other: Self) -> Self:
        """Both together."""
        return type(self)(
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

    def merge(self, other: Self) -> Self:
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
        return type(self)(
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
    def load(cls, path: Path) -> Self:
        """Read a saved manifest."""
        return cls.model_validate_json(path.read_text("utf-8"))


class ManifestBuilder:
    """Counts records as they are sent."""

    def __init__(self, fields: Fields = GAME_FIELDS) -> None:
        """`fields`: fields of the events' values; numeric ones are aggregated."""
        self._numeric = [(place, name) for place, (name, generator) in enumerate(fields) if generator.numeric]
        #: game -> gamer -> field -> [total, min, max].
        self._numbers: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(dict))
        self._records: dict[str, Counter[int]] = defaultdict(Counter)
        self._poison: Counter[PoisonKind] = Counter()
        self._duplicates = 0
        #: game -> gamer -> [count, min, max] (microseconds): far cheaper per record than a frozen model.
        self._truth: dict[str, dict[str, list[int]]] = defaultdict(dict)

    def add(self, record: SimulatedRecord, times: int = 1) -> None:
        """One record of the simulation that was sent `times` times."""
        if record.poison is not None:
            self._poison[record.poison] += times
            return
        event, at = record.event, record.event.timestamp_us
        self._duplicates += times - 1 + record.duplicate
        self._records[event.game][event.version] += times
        known = self._truth[event.game].setdefault(event.gamer, [0, at, at])
        known[0] += times
        known[1] = min(known[1], at)
        known[2] = max(known[2], at)
        for place, name in self._numeric:
            value = cast(float, event.values[place])
            sums = self._numbers[event.game][event.gamer].setdefault(name, [0, value, value])
            sums[0] += value * times
            sums[1] = min(sums[1], value)
            sums[2] = max(sums[2], value)

    def _numbers_of(self, game: str, gamer: str) -> dict[str, NumberTruth]:
        found = self._numbers[game][gamer] if self._numeric else {}
        return {name: NumberTruth(total=total, low=low, high=high) for name, (total, low, high) in found.items()}

    def build(self, topic: str, seed: int, schema_ids: dict[int, int]) -> Manifest:
        """The manifest of everything added."""
        return Manifest(
            topic=topic,
            seeds=(seed,),
            schema_ids=schema_ids,
            records_total=sum(counts.total() for counts in self._records.values()) + self._poison.total(),
            records={game: dict(sorted(counts.items())) for game, counts in self._records.items()},
            duplicates=self._duplicates,
            poison=dict(self._poison),
            truth={
                game: {
                    gamer: GamerTruth(
                        session_count=count,
                        min_timestamp=from_microseconds(low),
                        max_timestamp=from_microseconds(high),
                        numbers=self._numbers_of(game, gamer),
                    )
                    for gamer, (count, low, high) in sorted(gamers.items())
                }
                for game, gamers in self._truth.items()
            },
        )
