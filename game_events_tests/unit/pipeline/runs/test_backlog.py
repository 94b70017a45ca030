"""How much a run has to do: a small one is started without Java's optimizing compiler, which a large one needs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from game_events.errors import TransientError
from game_events.pipeline.runs.refresh import SMALL_BRONZE, SMALL_ROWS, Backlog, is_small_run
from game_events_tests.support.offsets import seen
from game_events_tests.support.pipelines import reading, without_spark

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
def test_the_size_follows_new_rows_and_what_may_be_read_beside_them(found, bronze, small):
    assert found.is_small(bronze, recomputed=False) is small


def test_aggregates_that_read_old_rows_make_no_small_run(tmp_path):
    topic = SimpleNamespace(snapshot=lambda **_: seen("games", "id", {0: 0}, {0: 1}))

    def small(**settings):
        return is_small_run(reading(without_spark(tmp_path, kafka_topic="games", **settings), topic))

    assert small(gold_columns={"total": "sum(amount)"}) is True
    assert small(gold_columns={"middle": "median(amount)"}) is False


def test_what_cannot_be_looked_at_is_left_to_the_run(tmp_path):
    def fails(**_):
        raise TransientError("no broker")

    assert is_small_run(reading(without_spark(tmp_path), SimpleNamespace(snapshot=fails))) is None
