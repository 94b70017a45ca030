"""Pending work of the next run, from Delta logs, one column of bronze and the source's offsets; without Spark."""

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from game_events.config.gold_columns import measures
from game_events.errors import GameEventsError
from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import read_parts, row_count, selection
from game_events.lakehouse.layers import DOWNSTREAM, Layer
from game_events.pipeline.bronze.offset_plan import OffsetPlan, starting_point
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.routing import Routing
from game_events.sources.core.source import Offsets

#: Records to read and rows that wait, in a small run: the optimizing compiler takes longer than all of them.
SMALL_ROWS = 200_000
#: Rows of bronze in a small run: some checks and aggregates read old rows, too.
SMALL_BRONZE = 10_000_000


@dataclass(frozen=True)
class Backlog:
    """Pending work.

    `records`: split -> number of records to read, if any. `rows`: rows of bronze that are not in silver.
    """

    records: Offsets = field(default_factory=dict)
    games: dict[str, list[str]] = field(default_factory=dict)
    rows: int = 0

    def is_small(self, bronze_rows: int, *, recomputed: bool) -> bool | None:
        """As `is_small_run`; `recomputed`: aggregates read old rows, too."""
        rows = sum(self.records.values()) + self.rows
        if not rows:
            return False if self.games[Layer.GOLD] else None
        # Of games that are behind in gold and have no new rows it is not known how many they have.
        older_games = set(self.games[Layer.GOLD]) - set(self.games[Layer.SILVER])
        return rows <= SMALL_ROWS and bronze_rows <= SMALL_BRONZE and not recomputed and not older_games

    def __str__(self) -> str:
        parts = ", ".join(f"{p} {n:,}" for p, n in sorted(self.records.items()))
        read = f"{sum(self.records.values()):,} records to read" + (f" ({parts})" if parts else "")
        behind = "; ".join(f"{layer}: {len(games)} games behind" for layer, games in self.games.items())
        return f"{read}; {behind}; {self.rows:,} rows of bronze wait for silver"


def backlog(pipeline: Pipeline) -> Backlog:
    """Pending work of the next run; nothing is written.

    Raises:
        ConfigurationError, TransientError: the broker is unavailable.
        DataError: the run would stop, because unread records were deleted.
    """
    now = pipeline.source_snapshot()
    bronze = pipeline.open_bronze()
    if bronze is None:
        start = starting_point(pipeline, now)
        waiting = {p: (end - start[p]) // now.unit for p, end in now.latest.items() if end > start[p]}
        return Backlog(waiting, {layer: [] for layer in DOWNSTREAM})
    part = OffsetPlan.of(pipeline, bronze, now, {}, sum(now.latest.values()) + 1).micro_batch
    state = pipeline.progress.read(BronzeIdentity.of(bronze).key)
    names = games_waiting(pipeline)
    behind, games = set(names), dict[str, list[str]]()
    for layer in DOWNSTREAM:
        late = (game for game, batch in state.games.items() if layer != Layer.SILVER and batch > state.floor(layer))
        behind |= state.failed_in(layer).union(late)
        games[layer] = sorted(behind)
    records = {p: (end - part.start[p]) // now.unit for p, end in part.end.items() if end > part.start[p]} if part else {}
    return Backlog(records, games, sum(names.values()))


def is_small_run(pipeline: Pipeline) -> bool | None:
    """Whether the next run over everything has little to do: decides how Spark's JVM is started, nothing else.

    From the source's offsets and the tables' logs. None: the run may need no Spark, or meets an error, which it reports.
    """
    try:
        found, bronze_rows = backlog(pipeline), row_count(pipeline.open_bronze())
        recomputed = measures(pipeline.settings.gold_columns) is None or bool(pipeline.extensions.aggregates)
    except (GameEventsError, DeltaError, OSError):
        return None
    return found.is_small(bronze_rows, recomputed=recomputed)


def games_waiting(pipeline: Pipeline) -> Counter[str]:
    """Possible games -> their rows in bronze batches that silver does not have; one column is read."""
    bronze = pipeline.open_bronze()
    if bronze is None or not bronze.transaction_version(Txn.BATCH):
        return Counter()
    floor = pipeline.progress.read(BronzeIdentity.of(bronze).key).floor(Layer.SILVER)
    entity, found = pipeline.settings.entity_column, Counter[object]()
    wanted = pa.schema([f for f in pa.schema(bronze.schema()) if f.name in (entity, "_batch")])
    if entity not in wanted.names:
        return Counter()
    for rows in read_parts(pipeline.bronze, wanted, selection(bronze, floor).paths):
        names = rows.filter(pc.greater(rows.column("_batch"), floor)).column(entity).combine_chunks()
        found.update({entry["values"]: entry["counts"] for entry in pc.value_counts(names).to_pylist()})
    routing = Routing(frozenset(pipeline.settings.games))
    return Counter({str(name): rows for name, rows in found.items() if routing.refusal(name) is None})
