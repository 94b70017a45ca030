"""What a world of the fuzz is told to do, and what that means in plain Python: events, rules, columns of gold, a user's module.

Nothing here asks the code under test: from what was written follows what tables must hold.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from game_events.rules import Rule
from game_events_tests.scenarios.fuzz.edges import drawn_edges

Row = dict[str, Any]
GAMES = ("rummy", "spades", "uno", "chess", "go")
#: No names of games: their rows stay in bronze.
NO_GAMES = ("NOT A GAME", "")
PLAYERS = (*(f"player-{n}" for n in range(12)), "", "é", None)
FIRST = datetime(2024, 1, 1, tzinfo=UTC)
TIMES = (
    *(FIRST + timedelta(microseconds=us) for us in (0, 1, 999, 1_000, 999_999)),
    None,
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
)


@dataclass(frozen=True)
class Event:
    """One record.

    Attributes:
        kind: how it is written: a format of files, or a message type.
        extra: values of columns that the schema got later.
        edges: those of columns of every type (`edges.py`); None: there is none.
        damaged: it does not decode.
        times: how often it is written; more than once only where the settings leave out what is sent twice.
    """

    number: int
    kind: str
    game: str
    gamer: str | None
    n: int | None
    dev: str | None
    x: float | None
    at: datetime | None
    extra: Mapping[str, str] = field(default_factory=dict)
    edges: Mapping[str, Any] = field(default_factory=dict)
    damaged: bool = False
    times: int = 1

    @property
    def rid(self) -> str:
        """Its name in every table."""
        return f"r{self.number}e"

    def fields(self) -> Row:
        """What is written, without what is not set."""
        own = {"game_name": self.game, "gamer_id": self.gamer, "n": self.n, "dev": self.dev, "x": self.x, "rid": self.rid}
        return {k: v for k, v in {**own, "event_timestamp": self.at, **self.extra, **self.edges}.items() if v is not None}


def drawn(
    draw: Random, number: int, kind: tuple[str, str], games: tuple[str, ...], extra: Iterable[str], *, damaged: bool
) -> Event:
    """An event; `kind`: how it is written, and the form of that (`edges.py`)."""
    return Event(
        number=number,
        kind=kind[0],
        game=draw.choice(games),
        gamer=draw.choice(PLAYERS),
        n=draw.choice((None, *range(100))),
        dev=draw.choice(("d1", "d2", None)),
        x=draw.choice((0.0, -0.0, 1.5, None)),
        at=draw.choice(TIMES),
        extra={name: draw.choice(("a", "b")) for name in extra},
        edges=drawn_edges(draw, kind[1]),
        damaged=damaged,
    )


# --- what an admin says about files and tables: no row of any table is another one by it, but for those that are too old

#: Setting -> its values; the first is what a world begins with.
ADMIN: dict[str, tuple[Any, ...]] = {
    "layout": (
        {},
        {"silver": "day", "bronze": "arrival_day"},
        {"silver": ("gamer_id", "n")},
        {"silver": ("e_text",), "bronze": ("e_int", "e_at")},
    ),
    "statistics_columns": ({}, {"all": ("e_text", "e_int", "e_at", "n")}, {"silver": ("e_day",)}),
    "table_features": ((), ("changeDataFeed",), ("inCommitTimestamp", "rowTracking"), ("rowTracking",)),
    "retention_days": ({}, {"silver:rummy": 30.0}, {"silver:chess": 0.5, "silver:rummy": 300.0}),
}
#: Events before this time are older than each limit of an age.
LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)


# --- which rows are sent twice

#: The game of which a module may make none or two of a row: then silver does not tell what came before.
COPIED = "go"
DEDUPLICATE: list[dict[str, Any]] = [{"key": ["rid"], "window_h": 1, "games": [game for game in GAMES if game != COPIED]}]


def sent_again(draw: Random, event: Event) -> Event:
    """The event, perhaps written twice. One without a time is never left out."""
    is_compared = event.game in DEDUPLICATE[0]["games"] and event.at is not None and not event.damaged
    return replace(event, times=2) if is_compared and draw.random() < 0.2 else event


# --- rules of silver

KEPT, DROPPED, HELD = "kept", "dropped", "held"
Holds = Callable[[Event], bool]
Declared = tuple[Rule, Holds]


def _is(event: Event, condition: Callable[[int], bool]) -> bool:
    return event.n is not None and condition(event.n)


EVEN: Declared = Rule(name="even", sql="n % 2 = 0", action="drop"), lambda e: _is(e, lambda n: n % 2 == 0)
SMALL: Declared = Rule(name="small", sql="n < 60", action="quarantine"), lambda e: _is(e, lambda n: n < 60)
NAMED: Declared = Rule(name="has", sql="gamer_id <> ''", action="quarantine"), lambda e: bool(e.gamer)
BELOW: Declared = Rule(name="below", sql="n < 90", action="drop"), lambda e: _is(e, lambda n: n < 90)
SEEN: Declared = Rule(name="seen", sql="x > 1", action="warn"), lambda _: True
DEVICE: Declared = (
    Rule(name="device", sql="dev = 'd1'", action="quarantine", games=("rummy", "uno")),
    lambda e: e.game not in ("rummy", "uno") or e.dev == "d1",
)
ONE: Declared = Rule(name="one_session", layer="gold", sql="gamer_id IS NOT NULL", action="warn"), lambda _: True
STRICT: Declared = Rule(name="strict", sql="n > 2", action="fail"), lambda e: _is(e, lambda n: n > 2)
RULES: tuple[tuple[Declared, ...], ...] = ((), (EVEN, ONE), (SMALL, SEEN), (NAMED, BELOW), (DEVICE, EVEN), (STRICT,))
#: Games with rows that break it are not committed as long as it is in force.
FAILING = RULES.index((STRICT,))


def verdict(rules: int, event: Event) -> str | None:
    """Where rules put a row of silver; None: its game fails."""
    broken = {rule.action for rule, holds in RULES[rules] if not holds(event)}
    if "fail" in broken:
        return None
    return HELD if "quarantine" in broken else DROPPED if "drop" in broken else KEPT


def without_rejecting(rules: int, event: Event) -> str | None:
    """The same for a row of which quarantine has decided before that it does not have it."""
    found = verdict(rules, event)
    if found != HELD:
        return found
    return DROPPED if any(rule.action == "drop" and not holds(event) for rule, holds in RULES[rules]) else KEPT


# --- columns of the built-in aggregate


def by_key(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each key; 0.0 and -0.0 are one, as in SQL."""
    found = defaultdict[tuple[Any, ...], list[Row]](list)
    for row in rows:
        found[tuple(normal(row.get(key)) for key in keys)].append(row)
    return found


