"""Lag of each layer, in records and batches, from the broker and the Delta logs, without a Spark job."""

import hashlib
import json
from dataclasses import dataclass, field

from game_events.config.settings import Settings
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter
from game_events.lakehouse.system_tables import Admission, ProgressTable
from game_events.lakehouse.tables import BRONZE, DOWNSTREAM, Lakehouse
from game_events.pipeline.bronze.offsets import changes
from game_events.pipeline.offsets import next_offsets
from game_events.sources.factory import make_source
from game_events.sources.source import Offsets, Partition, SourceSnapshot


@dataclass(frozen=True)
class PipelineLag:
    """Lag at one moment.

    Attributes:
        name: name of the source, for display.
        seen: snapshot of the source.
        next: partition -> next offset to read; of a partition that bronze never read, the earliest.
        lag: partition -> records that bronze has not read.
        made: bronze exists and has offsets of every topic.
        ahead: partitions that end before the next offset: the topic was truncated.
        batch: bronze's last batch; `floors`: layer -> batch up to which the layer is complete.
        failed: games that a layer has to retry; without those that the allow list lacks.
        let_in: the settings let in names that they left out before: their rows may be due.
    """

    name: str
    seen: SourceSnapshot
    next: Offsets
    lag: Offsets
    made: bool = True
    ahead: tuple[Partition, ...] = ()
    batch: int = 0
    floors: dict[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    let_in: bool = False

    @property
    def total_lag(self) -> int:
        """Records that bronze has not read, over all partitions."""
        return sum(self.lag.values())

    @property
    def to_read(self) -> bool:
        """Whether a run of bronze has work: records, a new topic, or an error to report."""
        return self.total_lag > 0 or not self.made or bool(self.ahead)

    @property
    def behind(self) -> tuple[str, ...]:
        """Layers that lack batches of the layer before."""
        steps = [self.batch, *(self.floors.get(layer, 0) for layer in DOWNSTREAM)]
        return tuple(layer for layer, before, here in zip(DOWNSTREAM, steps, steps[1:], strict=False) if here < before)

    @property
    def progress_digest(self) -> str:
        """Digest of everything that a run changes: an equal one later means that the runs between made no progress."""
        # The creation of an empty table is no progress: no floor and a floor of 0 are the same.
        floors = sorted((layer, batch) for layer, batch in self.floors.items() if batch)
        parts = [sorted(self.next.items()), self.made, self.batch, floors, self.failed, *([True] if self.let_in else [])]
        return digest(parts)


def digest(parts: list[object]) -> str:
    """Short hash of the parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def read_lag(settings: Settings, timeout_s: float) -> PipelineLag:
    """Query the broker (each answer within `timeout_s`), and read the logs of bronze and of the progress table.

    Raises:
        GameEventsError: the broker does not answer, the topic does not exist, or a table cannot be read.
    """
    source = make_source(settings, timeout_s)
    seen = source.snapshot()
    name = source.name(settings)
    lakehouse = Lakehouse.of(settings)
    bronze = lakehouse.table(BRONZE).open_to_read()
    if bronze is None:
        # The first run decides where it starts: only records that exist already can wait for it.
        earliest = settings.starting_offsets == "earliest"
        lag = {p: (seen.latest[p] - seen.earliest[p]) // seen.unit if earliest else 0 for p in seen.latest}
        return PipelineLag(name, seen, seen.earliest, lag, made=earliest)
    # A partition that bronze never read is read from its start: also an added one, and all of a recreated topic.
    known = next_offsets(bronze, seen.latest)
    reached = seen.earliest | known
    state = ProgressTable(lakehouse).read(BronzeIdentity.of(bronze).key)
    admission = Admission.of(settings)
    return PipelineLag(
        name,
        seen,
        reached,
        lag={p: max(0, end - reached[p]) // seen.unit for p, end in seen.latest.items()},
        made=not changes(source, settings, bronze, seen, known).anything,
        ahead=tuple(p for p, at in sorted(reached.items()) if at > seen.latest[p]),
        batch=counter(bronze, Txn.BATCH),
        floors={layer: state.floor(layer) for layer in DOWNSTREAM},
        failed=tuple(sorted({game for _, game in state.failed} - state.held(admission))),
        let_in=not state.left_out.covers(admission),
    )
