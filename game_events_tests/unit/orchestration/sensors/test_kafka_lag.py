"""When `kafka_lag` asks for a run: plain values, no broker, no clock."""

from itertools import pairwise

import pytest

from game_events.orchestration.sensors import GRACE_S, LONGEST_WAIT_S, Memory, decide, wait_s
from game_events.pipeline.runs.pending import PipelineLag
from game_events.sources.source import Partition
from game_events_tests.support.offsets import seen, splits

START = 1_000_000.0


def lag_of(end=10, at=0, topic_id="one", **more):
    """A topic with one partition, and bronze `at` an offset of it."""
    at, lag = (splits("events", topic_id, {0: n}) for n in (at, max(0, end - at)))
    return PipelineLag("events", seen("events", topic_id, {0: 0}, {0: end}), at, lag, **more)


def asked_at(lags, every=15.0, ticks=400):
    """Ticks of a sensor: the seconds at which it asked, and the keys."""
    memory, asked, keys = Memory(), [], []
    for number in range(ticks):
        now = START + number * every
        memory = Memory.read(memory.model_dump_json())
        found = decide(lags(number), memory, now)
        if found.run_key:
            asked.append(now - START)
            keys.append(found.run_key)
    return asked, keys


def test_records_to_read_ask_for_a_run_at_once_and_say_how_many():
    found = decide(lag_of(end=1_234), Memory(), START)
    assert found.run_key
    assert "events: 1,234 records to read" in found.why


def test_nothing_to_read_asks_for_nothing():
    found = decide(lag_of(end=10, at=10), Memory(), START)
    assert (found.run_key, found.why) == (None, "nothing to do: bronze has every record of events")


def test_a_run_that_gets_somewhere_is_followed_by_the_next_without_a_pause():
    asked, keys = asked_at(lambda n: lag_of(end=1_000, at=n), ticks=20)
    assert len(asked) == len(set(keys)) == 20


def test_runs_that_get_nowhere_are_asked_for_less_and_less_often_but_always_again():
    # New records go on arriving, as they do while a registry is down.
    asked, keys = asked_at(lambda n: lag_of(end=10 + n), ticks=2_000)
    pauses = [b - a for a, b in pairwise(asked)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 30
    assert pauses[-1] == LONGEST_WAIT_S
    assert len(keys) == len(set(keys)) > 20
    assert asked[-1] > 2_000 * 15 - 2 * LONGEST_WAIT_S


def test_a_run_that_only_made_an_empty_bronze_has_got_nowhere():
    before, after = lag_of(), lag_of(floors={"silver": 0, "gold": 0, "unified": 0})
    memory = Memory()
    decide(before, memory, START)
    assert "1 runs made no progress" in decide(after, memory, START + 1).why


def test_the_pause_ends_as_soon_as_a_run_has_got_somewhere():
    asked, _ = asked_at(lambda n: lag_of(end=1_000, at=0 if n < 100 else n), ticks=105)
    assert asked[-5:] == [n * 15.0 for n in range(100, 105)]


@pytest.mark.parametrize("lag", [lag_of(), lag_of(at=10, failed=("chess",))], ids=["records", "game"])
def test_after_a_clock_that_was_set_back_no_wait_is_longer_than_the_longest(lag):
    ahead = START + 86_400
    memory = Memory()
    decide(lag, memory, ahead)
    decide(lag, memory, ahead + GRACE_S)
    assert memory.attempts
    decide(lag, memory, START)
    assert decide(lag, memory, START + LONGEST_WAIT_S).run_key


def test_waits_grow_from_half_a_minute_to_a_quarter_of_an_hour():
    assert [wait_s(n) for n in (0, 1, 2, 3, 6, 7, 5_000)] == [0, 30, 60, 120, 900, 900, 900]


def test_a_topic_that_was_made_anew_has_other_keys_for_the_same_offsets():
    assert decide(lag_of(), Memory(), START).run_key != decide(lag_of(topic_id="two"), Memory(), START).run_key


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ({"batch": 3, "floors": {"silver": 2, "gold": 2, "unified": 2}}, "behind the layer before: silver"),
        ({"batch": 3, "floors": {"silver": 3, "gold": 1, "unified": 1}}, "behind the layer before: gold"),
        ({"failed": ("chess", "rummy")}, "games that failed or wait: chess, rummy"),
    ],
)
def test_a_layer_or_game_left_behind_is_first_left_to_automation_then_taken_up_then_less_and_less_often(left, words):
    behind = lag_of(end=10, at=10, **left)
    first = decide(behind, Memory(), START)
    assert first.run_key is None
    assert words in first.why
    asked, _ = asked_at(lambda _: behind, ticks=100)
    assert asked[0] == GRACE_S
    pauses = [b - a for a, b in pairwise(asked)]
    assert pauses[:3] == [30, 60, 120]


def test_a_failed_game_does_not_make_new_records_wait():
    asked, _ = asked_at(lambda n: lag_of(end=1_000, at=n, failed=("rummy",)), ticks=20)
    assert len(asked) == 20


def test_a_start_that_is_not_settled_and_a_topic_that_was_truncated_ask_for_a_run_that_settles_it_or_says_so():
    assert decide(lag_of(end=10, at=10, made=False), Memory(), START).run_key
    truncated = decide(lag_of(end=10, at=20, ahead=(Partition("events", "one", 0),)), Memory(), START)
    assert truncated.run_key
    assert "events[0] end before what bronze has read" in truncated.why


@pytest.mark.parametrize("cursor", [None, "", "not json", '{"attempts": "many"}', "[1, 2]"])
def test_a_cursor_that_is_none_is_an_empty_memory(cursor):
    assert Memory.read(cursor) == Memory()


def test_a_source_that_does_not_answer_is_a_reason_for_a_run_which_fails_by_its_name_but_not_at_once():
    lag = lag_of(at=10, failures={"us": "no answer"})
    memory = Memory()
    assert decide(lag, memory, START).run_key is None
    found = decide(lag, memory, START + GRACE_S)
    assert found.run_key
    assert found.why == "sources that do not answer: us"
    assert decide(lag, memory, START + GRACE_S + 1).run_key is None, "runs that get nowhere are asked for less often"
