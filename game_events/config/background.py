"""Calls in threads that end with the process: whoever interrupts it waits for none of them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin_call(call: Callable[[], T], name: str) -> Future[T]:
    """Begin a call in a thread of that name; what it returns or raises is in the future."""
    made: Future[T] = Future()

    def make() -> None:
        try:
            made.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            made.set_exception(error)

    threading.Thread(target=make, name=name, daemon=True).start()
    return made
