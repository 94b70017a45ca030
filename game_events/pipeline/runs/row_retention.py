"""What `RETENTION_DAYS` means for the tables that there are: the oldest rows of each layer, and settings that do not fit it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain

from game_events.config.retention import RetentionDays
from game_events.lakehouse.tables import BRONZE, EVENT_LOG, QUARANTINE, Table, add_actions
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.plan import player_agg
from game_events.pipeline.retention.ages import DAY_US, NEVER
from game_events.pipeline.retention.settled import ages_of

#: Silver tables that are looked at.
TABLES = 100


def told(pipeline: Pipeline, days: RetentionDays) -> str:
    """Each limit, and the age of the oldest row of its layer, by the files' statistics."""
    now_us = round(time.time() * 1_000_000)
    lakehouse = pipeline.lakehouse
    names = [*chain.from_iterable(lakehouse.type_tables().values()), *lakehouse.games()] if days.has("silver") else []
    silver = [lakehouse.silver(name) for name in names[:TABLES]]
    own = {"bronze": BRONZE, "quarantine": QUARANTINE, "event_log": EVENT_LOG}
    tables = {layer: [lakehouse.table(key)] for layer, key in own.items()} | {"silver": silver}
    ages = {layer: _oldest_days(pipeline, days, tables[layer], now_us) for layer in tables if days.has(layer)}
    texts = []
    for name, limit in days.days.items():
        oldest = ages.get(name)
        text = f"{name} {limit:g} days" if limit else f"{name} never"
        texts.append(text if oldest is None else f"{text} (the oldest row {oldest:,.1f})")
    return ", ".join(texts)


def _oldest_days(pipeline: Pipeline, days: RetentionDays, tables: list[Table], now_us: int) -> float | None:
    """Age of the oldest row of some tables; None: there is none whose age is known."""
    oldest = NEVER
    for table in tables:
        handle = pipeline.tables.peek(table)
        ages = ages_of(pipeline, days, table, handle, now_us) if handle is not None else None
        actions = add_actions(handle) if handle is not None and ages is not None else None
        if actions is not None and ages is not None and actions.num_rows:
            oldest = min(oldest, int(ages.bounds(actions)[0].min()))
    return None if not 0 < oldest < NEVER else max(0.0, (now_us - oldest) / DAY_US)


def misfits(pipeline: Pipeline, days: RetentionDays) -> Iterator[str]:
    """Settings that do not fit the limits, in sentences."""
    settings = pipeline.settings
    silver = days.shortest("silver")
    longest = max((entry.window_h / 24 for entry in settings.deduplicate), default=0.0)
    if silver is not None and longest > silver:
        yield (
            f"DEDUPLICATE looks back {longest:g} days, and silver has rows of {silver:g} days: an event that is sent again "
            "later is in silver again"
        )
    bronze, quarantine = days.shortest("bronze"), days.shortest("quarantine")
    if bronze is not None and (quarantine is None or quarantine > bronze):
        yield "quarantine keeps rows longer than bronze: `game-events erase` does not find people in rows that only it has"
    aggregates = (player_agg(settings), *pipeline.extensions.aggregates)
    others = [aggregate.asset for aggregate in aggregates if aggregate.mode != "merge"]
    if silver is not None and others:
        yield f"{', '.join(others)} cannot be merged with what it had: where rows are new, it is of the rows that silver has"
