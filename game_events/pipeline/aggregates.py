"""Which gold aggregates there are: the one that is shipped, and the user's own, each with its own progress and interval."""

from __future__ import annotations

import time

import pyarrow as pa

from game_events.extending import PLAYER_AGG, GoldAggregate, count, max_of, min_of
from game_events.lakehouse.progress import Mark, Progress
from game_events.pipeline.spark_types import quoted
from game_events.settings import Settings

COUNT, FIRST, LAST = "session_count", "min_timestamp", "max_timestamp"


def player_agg(settings: Settings) -> GoldAggregate:
    """`gold_{game}_player_agg`: sessions, first and last event of each player."""
    when = quoted(settings.time_column)
    return GoldAggregate(
        PLAYER_AGG,
        "merge",
        keys=(settings.key_column,),
        measures={COUNT: count(), FIRST: min_of(when), LAST: max_of(when)},
        description="One row per player: sessions, first and last event",
    )


def player_agg_schema(settings: Settings, silver: pa.Schema) -> pa.Schema:
    """Its columns, where silver has these."""
    when = silver.field(settings.time_column).type
    key = pa.field(settings.key_column, silver.field(settings.key_column).type)
    return pa.schema([key, pa.field(COUNT, pa.int64()), pa.field(FIRST, when), pa.field(LAST, when)])


def is_due(committed_at: float | None, interval_s: float | None, now: float) -> bool:
    """Whether a layer that has its own interval may be refreshed; times in seconds since 1970."""
    return interval_s is None or committed_at is None or not committed_at <= now < committed_at + interval_s


def due(aggregate: GoldAggregate, state: Progress) -> bool:
    """Whether an aggregate's interval has passed since its last commit; a changed declaration is due at once."""
    mark = state.marks.get(aggregate.layer, Mark())
    return mark.definition != scope(aggregate) or is_due(mark.committed_at, aggregate.interval_s, time.time())


def scope(aggregate: GoldAggregate) -> str:
    """What an aggregate's floor speaks of: its definition and its games; none for the shipped one, which never changes."""
    if aggregate.name == PLAYER_AGG:
        return ""
    return f"{aggregate.definition[:16]}:{','.join(sorted(aggregate.games))}"


def definition_number(aggregate: GoldAggregate) -> int | None:
    """The definition as the value of a `txn`; None for the shipped one."""
    return int(aggregate.definition[:15], 16) if aggregate.definition else None
