"""The next slice of a topic: contiguous, bounded, fair, and never past what exists."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, DataError
from game_events.sources import source
from game_events.sources.factory import make_source
from game_events.sources.kafka.client import MANAGED
from game_events.sources.source import Gap, MicroBatch, Partition, SourceSnapshot
from game_events_tests.support.offsets import by_partition


def split(number):
    """Partitions by their number: those with an even one are of one topic, the others of another."""
    return Partition("games", "id", number) if number % 2 == 0 else Partition("others", "other id", number)


def splits(offsets):
    return {split(number): at for number, at in offsets.items()}


@dataclass
class Planned:
    """A slice, by the partitions' numbers."""

    part: MicroBatch

    def __getattr__(self, name):
        found = getattr(self.part, name)
        return by_partition(found) if isinstance(found, dict) else found


def topic(earliest, latest):
    return SourceSnapshot(splits(earliest), splits(latest))


def plan_slice(now, start, until, cap):
    part = source.plan_micro_batch(now, splits(start), splits(until), cap)
    return None if part is None else Planned(part)


def test_a_slice_goes_on_where_the_last_one_ended():
    part = plan_slice(topic({0: 0, 1: 0}, {0: 10, 1: 5}), {0: 4, 1: 5}, {0: 10, 1: 5}, 100)
    assert (part.start, part.end, part.records) == ({0: 4}, {0: 10}, 6)
    assert part.lag == {0: 0, 1: 0}


def test_nothing_to_read_is_no_slice():
    assert plan_slice(topic({0: 3}, {0: 3}), {0: 3}, {0: 3}, 10) is None
    assert plan_slice(topic({}, {}), {}, {}, 10) is None
    assert plan_slice(topic({0: 0}, {0: 9}), {0: 5}, {0: 5}, 10) is None  # all that was asked for is read


def test_a_partition_that_was_added_is_read_from_its_start_whatever_end_was_seen_before():
    part = plan_slice(topic({0: 0, 1: 0}, {0: 5, 1: 9}), {0: 5}, {0: 5}, 100)
    assert (part.start, part.end, part.gaps) == ({1: 0}, {1: 9}, ())
    # Its first records expired before anybody read them.
    part = plan_slice(topic({0: 0, 1: 7}, {0: 5, 1: 9}), {0: 5}, {0: 5}, 100)
    assert (part.start, part.end, part.gaps) == ({1: 7}, {1: 9}, (Gap("others", "other id", 1, 0, 7),))


def test_what_arrives_after_the_target_was_seen_is_left_for_the_next_run():
    part = plan_slice(topic({0: 0}, {0: 50}), {0: 0}, {0: 20}, 100)
    assert (part.end, part.lag) == ({0: 20}, {0: 30})


def test_a_cap_is_shared_by_backlog():
    part = plan_slice(topic({0: 0, 1: 0, 2: 0}, {0: 900, 1: 90, 2: 10}), {}, {0: 900, 1: 90, 2: 10}, 100)
    assert part.end == {0: 90, 1: 9, 2: 1}


def test_a_small_cap_still_moves_every_partition():
    part = plan_slice(topic({0: 0, 1: 0}, {0: 10**9, 1: 1}), {}, {0: 10**9, 1: 1}, 2)
    assert part.end == {0: 1, 1: 1}


def test_partitions_that_are_left_out_of_a_slice_lag_as_far_as_they_are_behind():
    now = topic({0: 0, 1: 0, 2: 4}, {0: 100, 1: 50, 2: 9})
    part = plan_slice(now, {0: 0, 1: 20, 2: 4}, {0: 100, 1: 50, 2: 9}, 1)
    assert sum(part.lag.values()) == 100 + 30 + 5 - part.records
    part = plan_slice(now, {0: 0, 1: 20, 2: 9}, {0: 10, 1: 20, 2: 9}, 1_000)
    assert (part.end, part.lag) == ({0: 10}, {0: 90, 1: 30, 2: 0})


def test_with_a_cap_below_the_number_of_partitions_they_take_turns():
    now, start, moved = topic(dict.fromkeys(range(5), 0), dict.fromkeys(range(5), 100)), {}, Counter()
    for _ in range(5):
        part = plan_slice(now, start, dict.fromkeys(range(5), 100), 2)
        moved.update(part.end)
        start |= part.end
    assert set(moved) == set(range(5)), "no partition starves"


