"""How far topic and layers are apart: read from the broker and the tables' logs, without Spark."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from game_events.config.settings import Settings
from game_events.lakehouse.commits.generations import BronzeIdentity
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.layers import DOWNSTREAM
from game_events.lakehouse.system_tables.progress import ProgressTable
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.pipeline.bronze.topic_changes import changes
from game_events.pipeline.state.offsets import next_offsets
from game_events.sources.core.source import Offsets, SourceSnapshot, Split
from game_events.sources.factory import make_source


@dataclass(frozen=True)
class Standing:
    """One moment.

    Attributes:
        name: what is read, in words.
        seen: the source's positions.
        next: lane -> next position, by bronze's own progress; of a lane it never read, the first one there is.
        lag: lane -> records that bronze has not read.
        made: bronze exists and knows of every topic, so where it starts is settled.
        ahead: lanes that end before bronze's next position: the topic was truncated, and a run says so.
        batch: bronze's last batch; `floors`: layer -> batch up to which it is complete.
        failed: games that a layer could not take, or has to look at again.
    """

    name: str
    seen: SourceSnapshot
    next: Offsets
    lag: Offsets
    made: bool = True
    ahead: tuple[Split, ...] = ()
    batch: int = 0
    floors: dict[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()

    @property
    def total_lag(self) -> int:
        """Records that bronze has not read, all lanes together."""
        return sum(self.lag.values())

    @property
    def to_read(self) -> bool:
        """Whether a run of bronze has something to do: records, a start to settle, or an error to report."""
        return self.total_lag > 0 or not self.made or bool(self.ahead)

    @property
    def behind(self) -> tuple[str, ...]:
        """Layers that have not come as far as the one before."""
        steps = [self.batch, *(self.floors.get(layer, 0) for layer in DOWNSTREAM)]
        return tuple(layer for layer, before, here in zip(DOWNSTREAM, steps, steps[1:], strict=False) if here < before)

    @property
    def position(self) -> str:
        """Digest of everything that a run changes: the same again means that the runs between got nowhere."""
        # A table that is made, empty, moves nothing: no floor and a floor of 0 are the same.
        floors = sorted((layer, batch) for layer, batch in self.floors.items() if batch)
        parts = [sorted(self.next.items()), self.made, self.batch, floors, self.failed]
        return digest(parts)


def digest(parts: list[object]) -> str:
    """Short text that differs if they do, however many topics there are."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def look(settings: Settings, timeout_s: float) -> Standing:
    """Ask the broker (each answer within `timeout_s`) and read bronze's and the progress table's log.

    Raises:
        GameEventsError: the broker does not answer, there is no such topic, a table cannot be read.
    """
    seen, name = make_source(settings, timeout_s).snapshot(), settings.source_name
    lakehouse = Lakehouse.of(settings)
    bronze = lakehouse.table(BRONZE).open()
    if bronze is None:
        # The first run settles where it starts: only records that are there already can wait for it.
        earliest = settings.starting_offsets == "earliest"
        lag = {p: (seen.latest[p] - seen.earliest[p]) // seen.unit if earliest else 0 for p in seen.latest}
        return Standing(name, seen, seen.earliest, lag, made=earliest)
    # A partition that bronze never read is read from its start: also one that was added, and all of a topic made anew.
    known = next_offsets(bronze, seen.latest)
    reached = seen.earliest | known
    state = ProgressTable(lakehouse).read(BronzeIdentity.of(bronze).key)
    return Standing(
        name,
        seen,
        reached,
        lag={p: max(0, end - reached[p]) // seen.unit for p, end in seen.latest.items()},
        made=not changes(settings, bronze, seen, known).anything,
        ahead=tuple(p for p, at in sorted(reached.items()) if at > seen.latest[p]),
        batch=int(bronze.transaction_version(Txn.BATCH) or 0),
        floors={layer: state.floor(layer) for layer in DOWNSTREAM},
        failed=tuple(sorted({game for _, game in state.failed})),
    )
