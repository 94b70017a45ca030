"""A worker that dies over one game's rows: that game is found, and the others' rows arrive. No Spark here."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.errors import UserCodeError
from game_events.spark.failures import (
    MAX_FAILURES,
    WorkerCrashError,
    bisect,
    crashes_explained,
    is_crash,
    run_with_bisection,
)

SPARK_SAYS = (
    "Job aborted due to stage failure: ...: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
)


class Job:
    """Dies if one of the guilty games is among those it is run for; `killed`: jobs that die of somebody's `kill` instead."""

    def __init__(self, guilty=(), killed=(), error=WorkerCrashError):
        self.guilty, self.killed, self.parts, self.error = set(guilty), set(killed), [], error

    def __call__(self, games):
        self.parts.append(sorted(games))
        if self.guilty & set(games) or len(self.parts) in self.killed:
            raise self.error("a worker crashed")
        return set(games)


def games(count):
    return [f"game_{number:04}" for number in range(count)]


def test_a_job_that_ends_well_is_run_once():
    job = Job()
    assert run_with_bisection(games(5), job, "silver", pytest.fail) == ([set(games(5))], {})
    assert job.parts == [games(5)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 2000])
def test_the_one_game_that_kills_workers_is_found_and_all_others_are_done_once(count):
    for guilty in {games(count)[0], games(count)[-1], games(count)[count // 3]}:
        job = Job([guilty])
        done, failed = run_with_bisection(games(count), job, "silver", lambda _: None)
        assert sorted(game for part in done for game in part) == sorted(set(games(count)) - {guilty})
        assert list(failed) == [guilty]
        assert "2 times with no other rows" in failed[guilty]
        assert len(job.parts) <= 2 * count.bit_length() + 3


def test_several_guilty_games_are_found():
    guilty = {"game_0000", "game_0007", "game_0013"}
    done, failed = bisect(games(20), Job(guilty), "silver")
    assert set(failed) == guilty
    assert sum(map(len, done)) == 17


def test_a_worker_that_somebody_killed_costs_no_game_its_rows():
    done, failed = run_with_bisection(games(8), Job(killed=[1]), "silver", lambda _: None)
    assert (sum(map(len, done)), failed) == (8, {})
    # The second one is hit while a game stands alone: that may be chance, too.
    done, failed = run_with_bisection(games(1), Job(killed=[1, 2]), "silver", lambda _: None)
    assert (sum(map(len, done)), failed) == (1, {})


def test_when_everything_dies_an_end_is_put_to_it_and_each_game_says_why_it_waits():
    job = Job(games(100))
    done, failed = bisect(games(100), job, "batches 3 to 5 of bronze_events", max_crashes=6)
    assert len(job.parts) == 6
    assert done == []
    assert set(failed) == set(games(100))
    assert failed["game_0050"].startswith("not tried: 6 jobs over batches 3 to 5 of bronze_events")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 30])
def test_the_one_game_over_whose_rows_user_code_fails_is_found(count):
    job = Job(["game_0001"], error=UserCodeError)
    done, failed = run_with_bisection(games(count), job, "gold", lambda _: None)
    assert sorted(game for part in done for game in part) == [game for game in games(count) if game != "game_0001"]
    assert failed == ({"game_0001": "a worker crashed"} if count > 1 else {})


def test_user_code_that_fails_for_every_game_fails_few_jobs_and_says_why_for_each():
    job = Job(games(2000), error=UserCodeError)
    done, failed = run_with_bisection(games(2000), job, "gold", lambda _: None)
    assert (done, failed, len(job.parts)) == ([], dict.fromkeys(games(2000), "a worker crashed"), 1 + MAX_FAILURES)


class JobAbortedError(Py4JJavaError):
    """As py4j raises it, without a JVM to ask for the stack."""

    def __init__(self, text):
        Exception.__init__(self, text)
        self.text = text

    def __str__(self):
        return self.text


@pytest.mark.parametrize("kind", [JobAbortedError, PySparkException])
def test_a_crash_is_told_in_one_sentence_that_says_where(kind):
    killed = kind(f"{SPARK_SAYS}\n\tat org.apache.spark.api.python.BasePythonRunner...\n" * 50)
    with pytest.raises(WorkerCrashError) as raised, crashes_explained(" over events[0] 3 to 5"):
        raise killed
    assert str(raised.value) == (
        "a Python worker of Spark crashed over events[0] 3 to 5: it was killed (is there enough memory?), or code that it ran "
        "ended the process. Nothing of this job was committed, what was committed before stays"
    )
    fault = (
        f"{SPARK_SAYS}: Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File "
        '"/opt/lib/game_events/pipeline/fan_out.py", line 157 in run\n  File "/opt/lib/worker.py", line 3 in main\n'
    )
    with (
        pytest.raises(WorkerCrashError, match=r"crashed: Segmentation fault in fan_out.py, line 157 \(run\)\. Nothing"),
        crashes_explained(""),
    ):
        raise kind(fault)


def test_another_failure_of_a_job_is_left_as_it_is():
    other = PySparkException("[DIVIDE_BY_ZERO] ...")
    assert not is_crash(other)
    assert not is_crash(RuntimeError(SPARK_SAYS))
    with pytest.raises(PySparkException) as raised, crashes_explained(" over rows"):
        raise other
    assert raised.value is other
