"""A module of the user's own, written and rewritten by tests, and what its tables must hold by plain SQL over silver."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import Any

from game_events.config.settings import Settings
from game_events_tests.support.reconciliation import rows

HEAD = """
from pyspark.sql import functions as F

from game_events.extending import count, gold_aggregate, max_of, min_of, silver_transformation, sum_of
"""

DEVICES = '''
@gold_aggregate("devices", keys=["gamer_id", "device_id"])
def devices():
    """Events of each player on each device."""
    return {
        "events": count(),
        "odd": count("nullif(hour(event_timestamp) % 2, 0)"),
        "hours": sum_of("hour(event_timestamp)"),
        "first": min_of("event_timestamp"),
        "last": max_of("event_timestamp"),
    }
'''
DEVICES_SQL = """SELECT gamer_id, device_id, count(*), count(nullif(hour(event_timestamp) % 2, 0)),
    sum(hour(event_timestamp))::BIGINT, min(event_timestamp), max(event_timestamp) FROM t GROUP BY ALL"""

#: No keys: one row for each game; decimals, whose sums must not grow digits with every merge.
TOTAL = """
@gold_aggregate("total")
def total():
    return {"events": count(), "hours": sum_of("cast(hour(event_timestamp) as decimal(12, 2))")}
"""
TOTAL_SQL = "SELECT count(*), sum(hour(event_timestamp))::DECIMAL(22, 2) FROM t"

MEDIAN = '''
@gold_aggregate("median_hour", mode="recompute", keys=["gamer_id"])
def median_hour(silver):
    """The hour in the middle."""
    return silver.groupBy("_game", "gamer_id").agg(F.median(F.hour("event_timestamp")).alias("hour"))
'''
MEDIAN_SQL = "SELECT gamer_id, median(hour(event_timestamp)) FROM t GROUP BY ALL"

_numbers = itertools.count()


def extension(folder: Path, *parts: str) -> str:
    """Path of a module that declares these; another one each time, as a new process would load it."""
    file = folder / f"mine_{next(_numbers)}.py"
    file.write_text(HEAD + "".join(textwrap.dedent(part) for part in parts))
    return str(file)


def differences(settings: Settings, games: tuple[str, ...], name: str, sql: str) -> list[tuple[str, Any, Any]]:
    """Where an aggregate's tables differ from SQL over the games' silver tables."""
    found = []
    for game in games:
        held = sorted(rows(settings, f"gold_{game}_{name}"), key=repr)
        truth = sorted(rows(settings, f"silver_{game}_events", sql), key=repr)
        assert truth, f"{game} has no rows to compare with"
        if held != truth:
            found.append((game, held[:3], truth[:3]))
    return found
