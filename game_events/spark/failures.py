"""Crashed Python workers of Spark: one error for them, and bisection to find the games that end a job.

A fault in native code, lack of memory or a `kill` ends a worker within a batch with rows of many games. So a crashed job is run
again for halves of the games, for quarters of those that crash again, and so on, until each crashing game is isolated; the
others succeed. Failures of user code and at lost files are isolated in the same way.

Errors of a storage in work that Spark does, too, as the project's own.

This project's errors that Spark's workers raise, as themselves in the driver.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events import errors
from game_events.errors import GameEventsError, LostFileError, TransientError, UserCodeError, first_few
from game_events.lakehouse.storage import CARRIERS, LONGEST, storage_error, store_errors_named

T = TypeVar("T")

#: Spark's message (4.0), also over Spark Connect.
CRASHED = "Python worker exited unexpectedly"

#: This project's message, also in quarantine: its beginning and end.
WORKER_CRASHED = "a Python worker of Spark crashed"

NOTHING_COMMITTED = ". Nothing of this job was committed, what was committed before stays"

#: Crashes at most during a bisection: one game of 2,000 costs 13. The remaining games wait for the next run.
MAX_CRASHES = 40

#: Failures at most after the first one of user code, which may concern every game: so many jobs fail in vain then.
MAX_FAILURES = 6

#: Crashes with only one game's rows until it is isolated: a single one may be a `kill`.
DEATHS_ALONE = 2

#: Games that a message names.
NAMED = 5


class WorkerCrashError(TransientError):
    """A worker's process ended in the middle of a job; nothing of the job is committed."""


#: Errors of a job for which the rows or files of one game may be the reason.
OF_ONE_GAME = (WorkerCrashError, UserCodeError, LostFileError)


def is_crash(error: BaseException) -> bool:
    """Whether a Spark job failed because a worker's process ended."""
    return isinstance(error, PySparkException | Py4JJavaError) and CRASHED in str(error)


def crash(error: BaseException, over: str) -> WorkerCrashError:
    """The error to raise for Spark's error; `over`: the rows in question (` over the rows of ...`)."""
    return WorkerCrashError(f"{WORKER_CRASHED}{over}: {_cause(str(error))}{NOTHING_COMMITTED}")


@contextmanager
def crashes_explained(over: str) -> Iterator[None]:
    """Raise WorkerCrashError for crashes of workers in the block; other errors unchanged."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if not is_crash(error):
            raise
        raise crash(error, over) from error


def run_with_bisection(
    games: Collection[str], job: Callable[[Collection[str]], T], over: str, warn: Callable[[str], None]
) -> tuple[list[T], dict[str, str]]:
    """Run a job for some games; after a crash, or a failure of user code or at a file, `warn` and `bisect`."""
    try:
        return [job(games)], {}
    except OF_ONE_GAME as error:
        warn(f"{over}: {error}. It is retried for halves of the games")
    return bisect(sorted(games), job, over)


def bisect(
    games: Sequence[str], job: Callable[[Collection[str]], T], over: str, max_crashes: int = MAX_CRASHES
) -> tuple[list[T], dict[str, str]]:
    """Run a crashed job for parts of its games, until those that crash it are isolated; `over`: its tables, for messages.

    Returns the results of the successful parts, and failed game -> reason.
    """
    done: list[T] = []
    failed: dict[str, str] = {}
    waiting = deque(_halves(games))
    alone: dict[str, int] = {}
    crashes = 0
    why = ""
    # Largest parts first: most games succeed even if `max_crashes` is reached.
    while waiting:
        part = waiting.popleft()
        if crashes >= max_crashes:
            failed |= dict.fromkeys(part, why)
            continue
        try:
            done.append(job(part))
        except OF_ONE_GAME as error:
            crashes += 1
            why = f"not tried: {crashes} jobs over {over} failed, and its rows or files may be why; the next run tries again"
            if isinstance(error, UserCodeError):
                max_crashes = min(max_crashes, crashes - 1 + MAX_FAILURES)
                why = str(error)
            if len(part) > 1:
                waiting.extend(_halves(part))
            elif not isinstance(error, WorkerCrashError):
                failed[part[0]] = str(error)
            elif alone.setdefault(part[0], 1) < DEATHS_ALONE:
                alone[part[0]] += 1
                waiting.append(part)
            else:
                failed[part[0]] = f"{error}; it happened {DEATHS_ALONE} times with no other rows"
    return done, failed


def named(games: Sequence[str]) -> str:
    """At most `NAMED` games for a message."""
    return first_few(games, NAMED, ", ")


def _halves(games: Sequence[str]) -> list[Sequence[str]]:
    middle = (len(games) + 1) // 2
    return [part for part in (games[:middle], games[middle:]) if part]


def _cause(message: str) -> str:
    """What the worker's fault handler wrote (enabled by `session_config`); a killed process writes nothing."""
    fault = re.search(r"Fatal Python error: (.+)", message)
    if fault is None:
        return "it was killed (is there enough memory?), or code that it ran ended the process"
    at = re.search(r'File "(?:[^"]*/)?([^"/]+)", line (\d+) in (\S+)', message[fault.end() :])
    return fault[1].strip() + (f" in {at[1]}, line {at[2]} ({at[3]})" if at is not None else "")


#: Errors of delta-rs, files and Spark's jobs, which may be those of a storage.
ALL_CARRIERS = (*CARRIERS, PySparkException, Py4JJavaError)

#: A worker's own error of a file, in the text of Spark's.
_BY_WORKER = re.compile(r"game_events\.errors\.LostFileError: (.*)")

#: Spark's error of a file that it reads itself: kind, URI, and words; Java's cause, for the kind without words.
_BY_SPARK = re.compile(
    r"\[FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (\S+?)\.(?=\s|$) *(.*?) *(?:SQLSTATE|\n|$)"
)

_CAUSE = re.compile(r"Caused by: (?:[\w.$]+: )?(.+)")


def storage_named(root: str) -> AbstractContextManager[None]:
    """As `store_errors_named`, for errors of disks and of Spark's jobs, too."""
    return store_errors_named(root, ALL_CARRIERS, lambda error, root: storage_error(error, root) or lost_file(error, root))


def lost_file(error: BaseException, root: str) -> LostFileError | None:
    """The error for a Spark job that met a file that is gone or damaged; None for any other, as one of the whole storage."""
    if storage_error(error, root) is not None:
        return None
    text = str(error)
    if (by_worker := _BY_WORKER.search(text)) is not None:
        return LostFileError(by_worker[1])
    by_spark = _BY_SPARK.search(text)
    if by_spark is None:
        return None
    kind, uri, words = by_spark.groups()
    path = unquote(uri.removeprefix("file://").removeprefix("file:"))
    if kind == "FILE_NOT_EXIST":
        return LostFileError(f"{path} is gone, though the table's log lists it")
    cause = _CAUSE.search(text)
    why = words or (cause[1] if cause is not None else "")
    return LostFileError(f"{path} cannot be read: {why[:LONGEST]}" if why else f"{path} cannot be read")


#: The last line of a worker's traceback in the text of Spark's error: class and message.
_RAISED_BY_WORKER = re.compile(r"^game_events\.errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def worker_errors_named() -> Iterator[None]:
    """Raise this project's errors of workers in the block as themselves; other errors unchanged."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raised = _RAISED_BY_WORKER.search(str(error))
        kind = getattr(errors, raised[1], None) if raised is not None else None
        if raised is None or not (isinstance(kind, type) and issubclass(kind, GameEventsError)):
            raise
        raise kind(raised[2]) from error