def normal(value: object) -> object:
    """A value as SQL compares it."""
    return 0.0 if isinstance(value, float) and value == 0 else value


def _known(rows: Iterable[Row], column: str) -> list[Any]:
    return [row[column] for row in rows if row.get(column) is not None]


def _built_in(rows: list[Row]) -> Row:
    times = _known(rows, "event_timestamp")
    return {"session_count": len(rows), "min_timestamp": min(times, default=None), "max_timestamp": max(times, default=None)}


def _numbers(rows: list[Row]) -> Row:
    ns = _known(rows, "n")
    return {"n_sum": sum(ns) if ns else None, "n_max": max(ns, default=None), "cnt": len(ns)}


def _by_time(rows: list[Row]) -> Row:
    place = ("event_timestamp", "_kafka_topic", "_kafka_partition", "_kafka_offset")
    ordered = sorted((r for r in rows if r["event_timestamp"] is not None), key=lambda r: [r[name] for name in place])
    ends = (ordered[0].get("n"), ordered[-1].get("n")) if ordered else (None, None)
    times = _known(rows, "event_timestamp")
    return {"d": len(set(_known(rows, "dev"))), "f": ends[0], "l": ends[1], "lo": min(times, default=None)}


GOLDS: tuple[tuple[dict[str, str], Callable[[list[Row]], Row]], ...] = (
    ({}, _built_in),
    ({"n_sum": "sum(n)", "n_max": "max(n)", "cnt": "count(n)"}, _numbers),
    ({"d": "count(DISTINCT dev)", "f": "first(n)", "l": "last(n)", "lo": "min(event_timestamp)"}, _by_time),
)


