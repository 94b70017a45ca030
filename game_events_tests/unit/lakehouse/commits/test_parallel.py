"""The number of threads follows the storage's latency; tested by how many calls are under way at once, never by time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from game_events.lakehouse.commits import group
from game_events.lakehouse.commits.group import (
    FEWEST_THREADS,
    MEASURED,
    MOST_THREADS,
    ahead,
    for_games,
    in_threads,
    one_ahead,
    threads_for,
)
from game_events_tests.support.waiting import until

GAMES = [f"g{number:03}" for number in range(200)]


class Store:
    """A store with a latency; it counts the calls that are under way."""

    def __init__(self, latency_s):
        self._latency_s, self._lock = latency_s, threading.Lock()
        self.now = self.most = 0
        self.alone = []

    def commit(self, game):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if len(self.alone) < MEASURED:
                self.alone.append(self.now)
        time.sleep(self._latency_s)
        with self._lock:
            self.now -= 1
        return game.upper()


def test_a_slow_store_gets_more_calls_at_once_within_the_bound():
    store = Store(0.05)
    assert for_games(GAMES, store.commit) == {game: game.upper() for game in GAMES}
    assert store.alone == [1] * MEASURED, "the first calls are made alone: others would be measured with them"
    assert FEWEST_THREADS * 3 < store.most <= MOST_THREADS


def test_of_few_games_in_a_slow_store_one_alone_is_waited_for():
    store = Store(0.1)
    few = GAMES[:10]
    assert for_games(few, store.commit) == {game: game.upper() for game in few}
    assert (store.alone[0], store.most) == (1, 9)


def test_few_games_on_a_local_disk_need_no_thread():
    threads = for_games(GAMES[:10], lambda _: threading.get_ident())
    assert set(threads.values()) == {threading.get_ident()}


def test_results_come_in_order_and_few_of_them_wait_to_be_taken():
    begun = []

    def work(number):
        begun.append(number)
        time.sleep(0.01)
        return number

    for taken, number in enumerate(ahead(range(200), work)):
        assert number == taken
        assert len(begun) <= taken + 1 + 2 * MOST_THREADS
        if taken == MEASURED:
            assert len(begun) < 200, "all were worked on at once"
    assert sorted(begun) == list(range(200))
    assert list(ahead([], work)) == []


def test_after_an_error_no_more_work_is_begun_than_threads_take_before_it_is_noticed(monkeypatch):
    begun, noticed, pools = [], threading.Event(), []

    class Pool(ThreadPoolExecutor):
        def __init__(self, threads):
            super().__init__(threads)
            pools.append(threads)

        def __exit__(self, *error):
            noticed.set()
            return super().__exit__(*error)

    def work(number):
        begun.append(number)
        time.sleep(0.01)
        if number == MEASURED:
            raise OSError("gone")
        if number > MEASURED:
            noticed.wait()

    monkeypatch.setattr(group, "ThreadPoolExecutor", Pool)
    with pytest.raises(OSError, match="gone"):
        in_threads(range(1_000), work)
    assert len(begun) <= MEASURED + pools[0] + 1


@pytest.mark.parametrize(
    ("latency_s", "threads"),
    [(0.0, FEWEST_THREADS), (0.001, FEWEST_THREADS), (0.05, 25), (0.2, MOST_THREADS), (30, MOST_THREADS)],
)
def test_threads_keep_one_processor_busy_within_bounds(latency_s, threads):
    assert threads_for(latency_s) == threads


@pytest.mark.parametrize("first", [[0.3, 0.02, 0.0], [0.02, 0.0, 0.3]])
def test_neither_the_slowest_nor_the_fastest_of_the_first_calls_decides(first):
    """The first call of a process makes connections and loads modules; a game may have nothing to do."""
    pauses = iter(first)
    workers = set()

    def work(_):
        workers.add(threading.get_ident())
        time.sleep(next(pauses, 0.1))

    in_threads(GAMES[: MEASURED + MOST_THREADS], work)
    assert FEWEST_THREADS < len(workers) - 1 < MOST_THREADS


@pytest.mark.parametrize("games", [[], GAMES[:1], GAMES[:MEASURED]])
def test_few_games_need_no_thread(games):
    assert for_games(games, lambda _: threading.get_ident()) == dict.fromkeys(games, threading.get_ident())


def test_the_next_item_is_made_while_one_is_worked_on_and_no_more_of_them():
    made, may_go_on = [], threading.Event()

    def items():
        for number in range(4):
            made.append(number)
            yield number
            assert may_go_on.wait(10)

    taken = one_ahead(items())
    assert next(taken) == 0
    may_go_on.set()
    until(lambda: made == [0, 1], what="the next item")
    time.sleep(0.05)
    assert made == [0, 1]
    assert list(taken) == [1, 2, 3]


def test_an_error_of_an_item_comes_in_its_place():
    def items():
        yield 1
        raise OSError("the second")

    taken = one_ahead(items())
    assert next(taken) == 1
    with pytest.raises(OSError, match="the second"):
        next(taken)
