"""A Python worker of Spark whose process died over its rows: told in one sentence, and the games found that it dies of.

A fault in native code, a system that is out of memory or somebody's `kill` ends a worker in the middle of a batch in which rows
of many games stand together, and nobody can say which of them it was. So a job that died is run again for halves of the games,
for quarters of those that die again, and so on, until each that kills its worker stands alone; the others' parts are whole.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.errors import TransientError

T = TypeVar("T")
#: How Spark says it (4.0); of a job over Spark Connect, too.
CRASHED = "Python worker exited unexpectedly"
#: Jobs that may die while games are told apart: one game of 2,000 costs 13 of them. A game that is not told apart by then has
#: to wait for the next run.
MAX_CRASHES = 40
#: A game is found guilty by so many deaths of a worker that had only its rows: one may be anybody's `kill`.
DEATHS_ALONE = 2
#: Games that a sentence names.
NAMED = 5


class WorkerCrashError(TransientError):
    """A worker's process ended in the middle of a job; nothing of the job is committed."""


def is_crash(error: BaseException) -> bool:
    """Whether a Spark job failed because a worker's process ended."""
    return isinstance(error, PySparkException | Py4JJavaError) and CRASHED in str(error)


def crash(error: BaseException, over: str) -> WorkerCrashError:
    """What to raise for it.

    Args:
        error: Spark's.
        over: what the worker was at: ` over the rows of ...`.
    """
    return WorkerCrashError(
        f"a Python worker of Spark crashed{over}: {_last_words(str(error))}. Nothing of this job was committed, what was "
        "committed before stays"
    )


@contextmanager
def crashes_explained(over: str) -> Iterator[None]:
    """Deaths of workers inside are told in a sentence.

    Raises:
        WorkerCrashError: for them; every other error as it is.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if not is_crash(error):
            raise
        raise crash(error, over) from error


def run_with_bisection(
    games: Collection[str], job: Callable[[Collection[str]], T], over: str, tell: Callable[[str], None]
) -> tuple[list[T], dict[str, str]]:
    """Run a job for some games; only if a worker dies of it, for parts of them (`bisect`).

    Args:
        games: whose rows the job has.
        job: does it for some of them.
        over: what it makes, for the sentence.
        tell: gets a sentence if a worker has died.
    """
    try:
        return [job(games)], {}
    except WorkerCrashError as error:
        tell(f"{over}: {error}. It is tried for halves of them")
    return bisect(sorted(games), job, over)


def bisect(games: Sequence[str], job: Callable[[Collection[str]], T], over: str) -> tuple[list[T], dict[str, str]]:
    """Run a job that died for parts of its games, until those that it dies of are told apart.

    Args:
        games: whose rows the job had.
        job: does it for some of them.
        over: what it reads or makes, for the sentence.

    Returns:
        what the job gave for the parts, which are all the other games; game -> why there is nothing of it.
    """
    done: list[T] = []
    failed: dict[str, str] = {}
    waiting = deque(_halves(games))
    alone: dict[str, int] = {}
    crashes = 0
    # The largest parts first: what is whole is most of it, even if not all games are told apart in time.
    while waiting:
        part = waiting.popleft()
        if crashes >= MAX_CRASHES:
            why = f"not tried: workers crashed {crashes} times over {over}, and its rows may be why; the next run tries again"
            failed |= dict.fromkeys(part, why)
            continue
        try:
            done.append(job(part))
        except WorkerCrashError as error:
            crashes += 1
            if len(part) > 1:
                waiting.extend(_halves(part))
            elif alone.setdefault(part[0], 1) < DEATHS_ALONE:
                alone[part[0]] += 1
                waiting.append(part)
            else:
                failed[part[0]] = f"{error}; it happened {DEATHS_ALONE} times with no other rows"
    return done, failed


def named(games: Sequence[str]) -> str:
    """Some games for a sentence, not all of hundreds."""
    more = f" and {len(games) - NAMED} more" if len(games) > NAMED else ""
    return ", ".join(games[:NAMED]) + more


def _halves(games: Sequence[str]) -> list[Sequence[str]]:
    middle = (len(games) + 1) // 2
    return [part for part in (games[:middle], games[middle:]) if part]


def _last_words(said: str) -> str:
    """What the worker's fault handler wrote (`spark.session_config` asks for it); nothing of a process that was killed."""
    fault = re.search(r"Fatal Python error: (.+)", said)
    if fault is None:
        return "it was killed (is there enough memory?), or code that it ran ended the process"
    at = re.search(r'File "(?:[^"]*/)?([^"/]+)", line (\d+) in (\S+)', said[fault.end() :])
    return fault[1].strip() + (f" in {at[1]}, line {at[2]} ({at[3]})" if at is not None else "")
