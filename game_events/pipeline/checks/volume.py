"""Check that the games send as many rows as usual: the last day against the days before, by the event log."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median

from game_events.errors import first_few
from game_events.lakehouse.duckdb_connection import query
from game_events.lakehouse.system_tables.event_log import read_events
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.steps import CheckResult

VOLUME = "volume"
#: Days of 24 hours before now; the last one is compared with the others.
HISTORY_DAYS = 28
#: Days before the last one that a game must have to be compared.
MIN_DAYS = 7
#: Distance from the median that is unusual, in standard deviations (MAD times 1.4826) and as a share of the median, as the
#: deviation is 0 for a game that sends the same number every day.
DEVIATIONS, SHARE = 5.0, 0.5
_MAD_TO_SIGMA = 1.4826
SHOWN = 10

_READ = ("time", "kind", "layer", "game", "table_rows")
#: Rows of a game's table at the end of each day, so that a full refresh, which writes all rows again, adds nothing.
_DAYS = """
WITH day AS (
  SELECT game, (date_diff('second', time, $now) // 86400)::BIGINT AS back, arg_max(table_rows, time) AS total
  FROM events WHERE kind = 'table' AND layer = 'silver' AND game IS NOT NULL AND table_rows IS NOT NULL AND time <= $now
  GROUP BY ALL
)
SELECT game, back, total FROM day ORDER BY game, back DESC
"""


@dataclass(frozen=True)
class Unusual:
    """A game with an unusual last day."""

    game: str
    rows: int
    usual: float

    def __str__(self) -> str:
        what = "fell silent" if not self.rows else f"{self.rows:,} rows"
        return f"{self.game}: {what} (usual: {self.usual:,.0f} a day)"


def volume(pipeline: Pipeline, now: datetime | None = None) -> CheckResult:
    """Check that each game's rows of the last 24 hours are near the median of its days before."""
    now = now or datetime.now(UTC)
    events = read_events(pipeline.lakehouse, now - timedelta(days=HISTORY_DAYS + 1), columns=_READ)
    totals: dict[str, dict[int, int]] = {}
    for row in query(events, _DAYS, now=now):
        totals.setdefault(row["game"], {})[row["back"]] = row["total"]
    compared, unusual = 0, []
    for game, by_day in totals.items():
        last, history = daily_rows(by_day)
        if len(history) < MIN_DAYS:
            continue
        compared += 1
        if is_unusual(last, history):
            unusual.append(Unusual(game, last, median(history)))
    unusual.sort(key=lambda u: (u.rows > 0, -u.usual))
    counts = {
        "games_compared": compared,
        "games_with_too_short_a_history": len(totals) - compared,
        "unusual_games": len(unusual),
        "silent_games": sum(not u.rows for u in unusual),
    }
    if unusual:
        summary = f"the last 24 hours are unusual for {first_few(unusual, SHOWN)}"
    elif compared:
        summary = f"{compared:,} games sent as much as usual"
    else:
        summary = f"no game has a history of {MIN_DAYS} days yet"
    return CheckResult(VOLUME, "silver", not unusual, summary, counts, games=tuple(u.game for u in unusual))


def daily_rows(totals: dict[int, int]) -> tuple[int, list[int]]:
    """Rows of the last day, and of the days before it, from the totals at the end of some days.

    `totals`: days back -> rows of the table at the end of that day; the first one is the starting value.
    """
    oldest = max(totals)
    rows, before = [], totals[oldest]
    for back in range(oldest - 1, -1, -1):
        now = totals.get(back, before)
        rows.append(max(0, now - before))
        before = now
    return (rows[-1], rows[:-1]) if rows else (0, [])


def is_unusual(last: int, history: list[int]) -> bool:
    """Whether the last day is far from the median of the history."""
    usual = median(history)
    spread = _MAD_TO_SIGMA * median(abs(rows - usual) for rows in history)
    return abs(last - usual) > max(DEVIATIONS * spread, SHARE * usual)
