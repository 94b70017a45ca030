"""Volume against history and columns against the last look: from the event log and Delta's log alone. Needs no service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from game_events.lakehouse.system_tables import append_events
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.pipeline.checks.audits import (
    LOOK_BACK_FILES,
    MIN_DAYS,
    column_changes,
    daily_rows,
    is_unusual,
    schema_drift,
    volume,
)
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import recorded
from game_events.pipeline.reporting.report import RunReport
from game_events_tests.support.pipelines import without_spark

NOW = datetime(2026, 3, 20, 12, 0, tzinfo=UTC)


@pytest.fixture
def pipeline(tmp_path):
    return without_spark(tmp_path / "lakehouse")


def log_days(pipeline, **games):
    """A run at noon of each day: rows that each game got, the oldest day first; the last one is the day before `NOW`."""
    days = max(map(len, games.values()))
    totals = dict.fromkeys(games, 0)
    for day in range(days):
        rows = []
        for game, by_day in games.items():
            if day < len(by_day) and by_day[day]:
                totals[game] += by_day[day]
                rows.append({"kind": "table", "layer": "silver", "game": game, "table_rows": totals[game]})
        at = NOW - timedelta(days=days - 1 - day, hours=1)
        append_events(pipeline.lakehouse, [{"kind": "run", "time": at}, *({**r, "time": at} for r in rows)], f"r{day}", "a#0")


def test_a_game_that_sends_as_usual_passes_and_one_that_fell_silent_or_floods_is_named(pipeline):
    usual = [500, 100, 120, 90, 110, 95, 105, 100, 101]
    log_days(
        pipeline,
        steady=[*usual, 97],
        silent=[*usual, 0],
        flood=[*usual, 900],
        wild=[1, 10, 400, 30, 800, 5, 300, 90, 700, 950],
        young=[*[0] * 7, 100, 100, 1000],
    )
    found = volume(pipeline, NOW)
    assert not found.passed
    assert not found.wrong_rows, "unusual is not wrong"
    assert found.counts["games_compared"] == 4
    assert found.counts["games_with_too_short_a_history"] == 1
    assert (found.counts["unusual_games"], found.counts["silent_games"]) == (2, 1)
    assert "silent: fell silent (usual: 100 a day); flood: 900 rows" in found.summary
    assert "steady" not in found.summary
    assert "wild" not in found.summary


def test_without_enough_history_nothing_is_said(pipeline):
    assert volume(pipeline, NOW).passed
    log_days(pipeline, rummy=[100] * MIN_DAYS + [0])
    found = volume(pipeline, NOW)
    assert found.passed
    assert "no game has a history" in found.summary


def test_rows_that_are_removed_by_age_do_not_count_as_less_volume(pipeline):
    days = 9
    for day in range(days):
        total = 100 * (day + 1) if day < 7 else 100 * (day + 1) - 600 * (day - 6)  # the last two days 600 were removed
        of_game = {"layer": "silver", "game": "steady"}
        at = NOW - timedelta(days=days - 1 - day, hours=1)
        append_events(pipeline.lakehouse, [{"kind": "table", "time": at, "table_rows": total, **of_game}], f"r{day}", "a#0")
        if day >= 6:
            gone = [{"kind": "gone_by_age", "time": at + timedelta(minutes=5), "rows": 600, **of_game}]
            append_events(pipeline.lakehouse, gone, f"m{day}", "a#0")
    found = volume(pipeline, NOW)
    assert (found.passed, found.counts["games_compared"]) == (True, 1)


def test_a_full_refresh_which_writes_all_rows_anew_is_no_volume():
    # Totals, not rows written: the day of the refresh ends with as many rows as the day before.
    assert daily_rows({3: 1000, 2: 1100, 1: 1100, 0: 1200}) == (100, [100, 0])
    # A day without a run got nothing; a table that shrank (an erasure) did not get less than nothing.
    assert daily_rows({4: 10, 2: 30, 1: 25}) == (0, [0, 20, 0])
    assert daily_rows({5: 10}) == (0, [0] * 4)


def test_the_spread_of_the_history_decides_what_is_unusual():
    assert not is_unusual(149, [100] * 7)
    assert is_unusual(151, [100] * 7)
    assert not is_unusual(0, [0] * 7)
    assert not is_unusual(600, [10, 400, 30, 800, 5, 300, 90])


def write(pipeline, **columns):
    rows = pa.table({name: pa.array([value]) for name, value in columns.items()})
    write_deltalake(pipeline.lakehouse.table(BRONZE).uri, rows, mode="append", schema_mode="merge")


def look(pipeline):
    """The check as a run makes it: the next one compares with this one."""
    report = RunReport()
    with recorded(Pipeline(pipeline.settings, lambda: None), report, "refresh"):
        report.add_checks(schema_drift(pipeline))
    return report.checks[0]


def test_a_column_that_was_not_there_at_the_last_look_is_told_once_with_what_it_means(pipeline):
    assert look(pipeline).passed
    empty = pa.schema([("_batch", pa.int64())]).empty_table()
    write_deltalake(pipeline.lakehouse.table(BRONZE).uri, empty)
    assert "first check" in look(pipeline).summary
    write(pipeline, a=1)
    found = look(pipeline)
    assert found.passed, "the first rows bring all columns: nothing has drifted"
    assert "had no rows" in found.summary
    assert look(pipeline).passed
    write(pipeline, a=1, b=2.0)
    write(pipeline, a=2, a__string="x")
    found = look(pipeline)
    assert not found.passed
    assert not found.wrong_rows
    assert found.summary == "b (double): new; a__string (string): a (bigint) has another type too"
    assert found.counts["changes"] == 2
    assert look(pipeline).passed


def test_a_last_look_is_found_behind_an_hour_of_continuous_mode(pipeline):
    """It writes an event log of its own each minute, and makes checks at its end only."""
    write(pipeline, a=1)
    look(pipeline)
    write(pipeline, a=1, b=2)
    for _ in range(LOOK_BACK_FILES + 1):
        with recorded(Pipeline(pipeline.settings, lambda: None), RunReport(), "continuous"):
            pass
    found = look(pipeline)
    assert found.summary == "b (bigint): new"


def test_a_last_look_whose_version_is_gone_is_said_and_not_taken_for_no_change(pipeline):
    for number in range(3):
        write(pipeline, a=number)
    look(pipeline)
    write(pipeline, a=1, b=2)
    DeltaTable(pipeline.lakehouse.table(BRONZE).uri).create_checkpoint()
    for version in range(3):
        (pipeline.lakehouse.table(BRONZE).local_path / f"_delta_log/{version:020d}.json").unlink()
    found = look(pipeline)
    assert "version 2 of the last check is gone or had no rows" in found.summary


def test_a_column_that_is_gone_or_became_another_type_is_a_change():
    assert column_changes({"a": "int64", "b": "string"}, {"a": "struct<x: int64>"}) == [
        "a: int64 became struct<x: int64>",
        "b (string): gone",
    ]


def test_the_lakehouse_is_only_read(pipeline, tmp_path):
    volume(pipeline, NOW)
    schema_drift(pipeline)
    assert Lakehouse(str(tmp_path / "lakehouse")).names() == []


def test_a_new_column_of_the_pipeline_itself_is_no_drift(pipeline):
    """It comes with a release or a setting, not from a producer."""
    write(pipeline, a=1)
    assert look(pipeline).passed
    write(pipeline, a=1, _message_type="t.Event")
    assert look(pipeline).passed
    write(pipeline, a=1, b=2)
    assert not look(pipeline).passed
