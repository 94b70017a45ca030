"""One small world for every kind of Spark: each job that is a job of its own runs over it; run by `other_kinds.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from game_events.config.settings import Settings
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events.plugins.governance.commits import remove_old_files
from game_events.plugins.governance.run import erase
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.worlds.erasure import places_of
from game_events_tests.support.worlds.own_module import extension
from game_events_tests.support.worlds.quality import Event, assert_sound, rejected, rule, send_events

pytestmark = pytest.mark.every_spark
GONE, STAYS = "gamer-to-forget", "gamer-who-stays"
GAMES = ("chess", "uno")
OWN = """
@silver_transformation()
def doubled(rows):
    return rows.withColumn("doubled", F.col("amount") * 2)

@gold_aggregate("sums", keys=["gamer_id"])
def sums():
    return {"events": count(), "amount": sum_of("amount")}

@gold_aggregate("middle", mode="recompute", keys=["gamer_id"])
def middle(silver):
    return silver.groupBy("_game", "gamer_id").agg(F.median("amount").alias("amount"))
"""
RULES = [
    rule("noted", "note IS NOT NULL"),
    rule("not_too_much", "coalesce(amount, 0) < 1000", "quarantine"),
    rule("not_too_little", "coalesce(amount, 0) >= 0", "drop"),
    rule("enough", "session_count > 2", layer="gold"),
]


def wave(*games: str) -> list[Event]:
    """Of each gamer and game two good events, one that a rule rejects and one that a rule drops."""
    return [Event(game, amount, gamer=gamer) for gamer in (GONE, STAYS) for game in games for amount in (1, 21, 3000, -4)]


def assert_whole(settings: Settings, events: list[Event]) -> None:
    """Every table holds what these events say."""
    assert count(settings, "bronze_events") == len(events)
    assert len(rejected(settings)) == sum(e.amount == 3000 for e in events)
    for game in GAMES:
        good = [e for e in events if e.game == game and e.amount in (1, 21)]
        assert rows(settings, f"silver_{game}_events", "SELECT count(*), sum(doubled) FROM t") == [(len(good), 22 * len(good))]
        numbers = {gamer: sum(e.gamer == gamer for e in good) for gamer in sorted({e.gamer for e in good})}
        sums = rows(settings, f"gold_{game}_sums", "SELECT gamer_id, events, amount FROM t ORDER BY 1")
        assert sums == [(gamer, n, 11 * n) for gamer, n in numbers.items()]
        middle = rows(settings, f"gold_{game}_middle", "SELECT gamer_id, amount FROM t ORDER BY 1")
        assert middle == [(gamer, 11.0) for gamer in numbers]


def test_rules_own_tables_redecoding_erasure_and_a_full_refresh_do_what_they_do_elsewhere(
    make_settings: MakeSettings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    settings = make_settings(
        erasure_key="a key of the tests, long enough",
        rules=RULES,
        extensions=(extension(tmp_path, OWN),),
        allow_bronze_full_refresh=True,
    )
    events: list[Event] = []
    for games in (GAMES, ("chess",)):
        send_events(settings, wave(*games))
        events += wave(*games)
        report = refresh(make_pipeline(settings))
        assert report.success, report.errors
        assert_whole(settings, events)
    found = report.rules["silver", "chess", "noted"]
    assert (found.rows, found.violated) == (8, 8)

    assert redecode(make_pipeline(settings), RunReport()).rows == len(events)
    assert_whole(settings, events)

    erasure = RunReport()
    wanted = erase(make_pipeline(settings), erasure, frozenset({GONE}))
    remove_old_files(make_pipeline(settings), erasure.parts["erasure"], wanted)
    assert places_of(settings, GONE) == []
    kept = [e for e in events if e.gamer == STAYS]
    assert_whole(settings, kept)
    assert_sound(make_pipeline(settings))

    everything = selection_of(make_pipeline(settings), full_refresh=["bronze", "all"])
    report = refresh(make_pipeline(settings), selection=everything)
    assert (report.success, report.suppressed) == (True, len(events) - len(kept))
    assert_whole(settings, kept)
    assert_sound(make_pipeline(settings))
    assert refresh(make_pipeline(settings)).tables == []