# --- a user's module

HEAD = """
from pyspark.sql import functions as F

from game_events.extending import count, gold_aggregate, max_of, min_of, silver_transformation, sum_of
"""
DEVICES = """
@gold_aggregate("devices", keys=["dev", "x"])
def devices():
    return {"events": count(), "odd": count("CASE WHEN n % 2 = 1 THEN 1 END"), "total": sum_of("n"),
            "first_seen": min_of("event_timestamp"), "big": max_of("n")}
"""
WHOLE = """
@gold_aggregate("whole", keys=[])
def whole():
    return {"events": count(), "with_key": count("gamer_id"), "low": min_of("n")}
"""
WHOLE_WITH_HIGH = WHOLE.replace('"low"', '"high": max_of("n"), "low"')
MEDIAN = """
@gold_aggregate("median_n", mode="recompute", keys=["gamer_id"])
def median_n(silver):
    return silver.groupBy("_game", "gamer_id").agg(F.median("n").alias("middle"))
"""
TWICE = """
@silver_transformation
def twice(rows):
    return rows.withColumn("twice", F.col("n") * 2)
"""
COPIES = f"""
@silver_transformation(games=["{COPIED}"], rows="any")
def copies(rows):
    wanted = rows.where(F.coalesce(F.col("n"), F.lit(1)) % 3 != 0)
    return wanted.withColumn("part", F.explode(F.array(F.lit(0), F.lit(1))))
"""
Aggregate = Callable[[list[Row]], list[Row]]


def _devices(rows: list[Row]) -> list[Row]:
    return [
        {
            "dev": dev,
            "x": x,
            "events": len(of),
            "odd": sum(n % 2 == 1 for n in _known(of, "n")),
            "total": sum(_known(of, "n")) if _known(of, "n") else None,
            "first_seen": min(_known(of, "event_timestamp"), default=None),
            "big": max(_known(of, "n"), default=None),
        }
        for (dev, x), of in by_key(rows, "dev", "x").items()
    ]


def _whole(rows: list[Row]) -> list[Row]:
    low = min(_known(rows, "n"), default=None)
    return [{"events": len(rows), "with_key": len(_known(rows, "gamer_id")), "low": low}] if rows else []


def _whole_with_high(rows: list[Row]) -> list[Row]:
    return [{**one, "high": max(_known(rows, "n"), default=None)} for one in _whole(rows)]


def _median(rows: list[Row]) -> list[Row]:
    numbers = {gamer: _known(of, "n") for (gamer,), of in by_key(rows, "gamer_id").items()}
    return [{"gamer_id": g, "middle": float(statistics.median(ns)) if ns else None} for g, ns in numbers.items()]


@dataclass(frozen=True)
class Extension:
    """A module, and what it means.

    Attributes:
        text: of the file; empty: none is named.
        aggregates: name -> its rows of one game, from those of silver.
        twice, copies: which transformations it has.
    """

    text: str
    aggregates: Mapping[str, Aggregate]
    twice: bool = False
    copies: bool = False

    def of(self, event: Event) -> list[Row]:
        """What silver has of an event, besides its own columns."""
        more: Row = {"twice": event.n * 2 if self.twice and event.n is not None else None}
        if not (self.copies and event.game == COPIED):
            return [more | {"part": None}]
        return [] if event.n is not None and event.n % 3 == 0 else [more | {"part": part} for part in (0, 1)]


EXTENSIONS = (
    Extension(HEAD + DEVICES + WHOLE, {"devices": _devices, "whole": _whole}),
    Extension(HEAD + TWICE + DEVICES + WHOLE, {"devices": _devices, "whole": _whole}, twice=True),
    Extension(
        HEAD + TWICE + COPIES + DEVICES + WHOLE_WITH_HIGH + MEDIAN,
        {"devices": _devices, "whole": _whole_with_high, "median_n": _median},
        twice=True,
        copies=True,
    ),
    Extension("", {}),
)
