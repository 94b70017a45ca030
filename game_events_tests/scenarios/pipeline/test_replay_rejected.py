"""After a rule changed: rows that it lets in reach silver and gold once, and quarantine keeps what happened."""

from __future__ import annotations

from game_events.pipeline.replay_selection import ReplaySelection, replay_selection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh, refresh_downstream, replay_and_refresh
from game_events_tests.support.reconciliation import gold
from game_events_tests.support.worlds.quality import (
    Event,
    assert_sound,
    in_quarantine,
    in_silver,
    rejected,
    rule,
    send_events,
)
from game_events_tests.support.worlds.waves import power_cut_at, versions

STRICT = [rule("large", "amount > 5", "quarantine"), rule("noted", "note = 'x'", "drop")]
MILD = [rule("large", "amount > 2", "quarantine")]
EVENTS = [Event("uno", 1, "x"), Event("uno", 3, "x"), Event("uno", 7, "x"), Event("uno", 8), Event("chess", 9, "x")]


def replayed(pipeline, *reasons):
    report = RunReport()
    replay_and_refresh(pipeline, report, replay_selection(reasons, []))
    assert report.success, report.errors
    return report


def test_replay_lets_in_what_passes_now_adds_what_does_not_and_leaves_one_row_of_what_stays(make_settings, make_pipeline):
    settings = make_settings(rules=STRICT)
    send_events(settings, EVENTS)
    first = refresh(make_pipeline(settings))
    assert (in_silver(settings), rejected(settings)) == ({"chess": [4], "uno": [2]}, [0, 1])
    assert first.to_dict()["dropped"] == 1
    before = versions(settings)

    mild = make_pipeline(make_settings(rules=MILD))
    # A rule that rejects nothing has nothing to replay.
    assert replayed(mild, "BAD_MAGIC").readmitted == 0
    assert versions(settings) == before
    report = replayed(mild, "large")
    assert in_silver(settings) == {"chess": [4], "uno": [1, 2, 3]}
    assert (report.readmitted, rejected(settings)) == (1, [0])
    uno = mild.lakehouse.silver("uno").open()
    batch = mild.bronze.open().transaction_version("batch")
    noted = in_quarantine(settings, "_kafka_offset, reason, replayed_table, replayed_batch, replayed_at IS NULL", "true")
    assert noted == [(0, "large", None, None, True), (1, "large", uno.metadata().id, batch, False)]
    assert gold(settings, "uno")["ann"][0] == 3
    after = versions(settings)
    assert after["silver_chess_events"] == before["silver_chess_events"]
    assert_sound(mild)
    assert refresh(mild).tables == []

    # Stricter again: a row that was let in is rejected, with a row of its own; that it was replayed once stays written.
    strict = make_pipeline(make_settings(rules=STRICT[:1]))
    report = replayed(strict)
    assert (in_silver(settings)["uno"], rejected(settings)) == ([2, 3], [0, 1])
    assert len(in_quarantine(settings, "1", "true")) == 3
    assert_sound(strict)

    # Without any rule, an ordinary full refresh does the same.
    free = make_pipeline(make_settings())
    report = RunReport()
    refresh_downstream(free, report, full=True)
    assert (in_silver(settings)["uno"], rejected(settings), report.readmitted) == ([0, 1, 2, 3], [], 2)
    assert_sound(free)


def test_a_replay_killed_after_its_decision_is_finished_by_the_next_run_whatever_its_rules(make_settings, make_pipeline):
    settings = make_settings(rules=STRICT[:1])
    send_events(settings, EVENTS)
    refresh(make_pipeline(settings))
    for point in ("rejections_decided", "game_committed:1"):
        with power_cut_at(point):
            replay_and_refresh(make_pipeline(make_settings(rules=MILD)), RunReport(), ReplaySelection())
        strict = make_pipeline(settings)
        assert refresh(strict).success
        assert (in_silver(settings)["uno"], rejected(settings)) == ([1, 2, 3], [0])
        assert_sound(strict)
        before = versions(settings)
        assert refresh(strict).tables == []
        assert versions(settings) == before
        replayed(strict)
        assert (in_silver(settings)["uno"], rejected(settings)) == ([2, 3], [0, 1])
