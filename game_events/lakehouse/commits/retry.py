"""Retries of work that lost its commit to a concurrent writer."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from game_events.errors import ConflictError

P = ParamSpec("P")
R = TypeVar("R")
#: Attempts before a conflict is raised: a continuous run commits to a table about twice a second.
CONFLICT_ATTEMPTS = 50


def retry_on_conflict(attempts: int = CONFLICT_ATTEMPTS) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of a function that reads tables, plans and commits: it runs again at once, from its reads on, after a conflict.

    After `attempts` runs the last `ConflictError` is raised.
    """
    return retry(retry=retry_if_exception_type(ConflictError), stop=stop_after_attempt(attempts), reraise=True)