@pytest.mark.parametrize(("latest", "end"), [(30, {0: 30}), (20, {0: 20})])
def test_expired_offsets_are_a_gap_of_the_slice_that_goes_on_behind_them(latest, end):
    part = plan_slice(topic({0: 20}, {0: latest}), {0: 5}, {0: latest}, 10)
    assert part.gaps == (Gap("games", "id", 0, 5, 20),)
    assert (part.start, part.end) == ({0: 20}, end)
    assert str(part.gaps[0]) == "games[0]: offsets 5 to 19"


def test_offsets_that_expire_behind_the_end_seen_at_the_start_are_a_gap_too():
    part = plan_slice(topic({0: 20}, {0: 30}), {0: 5}, {0: 10}, 10)
    assert (part.gaps, part.start, part.end) == ((Gap("games", "id", 0, 5, 20),), {0: 20}, {0: 20})


def test_a_topic_that_ends_before_bronze_is_an_error():
    with pytest.raises(DataError, match=r"games\[0\]: bronze is at 9, the topic ends at 5"):
        plan_slice(topic({0: 0}, {0: 5}), {0: 9}, {0: 9}, 10)


def test_a_slice_never_ends_behind_the_topics_end():
    """As when the topic was made anew between the target and the slice: its offsets begin again."""
    part = plan_slice(topic({0: 0}, {0: 5}), {}, {0: 100}, 1_000)
    assert part.end == {0: 5}


offsets = st.integers(0, 2_000)
partitions = st.dictionaries(st.integers(0, 5), st.tuples(offsets, offsets, offsets, offsets).map(sorted), max_size=6)


@given(partitions, st.sets(st.integers(0, 5)), st.integers(1, 3_000))
def test_any_slice_is_contiguous_and_bounded(ranges, new, cap):
    now = topic({p: r[0] for p, r in ranges.items()}, {p: r[3] for p, r in ranges.items()})
    start = {p: r[0] if p in new else r[1] for p, r in ranges.items()}
    until = {p: r[2] for p, r in ranges.items()}
    part = plan_slice(now, start, until, cap)
    begin = start
    waiting = {p: until[p] - begin[p] for p in ranges if until[p] > begin[p]}
    if not waiting:
        assert part is None
        return
    assert part.start == {p: begin[p] for p in part.end}
    assert set(part.end) <= set(waiting), "only what has a backlog is read"
    if cap >= len(waiting):
        assert set(part.end) == set(waiting), "every partition with a backlog moves"
    assert all(begin[p] < part.end[p] <= until[p] for p in part.end)
    assert part.records <= cap
    assert part.records > min(cap, sum(waiting.values())) - len(waiting)
    assert all(remains >= 0 for remains in part.lag.values())


@given(partitions, st.integers(1, 50))
def test_slice_after_slice_reads_every_offset_once(ranges, cap):
    now = topic({p: r[0] for p, r in ranges.items()}, {p: min(r[3], r[0] + 200) for p, r in ranges.items()})
    earliest, latest = by_partition(now.earliest), by_partition(now.latest)
    assume(sum(latest[p] - earliest[p] for p in ranges) <= 20 * cap)
    start, read = dict(earliest), {p: [] for p in ranges}
    while (part := plan_slice(now, start, latest, cap)) is not None:
        for p, end in part.end.items():
            read[p] += range(part.start[p], end)
        start |= part.end
    assert read == {p: list(range(earliest[p], latest[p])) for p in ranges}


def test_records_and_lag_of_a_slice():
    part = Planned(MicroBatch(splits({0: 5, 1: 0}), splits({0: 8, 1: 1}), splits({0: 10, 1: 1, 2: 4})))
    assert (part.records, part.lag) == (4, {0: 2, 1: 0, 2: 0})


@pytest.mark.parametrize("option", MANAGED)
def test_options_that_exactly_once_depends_on_are_refused(option):
    with pytest.raises(ConfigurationError, match=option) as caught:
        make_source(Settings(kafka_options={option: "hunter2"}))
    assert "hunter2" not in str(caught.value)
