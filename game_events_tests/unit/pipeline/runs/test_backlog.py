"""How much a run has to do: a small one is started without Java's optimizing compiler, which a large one needs."""

from __future__ import annotations

import pytest

from game_events.errors import TransientError
from game_events.pipeline.runs import backlog as module
from game_events.pipeline.runs.backlog import SMALL_BRONZE, SMALL_ROWS, Backlog, is_small_run
from game_events_tests.support.pipelines import without_spark

NONE = {"silver": [], "gold": [], "unified": []}
UNO = {"silver": ["uno"], "gold": ["uno"], "unified": ["uno"]}


@pytest.mark.parametrize(
    ("found", "bronze", "small"),
    [
        (Backlog({"p": 1_000}, NONE), 0, True),
        (Backlog({"p": 1_000}, UNO, 500), 5_000, True),
        (Backlog({}, UNO, 500), 5_000, True),
        (Backlog({"p": SMALL_ROWS, "q": 1}, NONE), 0, False),
        (Backlog({"p": 1}, UNO, SMALL_ROWS), 0, False),
        (Backlog({"p": 1}, NONE), SMALL_BRONZE + 1, False),
        (Backlog({"p": 1}, NONE | {"gold": ["uno"]}), 0, False),
        (Backlog({}, NONE | {"gold": ["uno"], "unified": ["uno"]}), 0, False),
        (Backlog({}, NONE | {"unified": ["uno"]}), 0, None),
        (Backlog({}, NONE), 0, None),
    ],
)
def test_the_size_follows_new_rows_and_what_may_be_read_beside_them(found, bronze, small, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "backlog", lambda _pipeline: found)
    monkeypatch.setattr(module, "row_count", lambda _handle: bronze)
    assert is_small_run(without_spark(tmp_path)) is small


def test_aggregates_that_read_old_rows_make_no_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "backlog", lambda _pipeline: Backlog({"p": 1}, NONE))
    assert is_small_run(without_spark(tmp_path, gold_columns={"total": "sum(amount)"})) is True
    assert is_small_run(without_spark(tmp_path, gold_columns={"middle": "median(amount)"})) is False


def test_what_cannot_be_looked_at_is_left_to_the_run(tmp_path, monkeypatch):
    def fails(_pipeline):
        raise TransientError("no broker")

    monkeypatch.setattr(module, "backlog", fails)
    assert is_small_run(without_spark(tmp_path)) is None
