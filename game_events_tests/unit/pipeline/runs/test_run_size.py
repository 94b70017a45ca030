"""How much a run has to do: a small one is started without Java's optimizing compiler, which a large one needs."""

from __future__ import annotations

import pytest

from game_events.errors import TransientError
from game_events.pipeline.runs import run_size as module
from game_events.pipeline.runs.backlog import Backlog
from game_events.pipeline.runs.run_size import SMALL_BRONZE, SMALL_ROWS, RunSize, run_size
from game_events_tests.support.pipelines import without_spark

NONE = {"silver": [], "gold": [], "unified": []}
UNO = {"silver": ["uno"], "gold": ["uno"], "unified": ["uno"]}


@pytest.mark.parametrize(
    ("found", "bronze", "size"),
    [
        (Backlog({"p": 1_000}, NONE), 0, RunSize.SMALL),
        (Backlog({"p": 1_000}, UNO, 500), 5_000, RunSize.SMALL),
        (Backlog({}, UNO, 500), 5_000, RunSize.SMALL),
        (Backlog({"p": SMALL_ROWS, "q": 1}, NONE), 0, RunSize.LARGE),
        (Backlog({"p": 1}, UNO, SMALL_ROWS), 0, RunSize.LARGE),
        (Backlog({"p": 1}, NONE), SMALL_BRONZE + 1, RunSize.LARGE),
        (Backlog({"p": 1}, NONE | {"gold": ["uno"]}), 0, RunSize.LARGE),
        (Backlog({}, NONE | {"gold": ["uno"], "unified": ["uno"]}), 0, RunSize.LARGE),
        (Backlog({}, NONE | {"unified": ["uno"]}), 0, RunSize.UNKNOWN),
        (Backlog({}, NONE), 0, RunSize.UNKNOWN),
    ],
)
def test_the_size_follows_new_rows_and_what_may_be_read_beside_them(found, bronze, size, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "backlog", lambda _pipeline: found)
    monkeypatch.setattr(module, "row_count", lambda _handle: bronze)
    assert run_size(without_spark(tmp_path)) == size


def test_aggregates_that_read_old_rows_make_no_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "backlog", lambda _pipeline: Backlog({"p": 1}, NONE))
    assert run_size(without_spark(tmp_path, gold_columns={"total": "sum(amount)"})) == RunSize.SMALL
    assert run_size(without_spark(tmp_path, gold_columns={"middle": "median(amount)"})) == RunSize.LARGE


def test_what_cannot_be_looked_at_is_left_to_the_run(tmp_path, monkeypatch):
    def fails(_pipeline):
        raise TransientError("no broker")

    monkeypatch.setattr(module, "backlog", fails)
    assert run_size(without_spark(tmp_path)) == RunSize.UNKNOWN
