"""Gold's columns by settings, on real parts: always what plain SQL makes of silver, whatever the columns were before."""

import pytest
from deltalake import DeltaTable

from game_events.errors import ConfigurationError
from game_events.pipeline.checks.audits import gold_equals_recompute
from game_events.pipeline.runs.preflight import check_gold_columns
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support.reconciliation import assert_books_balance, rows

GAMES = ("rummy", "uno")
ANEW = {
    "sessions": "count(*)",
    "devices": "count(DISTINCT device_id)",
    "first_device": "first(device_id)",
    "last_device": "last(device_id)",
    "mean_length": "avg(length(col_custom_0) / 3)",
}
#: The same in DuckDB's words.
ANEW_SQL = """
SELECT gamer_id, count(*), count(DISTINCT device_id),
  min_by(device_id, (event_timestamp, _kafka_partition, _kafka_offset)),
  max_by(device_id, (event_timestamp, _kafka_partition, _kafka_offset)), round(avg(length(col_custom_0) / 3), 6)
FROM t GROUP BY gamer_id ORDER BY gamer_id
"""
MERGED = {"seen": "max(event_timestamp)", "on_device_1": "sum(CASE WHEN device_id = 'device_1' THEN 1 ELSE 0 END)"}
MERGED_SQL = """
SELECT gamer_id, max(event_timestamp), sum(CASE WHEN device_id = 'device_1' THEN 1 ELSE 0 END)::BIGINT
FROM t GROUP BY gamer_id ORDER BY gamer_id
"""


class World:
    """Runs with columns that change, and what was sent so far."""

    def __init__(self, make_settings, make_pipeline):
        self.make_settings, self.make_pipeline, self.sent = make_settings, make_pipeline, None

    def run(self, columns, seed=None, games=GAMES, **more):
        """A run with these columns; new records first if there is a seed."""
        settings = self.make_settings(gold_columns=columns, **more)
        if seed is not None:
            few = Simulation(games=games, seed=seed, records_per_game_and_version=6, gamers_per_game=3, late_share=0.3)
            more = produce(settings, few)
            self.sent = more if self.sent is None else self.sent.merge(more)
        report = refresh(self.make_pipeline(settings))
        assert report.success, report.errors
        return settings, report

    def assert_recomputed(self, settings, games=GAMES):
        """Delta's own reader and Spark find the same, in gold and in the unified table."""
        check = gold_equals_recompute(self.make_pipeline(settings))
        assert check.passed, check.summary
        assert check.counts["games_compared"] == check.counts["games_compared_with_unified"] == len(games)

    def assert_gold(self, settings, columns, sql):
        for game in GAMES:
            shown = ", ".join(f"round({c}, 6)" if c == "mean_length" else c for c in columns)
            held = rows(settings, f"gold_{game}_player_agg", f"SELECT gamer_id, {shown} FROM t ORDER BY gamer_id")
            assert held == rows(settings, f"silver_{game}_events", sql)
            every = rows(settings, "gold_unified_player_agg", f"SELECT * EXCLUDE game_name FROM t WHERE game_name = '{game}'")
            assert len(every) == len(held)
        unified = DeltaTable(f"{settings.lakehouse}/gold_unified_player_agg").schema().fields
        assert [f.name for f in unified] == ["game_name", "gamer_id", *columns]


@pytest.fixture
def world(make_settings, make_pipeline):
    return World(make_settings, make_pipeline)


def test_gold_is_what_its_columns_say_after_they_were_changed_and_after_the_next_wave(world):
    settings, _ = world.run({}, seed=1)
    assert_books_balance(settings, world.sent)
    settings, report = world.run(ANEW)
    assert {t.game for t in report.of("gold")} == set(GAMES)
    world.assert_gold(settings, ANEW, ANEW_SQL)
    settings, _ = world.run(ANEW, seed=2)
    world.assert_gold(settings, ANEW, ANEW_SQL)
    _, report = world.run(ANEW)
    assert report.of("gold") == report.of("unified") == [], "nothing is new, and nothing was written"
    world.assert_recomputed(settings)


def test_columns_that_cannot_be_merged_are_made_again_for_the_keys_with_new_rows_only_also_for_the_key_null(world):
    """Version 1 has no `col_custom_1`."""
    by_text = {"players": "count(DISTINCT gamer_id)", "last_player": "last(gamer_id)"}
    rules = [{"name": "seen", "layer": "gold", "sql": "players > 0", "action": "warn"}]
    settings, first = world.run(by_text, seed=1, key_column="col_custom_1", rules=rules)
    # A game without a table, whose rows are all new, comes in the same job.
    settings, second = world.run(by_text, seed=5, games=(*GAMES, "chess"), key_column="col_custom_1", rules=rules)
    for game in GAMES:
        new, every, null = rows(
            settings,
            f"silver_{game}_events",
            f"SELECT count(DISTINCT coalesce(col_custom_1, '')) FILTER (_batch > {max(first.batches)}), "
            "count(DISTINCT coalesce(col_custom_1, '')), count(*) FILTER (col_custom_1 IS NULL) FROM t",
        )[0]
        assert (second.rules["gold", game, "seen"].rows, null > 0) == (new, True)
        counted = "SELECT count(*), count(*) FILTER (col_custom_1 IS NULL) FROM t"
        assert rows(settings, f"gold_{game}_player_agg", counted) == [(every, 1)]
    world.assert_recomputed(settings, (*GAMES, "chess"))


def test_times_of_another_column_take_the_place_of_those_before_in_idle_games_too(world):
    world.run({}, seed=1)
    by_arrival, report = world.run({}, time_column="_kafka_timestamp")
    assert {t.game for t in report.of("gold")} == set(GAMES)
    world.assert_recomputed(by_arrival)
    settings, _ = world.run({})
    assert_books_balance(settings, world.sent)


@pytest.mark.scenario
def test_columns_that_are_merged_follow_those_that_are_made_anew_and_the_shipped_ones_come_back(
    world, make_settings, make_pipeline
):
    world.run(ANEW, seed=1)
    settings, _ = world.run(MERGED)
    world.assert_gold(settings, MERGED, MERGED_SQL)
    settings, _ = world.run(MERGED, seed=3)
    world.assert_gold(settings, MERGED, MERGED_SQL)
    settings, _ = world.run({})
    assert_books_balance(settings, world.sent)
    settings, _ = world.run({}, seed=4)
    assert_books_balance(settings, world.sent)
    _, report = world.run({})
    assert report.of("gold") == []
    world.assert_recomputed(settings)

    wrong = make_pipeline(make_settings(gold_columns={"warmest": "max(temperature)"}))
    with pytest.raises(ConfigurationError, match=r"GOLD_COLUMNS: .*temperature.*Silver has: .*device_id"):
        check_gold_columns(wrong)
    failed = refresh(wrong)
    assert {t.game for t in failed.errors} == set(GAMES)
    assert all("GAME_EVENTS_GOLD_COLUMNS" in t.error and "temperature" in t.error for t in failed.errors)
    assert_books_balance(settings, world.sent)
