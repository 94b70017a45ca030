"""Pending work of the next run, from Delta logs, one column of bronze and the source's offsets; without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deltalake.exceptions import DeltaError

from game_events.config.gold_columns import measures
from game_events.errors import GameEventsError, first_few
from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.layers import DOWNSTREAM, Layer
from game_events.pipeline.bronze.offset_plan import OffsetPlan, starting_point
from game_events.pipeline.context import Pipeline
from game_events.pipeline.silver.due import due
from game_events.sources.core.source import Offsets

#: Records to read and rows that wait, in a small run: the optimizing compiler takes longer than all of them.
SMALL_ROWS = 200_000
#: Rows of bronze in a small run: some checks and aggregates read old rows, too.
SMALL_BRONZE = 10_000_000
#: Games that a text names.
NAMED = 5


@dataclass(frozen=True)
class Backlog:
    """Pending work.

    `records`: split -> number of records to read, if any. `rows`: rows of bronze that are not in silver. `readmitted`: game ->
    those of them that the settings left out until now.
    """

    records: Offsets = field(default_factory=dict)
    games: dict[str, list[str]] = field(default_factory=dict)
    rows: int = 0
    readmitted: Mapping[str, int] = field(default_factory=dict)

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
        until_now = f", {left_out_until_now(self.readmitted)}" if self.readmitted else ""
        return f"{read}; {behind}; {self.rows:,} rows of bronze wait for silver{until_now}"


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
    owed = due(pipeline)
    behind, games = {*owed.rows, *owed.failed}, dict[str, list[str]]()
    for layer in DOWNSTREAM:
        late = (game for game, batch in state.games.items() if layer != Layer.SILVER and batch > state.floor(layer))
        behind |= state.failed_in(layer).difference(owed.held).union(late)
        games[layer] = sorted(behind)
    records = {p: (end - part.start[p]) // now.unit for p, end in part.end.items() if end > part.start[p]} if part else {}
    return Backlog(records, games, owed.rows.total(), owed.readmitted)


def left_out_until_now(games: Mapping[str, int]) -> str:
    """Words for rows of these games that wait because the settings left them out before."""
    return f"{sum(games.values()):,} of them left out by the settings until now ({first_few(sorted(games), NAMED, ', ')})"


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
