"""One commit for each game, in parallel, each failing alone."""

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.config.masking import without_secrets
from game_events.config.settings import Settings
from game_events.errors import ConflictError, GameEventsError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.tables import Table

T = TypeVar("T")
log = logging.getLogger(__name__)
#: delta-rs works outside Python's lock: a commit is waiting (object stores) or short (2-3 ms on a local disk).
THREADS = 16
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
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(names, pool.map(read, names), strict=True))


def opened(games: Iterable[str], table: Callable[[str], Table]) -> dict[str, DeltaTable]:
    """Game -> handle, of its tables that exist."""
    return {game: handle for game, handle in for_games(games, lambda game: table(game).open()).items() if handle is not None}


def commit_games(
    plans: Mapping[str, Callable[[], Commit | None]], failpoint: str, settings: Settings, of: str = ""
) -> Committed:
    """Commit every game's plan.

    `plans`: game -> function that opens the table and makes the plan on that handle; None: to be planned again. `failpoint` is
    reached after each commit, with the number of games committed so far; `of` is the prefix of that number.
    """
    outcome = Committed()
    done = count(1)

    def one(item: tuple[str, Callable[[], Commit | None]]) -> None:
        game, make = item
        try:
            plan = make()
            if plan is None:
                outcome.again.add(game)
                return
            outcome.landed[game] = commit(plan)
            failpoints.reach(failpoint, f"{of}{next(done)}")
        except ConflictError as error:
            log.info("game=%s conflict=%r planned_again=true", game, without_secrets(str(error), settings))
            outcome.again.add(game)
        except (GameEventsError, DeltaError, OSError) as error:
            outcome.failed[game] = without_secrets(str(error), settings)
            log.error("game=%s commit_failed=%r", game, outcome.failed[game])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, plans.items()))
    return outcome
