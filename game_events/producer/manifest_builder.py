"""Counts what is sent, record by record, and makes the manifest of it."""

from __future__ import annotations

from collections import Counter, defaultdict

from game_events.producer.events import GameEvent, PoisonKind, SimulatedRecord, from_microseconds
from game_events.producer.manifest import GamerTruth, Manifest


class ManifestBuilder:
    """Counts records as they are sent."""

    def __init__(self) -> None:
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
                        session_count=count, min_timestamp=from_microseconds(low), max_timestamp=from_microseconds(high)
                    )
                    for gamer, (count, low, high) in sorted(gamers.items())
                }
                for game, gamers in self._truth.items()
            },
        )
