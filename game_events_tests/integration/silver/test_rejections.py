"""Rows that rules reject are in quarantine or in silver, in one of them, once: through crashes, rivals and changed rules."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from game_events.config.names import PROGRESS
from game_events.lakehouse.tables import BRONZE
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh, refresh_downstream
from game_events_tests.support.worlds.quality import Event, assert_sound, in_quarantine, in_silver, rejected, rule, send_events
from game_events_tests.support.worlds.waves import at_point, power_cut_at, versions

POSITIVE = [rule("positive", "amount > 0", "quarantine")]
NEGATIVE = [rule("negative", "amount < 0", "quarantine")]
WAVE = [Event("uno", 1), Event("uno", -1), Event("chess", 2), Event("chess", -2)]


@pytest.mark.scenario
def test_a_run_killed_between_decision_and_silver_is_finished_as_decided_though_the_rule_changed(
    make_settings, make_pipeline, crash
):
    settings = make_settings()
    send_events(settings, WAVE)
    crash("rejections_decided", rules=json.dumps(POSITIVE))
    assert (in_silver(settings), rejected(settings)) == ({}, [1, 3])

    # What was decided stands; what came later is judged by the rules in force.
    send_events(settings, WAVE)
    changed = make_pipeline(make_settings(rules=NEGATIVE))
    assert refresh(changed).success
    assert in_silver(settings) == {"chess": [2, 7], "uno": [0, 5]}
    assert rejected(settings) == [1, 3, 4, 6]
    assert_sound(changed)


@pytest.mark.scenario
def test_a_crash_at_any_point_of_a_later_run_is_finished_by_a_run_with_other_rules(make_settings, make_pipeline):
    settings = make_settings()
    send_events(settings, WAVE)
    rules = [POSITIVE, NEGATIVE, []]
    assert refresh(make_pipeline(make_settings(rules=POSITIVE))).success
    points = ("silver_staged", "rejections_decided", "game_committed:1", "silver_committed", "before_create:silver_new_events")
    for number, point in enumerate(points):
        send_events(settings, [*WAVE, *([Event("new", 1), Event("new", -1)] if "new" in point else [])])
        with power_cut_at(point):
            refresh(make_pipeline(make_settings(rules=rules[number % 3 - 1])))
        if number % 2:
            send_events(settings, WAVE[:1])
        if point == "rejections_decided":
            shutil.rmtree(f"{settings.lakehouse}/{PROGRESS}")
        after = make_pipeline(make_settings(rules=rules[number % 3]))
        assert refresh(after).success
        try:
            assert_sound(after)
        except AssertionError as error:
            raise AssertionError(f"after a crash at {point}: {error}") from error
    before = versions(settings)
    assert refresh(after).tables == []
    assert versions(settings) == before


@pytest.mark.scenario
@pytest.mark.parametrize("point", ["silver_staged", "rejections_decided", "game_committed:1"])
def test_of_rivals_with_other_rules_the_first_decides_game_by_game(make_settings, make_pipeline, monkeypatch, point):
    """The rival has read on: its rows end elsewhere, and one game is its own alone."""
    settings = make_settings(rules=POSITIVE)
    send_events(settings, WAVE)
    assert refresh(make_pipeline(settings)).success
    send_events(settings, WAVE)
    mine = make_pipeline(settings)
    load_bronze(mine, RunReport())
    rival = make_pipeline(make_settings(rules=NEGATIVE))

    def act() -> None:
        send_events(settings, [Event("uno", 5), Event("uno", -5), Event("go", -5)])
        assert refresh(rival).success

    happened = at_point(monkeypatch, point, act)
    report = RunReport()
    refresh_downstream(mine, report)
    assert happened
    assert report.success, report.errors
    assert refresh(make_pipeline(settings)).success
    assert_sound(mine)
    # No row is nowhere: the rows of one game in silver and in quarantine are all it has.
    silver = [offset for offsets in in_silver(settings).values() for offset in offsets]
    assert sorted(silver + rejected(settings)) == list(range(11))


def test_a_run_without_rules_that_began_before_the_first_decision_does_what_was_decided(
    make_settings, make_pipeline, monkeypatch
):
    settings = make_settings()
    send_events(settings, WAVE)
    mine = make_pipeline(settings)
    load_bronze(mine, RunReport())

    def act() -> None:
        with power_cut_at("rejections_decided"):
            refresh_downstream(make_pipeline(make_settings(rules=POSITIVE)), RunReport())

    happened = at_point(monkeypatch, "silver_staged", act)
    refresh_downstream(mine, RunReport())
    assert happened
    assert (in_silver(settings), rejected(settings)) == ({"chess": [2], "uno": [0]}, [1, 3])
    assert_sound(mine)


@pytest.mark.scenario
def test_silver_that_was_deleted_or_restored_is_rebuilt_as_decided_and_a_rebuilt_bronze_by_the_rules_in_force(
    make_settings, make_pipeline
):
    settings = make_settings(rules=POSITIVE)
    for _ in range(2):
        send_events(settings, WAVE)
        assert refresh(make_pipeline(settings)).success
    shutil.rmtree(Path(settings.lakehouse) / "silver_uno_events")
    DeltaTable(f"{settings.lakehouse}/silver_chess_events").restore(0)
    changed = make_pipeline(make_settings(rules=NEGATIVE))
    send_events(settings, WAVE)
    assert refresh(changed).success
    assert in_silver(settings) == {"chess": [2, 6, 11], "uno": [0, 4, 9]}
    assert rejected(settings) == [1, 3, 5, 7, 8, 10]
    assert_sound(changed)

    shutil.rmtree(Path(settings.lakehouse) / BRONZE)
    assert refresh(changed).success
    assert in_silver(settings) == {"chess": [3, 7, 11], "uno": [1, 5, 9]}
    assert rejected(settings) == [0, 2, 4, 6, 8, 10]
    assert_sound(changed)


def test_a_rejection_that_a_new_bronze_does_not_have_is_history_and_its_record_is_judged_when_it_comes(
    make_settings, make_pipeline
):
    """A bronze that was deleted is read anew slice by slice: silver follows it before all records are there."""
    settings = make_settings(rules=POSITIVE)
    send_events(settings, WAVE)
    assert refresh(make_pipeline(settings)).success
    shutil.rmtree(Path(settings.lakehouse) / BRONZE)
    report = RunReport()
    slowly = make_pipeline(make_settings(rules=POSITIVE, max_records_per_batch=1))
    load_bronze(slowly, report, max_commits=1)
    refresh_downstream(slowly, report)
    # Of chess the new bronze has nothing yet: its tables stay, and so does what was decided for them.
    assert (in_silver(settings), rejected(settings)) == ({"chess": [2], "uno": [0]}, [3])
    assert any(notice.startswith("1 rejected rows of quarantine_events") for notice in report.notices)

    changed = make_pipeline(make_settings(rules=NEGATIVE))
    assert refresh(changed).success
    assert (in_silver(settings), rejected(settings)) == ({"chess": [3], "uno": [0, 1]}, [2])
    history = in_quarantine(settings, "_kafka_offset, replayed_batch, replayed_table IS NULL", "replayed_batch IS NOT NULL")
    assert history == [(1, 1, True), (3, 2, False)]
    assert_sound(changed)


def test_a_rejected_row_that_goes_to_another_game_is_judged_as_that_games(make_settings, make_pipeline):
    """Here as another column names the game from now on."""
    settings = make_settings(rules=POSITIVE)
    bad, good = (("uno", -1, "chess"), ("chess", -1, "uno")), (("uno", 1, "uno"), ("chess", 1, "chess"))
    send_events(settings, [Event(*event) for event in (*bad, *good)])
    assert refresh(make_pipeline(settings)).success
    assert in_quarantine(settings, "_kafka_offset, game") == [(0, "uno"), (1, "chess")]
    other = make_pipeline(make_settings(rules=POSITIVE, entity_column="note"))
    report = RunReport()
    refresh_downstream(other, report, full=True)
    assert report.success, report.errors
    assert in_quarantine(settings, "_kafka_offset, game") == [(0, "chess"), (1, "uno")]
    assert in_silver(settings) == {"chess": [3], "uno": [2]}
    found = reconcile(other)
    assert found.passed, found.summary()
