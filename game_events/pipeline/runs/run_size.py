"""How much the next run over everything has to do: decides how Spark's JVM is started, nothing else."""

from enum import StrEnum

from deltalake.exceptions import DeltaError

from game_events.config.gold_columns import measures
from game_events.errors import GameEventsError
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.layers import Layer
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.backlog import Backlog, backlog

#: Records to read and rows that wait, in a small run: the optimizing compiler takes longer than all of them.
SMALL_ROWS = 200_000
#: Rows of bronze: some checks and aggregates read old rows, too.
SMALL_BRONZE = 10_000_000


class RunSize(StrEnum):
    """`UNKNOWN`: the run may need no Spark."""

    UNKNOWN = "unknown"
    SMALL = "small"
    LARGE = "large"


def run_size(pipeline: Pipeline) -> RunSize:
    """The size, from the source's offsets and the tables' logs; an error is left to the run, which reports it."""
    try:
        found, bronze_rows = backlog(pipeline), row_count(pipeline.bronze.open())
        recomputed = measures(pipeline.settings.gold_columns) is None or bool(pipeline.extensions.aggregates)
    except (GameEventsError, DeltaError, OSError):
        return RunSize.UNKNOWN
    rows = sum(found.records.values()) + found.rows
    if not rows:
        return RunSize.LARGE if found.games[Layer.GOLD] else RunSize.UNKNOWN
    small = rows <= SMALL_ROWS and bronze_rows <= SMALL_BRONZE and not recomputed and not _older_games(found)
    return RunSize.SMALL if small else RunSize.LARGE


def _older_games(found: Backlog) -> bool:
    """Whether games are behind in gold that have no new rows: it is not known how many they have."""
    return bool(set(found.games[Layer.GOLD]) - set(found.games[Layer.SILVER]))
