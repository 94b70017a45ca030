"""Bulk load for benchmarks: a pool of distinct events, serialized once, sent repeatedly.

The manifest is exact: each event of the pool counts as often as it was sent.
"""

from collections.abc import Iterator
from itertools import cycle
from random import Random
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from game_events.config.producer import DEFAULT_GAMES, GAME_FIELDS, Fields
from game_events.producer.encoding import EventEncoder
from game_events.producer.events import DEFAULT_BASE_TIME, EventFactory, PoisonKind, SimulatedRecord
from game_events.producer.kafka_writer import BatchMessage
from game_events.producer.simulator import GameName, Share, Versions, version_numbers

#: Messages of one call into librdkafka.
BATCH = 10_000
#: Messages that may wait in librdkafka: about 100 MB at 90 bytes each.
QUEUE_LIMIT = 500_000
#: Measured on 2 cores against one broker on the same machine (see `produce_bulk`).
TUNING: dict[str, object] = {
    "linger_ms": 50,
    "batch_num_messages": 100_000,
    "batch_size": 1_000_000,
    "queue_buffering_max_messages": QUEUE_LIMIT + BATCH,
    "queue_buffering_max_kbytes": 1_000_000,
}


class BulkSimulation(BaseModel):
    """Arguments of a bulk load.

    Attributes:
        records: Kafka records in total.
        games: how many (``game_0001`` ..), or their names.
        hot_share: share of the pool that belongs to the first game; None spreads evenly.
        pool_per_version: distinct events of each version.
        bad_share: share of events in the pool with a truncated payload, included in `records`; it changes no other event.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    records: int = Field(ge=1)
    games: Annotated[int, Field(ge=1)] | Annotated[tuple[GameName, ...], Field(min_length=1)] = DEFAULT_GAMES
    hot_share: Share | None = None
    versions: Versions = 2
    seed: int = 0
    gamers_per_game: int = Field(100, ge=1)
    base_time: AwareDatetime = DEFAULT_BASE_TIME
    pool_per_version: int = Field(50_000, ge=1)
    bad_share: Share = 0.0
    fields: Fields = GAME_FIELDS

    @property
    def game_names(self) -> tuple[str, ...]:
        """Names of the games, the hot one first."""
        if isinstance(self.games, int):
            return tuple(f"game_{number:04d}" for number in range(1, self.games + 1))
        return self.games

    @property
    def version_numbers(self) -> tuple[int, ...]:
        """The versions in use, ascending."""
        return version_numbers(self.versions)

    def pool(self) -> list[SimulatedRecord]:
        """The distinct events, versions interleaved, some of them malformed; at most `records`."""
        factory = EventFactory(self.seed, self.gamers_per_game, self.base_time, fields=self.fields)
        names = self._names()
        versions = cycle(self.version_numbers)
        size = min(self.records, self.pool_per_version * len(self.version_numbers))
        spoil = Random(f"bad/{self.seed}")  # noqa: S311 - simulation, no secrets
        return [
            SimulatedRecord(
                factory.make(next(names), next(versions)),
                poison=PoisonKind.TRUNCATED if spoil.random() < self.bad_share else None,
            )
            for _ in range(size)
        ]

    def times_sent(self, size: int) -> Iterator[int]:
        """Number of times that each event of the pool is sent, in order."""
        rounds, rest = divmod(self.records, size)
        return (rounds + (index < rest) for index in range(size))

    def batches(self, messages: list[BatchMessage]) -> Iterator[list[BatchMessage]]:
        """The pool's messages, repeated, `records` in total."""
        chunks = [messages[start : start + BATCH] for start in range(0, len(messages), BATCH)]
        left = self.records
        for chunk in cycle(chunks):
            yield chunk[:left]
            left -= min(left, len(chunk))
            if not left:
                return

    def _names(self) -> Iterator[str]:
        """The game of each event, the same for a round of versions, so that every game gets every version."""
        names = self.game_names
        others = cycle(names if self.hot_share is None else names[1:] or names)
        draw = Random(f"hot/{self.seed}")  # noqa: S311 - simulation, no secrets
        while True:
            hot = self.hot_share is not None and draw.random() < self.hot_share
            game = names[0] if hot else next(others)
            yield from (game for _ in self.version_numbers)


def encode_pool(pool: list[SimulatedRecord], encoder: EventEncoder) -> list[BatchMessage]:
    """The pool as framed messages, key = gamer."""
    return [{"key": record.event.gamer.encode(), "value": encoder.record(record)} for record in pool]
