"""Builds a manifest from the sent records."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import cast

from game_events.config.producer import GAME_FIELDS, Fields
from game_events.producer.events import GameEvent, PoisonKind, SimulatedRecord, from_microseconds
from game_events.producer.manifest import GamerTruth, Manifest, NumberTruth


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
        else:
            self._add_event(record.event, times)
            self._duplicates += times - 1 + record.duplicate

    def _add_event(self, event: GameEvent, times: int) -> None:
        self._records[event.game][event.version] += times
        at = event.timestamp_us
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
