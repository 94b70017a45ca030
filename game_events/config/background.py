"""Calls in daemon threads: a process that is interrupted or ends does not wait for them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin_call(call: Callable[[], T], name: str) -> Future[T]:
    """Begin a call in a thread of that name; the future has its result or its error."""
    made: Future[T] = Future()

    def make() -> None:
        try:
            made.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            made.set_exception(error)

    threading.Thread(target=make, name=name, daemon=True).start()
    return made
