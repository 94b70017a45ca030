"""How many calls are permitted in any second and minute, on a clock of the test's own."""

import random

import pytest

from game_events.plugins.export.delivery import GRACE_S, RateWindow
from game_events_tests.support.servers.rest_receiver import busiest


def window(per_second, per_minute):
    limits = [(per_second, 1.0), (per_minute, 60.0)]
    return RateWindow(tuple(limit for limit in limits if limit[0]))


def simulated(limit, seconds, work, in_flight, stall=0.0, now=0.0):
    """Calls of callers who always want to call: when each of them reached the receiver.

    `work`: seconds that the receiver takes; `stall`: seconds by which the way there, and back, may be longer than 2 ms; `now`:
    when it begins, `seconds`: when it ends.
    """
    chance, arrivals, running = random.Random(1), [], []  # noqa: S311
    while now < seconds:
        for end, granted in [r for r in running if r[0] <= now]:
            limit.release(granted, end)
            running.remove((end, granted))
        if len(running) < in_flight and limit.acquire(now):
            there, back = (0.002 + stall * chance.random() ** 4 for _ in range(2))
            arrivals.append(now + there)
            running.append((now + there + work(chance) + back, now))
            continue
        waits = [r[0] for r in running]
        if len(running) < in_flight:
            waits.append(now + max(limit.wait_s(now), 1e-6))
        now = min(w for w in waits if w > now)
    return sorted(arrivals)


LATENCIES = {
    "34 ms": lambda _: 0.034,
    "95 ms": lambda _: 0.095,
    "1 ms": lambda _: 0.001,
    "uneven": lambda chance: chance.uniform(0.02, 0.2),
    "some hang": lambda chance: 0.05 if chance.random() < 0.98 else 30.0,
}


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize(("per_s", "per_min"), [(50, 0), (7, 0), (300, 3_000), (0, 240)])
def test_no_window_of_the_receiver_has_more_calls_than_the_cap_wherever_it_begins(latency, per_s, per_min):
    times = simulated(window(per_s, per_min), 130, LATENCIES[latency], 64, stall=GRACE_S - 0.01)
    if per_s:
        assert busiest(times, 1.0) <= per_s
    if per_min:
        assert busiest(times, 60.0) <= per_min
    assert len(times) > 100


@pytest.mark.parametrize("latency", ["1 ms", "34 ms", "95 ms"])
def test_callers_who_always_want_to_call_use_more_than_95_percent_of_the_cap(latency):
    times = simulated(window(100, 0), 60, LATENCIES[latency], 64)
    assert len(times) >= 0.95 * 100 * 60
    times = simulated(window(0, 600), 600, LATENCIES[latency], 64)
    assert len(times) >= 0.95 * 600 * 10


def test_a_call_that_is_never_answered_gives_its_place_back():
    limit = window(1, 0)
    assert limit.acquire(0.0)
    assert not limit.acquire(1.0)
    assert limit.wait_s(1.0) == pytest.approx(GRACE_S)
    assert limit.acquire(1.0 + GRACE_S)
    limit.release(0.0, 20.0)  # an answer that comes after all changes nothing
    assert not limit.acquire(1.1 + GRACE_S)


def test_without_a_cap_every_call_may_be_made():
    limit = window(0, 0)
    for _ in range(1000):
        assert limit.acquire(0.0)
        limit.release(0.0, 0.0)
    assert limit.ages(0.0) == []


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize(("per_s", "per_min"), [(50, 0), (300, 3_000), (0, 240)])
def test_a_micro_batch_counts_the_calls_of_the_one_before(latency, per_s, per_min):
    times, ages, began = [], [], 0.0
    for pause in [0.0, 0.2, 0.9, 0.0, 30.0] * 4:
        began += pause
        limit = window(per_s, per_min)
        limit.resume([age + pause for age in ages], began)
        ended = began + 3.1
        times += simulated(limit, ended, LATENCIES[latency], 64, GRACE_S - 0.01, began)
        ages, began = limit.ages(ended), ended
    assert busiest(sorted(times), 1.0) <= (per_s or per_min)
    assert busiest(sorted(times), 60.0) <= (per_min or 60 * per_s)
    assert len(times) > 100


def test_a_used_up_window_lets_nobody_call_until_all_of_it_has_passed():
    limit = window(2, 3)
    limit.resume_used_up(100.0)
    assert not limit.acquire(100.0)
    assert limit.wait_s(100.0) == pytest.approx(60.0 + GRACE_S)
    assert limit.acquire(160.1 + GRACE_S)
