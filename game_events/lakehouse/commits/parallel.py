"""Work for each game, in as many threads as the storage's latency asks for; commits, each failing alone."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice
from statistics import median
from typing import TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.config.masking import without_secrets
from game_events.config.settings import Settings
from game_events.errors import ConflictError, GameEventsError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.commits.group import commit_group
from game_events.lakehouse.parts import PartedHandle
from game_events.lakehouse.tables import Table

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)
#: Games that are worked on alone, one after the other. The one between shows the storage's latency: the slowest may have made
#: connections, the fastest may have had nothing to do.
MEASURED = 3
#: Of so few games one alone is enough, if it took so long: then it waited for the storage.
FEW, SLOW_S = 16, 0.03
#: Processor time of one game's work: while one game waits for the storage, one thread may work on so many others.
WORK_S = 0.002
#: Threads at least and at most. On a local disk nothing waits: more threads only take turns.
FEWEST_THREADS, MOST_THREADS = 1, 64
#: Times games are planned again (concurrent writers, games ahead of the low watermark) before a run fails.
GAME_ATTEMPTS = 10


@dataclass
class Committed:
    """Outcomes by game.

    `landed`: visible commits. `again`: games to plan again, as a concurrent writer committed first. `failed`: game -> why
    nothing was committed.
    """

    landed: dict[str, Landed] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


def for_games(games: Iterable[str], read: Callable[[str], T]) -> dict[str, T]:
    """Results of a function for every game, in parallel, in the order of the games."""
    names = list(games)
    return dict(zip(names, in_threads(names, read), strict=True))


def guarded(read: Callable[[str], T]) -> Callable[[str], T | str]:
    """The function with errors of one game's table as a text: they fail this game, not the run."""

    def reading(game: str) -> T | str:
        try:
            return read(game)
        except (GameEventsError, DeltaError, OSError) as error:
            return str(error)

    return reading


def in_threads(items: Iterable[T], work: Callable[[T], R]) -> list[R]:
    """Results of a function for every item, in their order; the first items decide how many threads the others get."""
    return list(ahead(items, work))


def ahead(items: Iterable[T], work: Callable[[T], R]) -> Iterator[R]:
    """As `in_threads`, with no more than a few results for each thread in memory before they are taken."""
    waiting, seconds = iter(items), list[float]()
    alone = 1 if isinstance(items, Sized) and len(items) <= FEW else MEASURED
    for item in islice(waiting, alone):
        began = time.monotonic()
        result = work(item)
        seconds.append(time.monotonic() - began)
        yield result
    threads = threads_for(median(seconds)) if len(seconds) == alone else FEWEST_THREADS
    if threads == FEWEST_THREADS or (alone == 1 and seconds[0] < SLOW_S):
        yield from map(work, waiting)
        return
    with ThreadPoolExecutor(threads) as pool:
        # One more for each thread: while the oldest is waited for, no thread has nothing to do.
        under_way = deque(pool.submit(work, item) for item in islice(waiting, 2 * threads))
        try:
            while under_way:
                result = under_way.popleft().result()
                under_way += (pool.submit(work, item) for item in islice(waiting, 1))
                yield result
        finally:  # after an error, or if the caller takes no more results
            for one in under_way:
                one.cancel()


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The items; while the caller works on one, a thread makes the next one, which waits in memory."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item


def threads_for(latency_s: float) -> int:
    """Number of threads in which work of that duration, most of it waiting, keeps one processor busy; within bounds."""
    return max(FEWEST_THREADS, min(MOST_THREADS, round(latency_s / WORK_S)))


def opened(
    games: Iterable[str], table: Callable[[str], Table], take: Callable[[Table], DeltaTable | None] = Table.open_to_read
) -> dict[str, DeltaTable]:
    """Game -> handle, of its tables that exist; `take`: how a table is opened. A table with parts is opened once for all."""
    wholes: dict[str, DeltaTable | None] = {}

    def one(game: str) -> DeltaTable | None:
        wanted = table(game)
        if wanted.part is None:
            return take(wanted)
        if wanted.uri not in wholes:
            wholes[wanted.uri] = take(wanted.whole)
        whole = wholes[wanted.uri]
        return whole.part(game) if isinstance(whole, PartedHandle) else None

    found = for_games(games, one)
    return {game: handle for game, handle in found.items() if handle is not None}


def commit_games(
    plans: Mapping[str, Callable[[], Commit | None]], failpoint: str, settings: Settings, of: str = ""
) -> Committed:
    """Commit every game's plan; plans for parts of one table in one commit.

    `plans`: game -> function that opens the table and makes the plan on that handle; None: to be planned again. `failpoint` is
    reached after each commit, with the number of games committed so far; `of` is the prefix of that number.
    """
    outcome, parts = Committed(), dict[str, Commit]()
    done = count(1)

    def landed(game: str, found: Landed) -> None:
        outcome.landed[game] = found
        failpoints.reach(failpoint, f"{of}{next(done)}")

    def lost(game: str, error: Exception) -> None:
        why = without_secrets(str(error), settings)
        if isinstance(error, ConflictError):
            log.info("game=%s conflict=%r planned_again=true", game, why)
            outcome.again.add(game)
        else:
            outcome.failed[game] = why
            log.error("game=%s commit_failed=%r", game, why)

    def one(item: tuple[str, Callable[[], Commit | None]]) -> None:
        game, make = item
        try:
            plan = make()
            if plan is None:
                outcome.again.add(game)
            elif plan.table.part is not None:
                parts[game] = plan
            else:
                landed(game, commit(plan))
        except (GameEventsError, DeltaError, OSError) as error:
            lost(game, error)

    in_threads(plans.items(), one)
    for game, found in (commit_group(parts) if parts else {}).items():
        if isinstance(found, Landed):
            landed(game, found)
        else:
            lost(game, found)
    return outcome
