"""How far topic and layers are apart: read from the broker and the tables' logs, without Spark."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from game_events.lakehouse.progress import GOLD, SILVER, UNIFIED_LAYER, ProgressTable
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.pipeline.bronze import BATCH_APP
from game_events.pipeline.generations import BronzeIdentity
from game_events.pipeline.offset_loss import next_offsets
from game_events.settings import Settings
from game_events.sources.kafka import KafkaTopic, Offsets, TopicOffsets

#: Layers in the order in which rows pass them; each floor follows the one before.
LAYERS = (SILVER, GOLD, UNIFIED_LAYER)


@dataclass(frozen=True)
class Standing:
    """One moment.

    Attributes:
        topic: the topic's offsets.
        next: partition -> next offset, by bronze's own progress; of a partition it never read, the first one there is.
        lag: partition -> records that bronze has not read.
        made: bronze exists, so where it starts is settled.
        ahead: partitions that end before bronze's next offset: the topic was truncated, and a run says so.
        batch: bronze's last batch; `floors`: layer -> batch up to which it is complete.
        failed: games that a layer could not take, or has to look at again.
    """

    topic: TopicOffsets
    next: Offsets
    lag: Offsets
    made: bool = True
    ahead: tuple[int, ...] = ()
    batch: int = 0
    floors: dict[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()

    @property
    def total_lag(self) -> int:
        """Records that bronze has not read, all partitions together."""
        return sum(self.lag.values())

    @property
    def to_read(self) -> bool:
        """Whether a run of bronze has something to do: records, a start to settle, or an error to report."""
        return self.total_lag > 0 or not self.made or bool(self.ahead)

    @property
    def behind(self) -> tuple[str, ...]:
        """Layers that have not come as far as the one before."""
        steps = [self.batch, *(self.floors.get(layer, 0) for layer in LAYERS)]
        return tuple(layer for layer, before, here in zip(LAYERS, steps, steps[1:], strict=False) if here < before)

    @property
    def position(self) -> str:
        """Digest of everything that a run changes: the same again means that the runs between got nowhere."""
        # A table that is made, empty, moves nothing: no floor and a floor of 0 are the same.
        floors = sorted((layer, batch) for layer, batch in self.floors.items() if batch)
        parts = [self.topic.topic_id, sorted(self.next.items()), self.made, self.batch, floors, self.failed]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def look(settings: Settings, timeout_s: float) -> Standing:
    """Ask the broker (each answer within `timeout_s`) and read bronze's and the progress table's log.

    Raises:
        GameEventsError: the broker does not answer, there is no such topic, a table cannot be read.
    """
    topic = KafkaTopic(settings, timeout_s).offsets()
    lakehouse = Lakehouse.of(settings)
    bronze = lakehouse.table(BRONZE).open()
    if bronze is None:
        # The first run settles where it starts: only records that are there already can wait for it.
        earliest = settings.starting_offsets == "earliest"
        lag = {p: topic.latest[p] - topic.earliest[p] if earliest else 0 for p in topic.latest}
        return Standing(topic, topic.earliest, lag, made=earliest)
    # A partition that bronze never read is read from its start: also one that was added, and all of a topic made anew.
    reached = topic.earliest | next_offsets(bronze, topic)
    state = ProgressTable(lakehouse).read(BronzeIdentity.of(bronze).key)
    return Standing(
        topic,
        reached,
        lag={p: max(0, end - reached[p]) for p, end in topic.latest.items()},
        ahead=tuple(p for p, at in sorted(reached.items()) if at > topic.latest[p]),
        batch=int(bronze.transaction_version(BATCH_APP) or 0),
        floors={layer: state.floor(layer) for layer in LAYERS},
        failed=tuple(sorted({game for _, game in state.failed})),
    )
