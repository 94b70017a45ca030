"""Where a game's silver table goes on from: by the watermark of all games, or by its own progress."""

from __future__ import annotations

import pytest

from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.system_tables import Admission, LeftOut, Progress
from game_events.lakehouse.tables import Layer
from game_events.pipeline.quality import Decisions, RejectionDecision, decide
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.commit import next_incarnation, settle
from game_events.pipeline.silver.refresh import SilverRun, is_at_watermark, starts_of
from game_events.pipeline.silver.stage import GameStart, SilverInput
from game_events.workers.results import FanOutResult
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import forget_older, put

NO_DECISIONS = Decisions(None, None, "b")


class Counted:
    """A table with one value of each `txn`."""

    def __init__(self, value=None):
        self.value = value

    def transaction_version(self, _):
        return self.value

    def version(self):
        return 0


@pytest.mark.parametrize(
    ("known", "left_out", "taken", "expected"),
    [
        (3, LeftOut(), 3, True),
        (3, LeftOut(), 5, True),
        (3, LeftOut(), 6, False),  # ahead: a crash, a concurrent run
        (4, LeftOut(), 3, False),  # rows are missing below the watermark
        (3, LeftOut(1, 4), 3, False),  # it may have been left out for a time
        (3, LeftOut(1, 3), 3, True),
        (3, LeftOut(1, 4, Admission(frozenset({"rummy"}))), 3, False),
        (3, LeftOut(1, 4, Admission(frozenset({"rummy", "uno"}))), 3, True),  # the list had it
        (3, LeftOut(1, 4, Admission(max_games=2)), 3, True),  # limits keep out new names only
        (None, LeftOut(1, 4, Admission(max_games=2)), 3, False),
    ],
)
def test_a_table_is_at_the_watermark_if_it_lacks_no_row_below_it_and_has_none_above(known, left_out, taken, expected):
    games = {"uno": known} if known is not None else {}
    state = Progress("b", floors={Layer.SILVER: 5}, games=games, left_out=left_out)
    assert is_at_watermark(state, NO_DECISIONS, "uno", GameStart(Counted(), taken, taken)) is expected


def test_quarantines_decision_on_rows_that_silver_lacks_holds():
    state = Progress("b", floors={Layer.SILVER: 5}, games={"uno": 5})
    assert is_at_watermark(state, NO_DECISIONS, "uno", GameStart(Counted(), 5, 5, rejections_decided_to=5))
    assert not is_at_watermark(state, NO_DECISIONS, "uno", GameStart(Counted(), 5, 5, rejections_decided_to=6))


def test_a_game_without_rejected_rows_is_decided_too(tmp_path):
    pipeline = without_spark(tmp_path)
    decide(pipeline, Decisions.read(pipeline, "b"), {"uno": RejectionDecision(2)})
    now = Decisions.read(pipeline, "b")
    assert (now.in_force, now.batch("uno")) == (True, 2)
    assert decide(pipeline, now, {"uno": RejectionDecision(2)}) == (None, set()), "nothing new"
    decide(pipeline, now, {"uno": RejectionDecision(3)})
    assert Decisions.read(pipeline, "b").batch("uno") == 3


@pytest.mark.parametrize(("handle", "expected"), [(None, 0), (Counted(), 1), (Counted(3), 4)])
def test_rows_that_replace_others_are_another_incarnation(handle, expected):
    assert next_incarnation(NO_DECISIONS, "uno", GameStart(handle, None, 0, replace=True)) == expected


def test_a_games_commit_lands_although_the_log_has_lost_meanwhile_what_it_was_planned_from(tmp_path):
    """A job that lasts longer than the log's retention, beside maintenance."""
    pipeline = without_spark(tmp_path)
    source = SilverInput.of(pipeline, put(pipeline.bronze, OWN_COLUMNS.empty_table(), {Txn.BATCH: 2}))
    silver = pipeline.lakehouse.silver("uno")
    for _ in range(14):
        put(silver, OWN_COLUMNS.empty_table(), {source.bronze.app: 1}, {BATCH_INFO: "1"})
    report, decisions = RunReport(), Decisions.read(pipeline, source.bronze.key)
    run = SilverRun(pipeline, source, pipeline.progress.read(source.bronze.key), report, None, full=False)
    starts = starts_of(run, decisions, ["uno"], redecide=False)
    silver.open().create_checkpoint()
    assert forget_older(silver) > 0
    assert starts["uno"].handle.is_newest()
    outcome = settle(source, decisions, starts, FanOutResult(), report)
    assert (set(outcome.landed), outcome.failed) == ({"uno"}, {})
    assert source.bronze.taken(silver.open()) == 2
