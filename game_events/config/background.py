"""Calls in daemon threads: a process that is interrupted or ends does not wait for them; a caller may wait for some time."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
#: Calls that were given up and have not ended yet: connections that a name server or a handshake keeps. With so many, no
#: other one is begun.
MOST_UNFINISHED = 16
_unfinished: list[Future[Any]] = []
_changing = threading.Lock()


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


def within(seconds: float, call: Callable[[], T], name: str) -> T:
    """The result of a call in a thread of that name.

    Raises:
        TimeoutError: it takes longer, and is left alone; or too many others that were left alone have not ended yet.
    """
    with _changing:
        _unfinished[:] = [earlier for earlier in _unfinished if not earlier.done()]
        if len(_unfinished) >= MOST_UNFINISHED:
            raise TimeoutError(f"{len(_unfinished)} earlier calls have not ended yet")
    made = begin_call(call, name)
    try:
        return made.result(seconds)
    except TimeoutError:
        if made.done():  # its own
            return made.result()
        with _changing:
            _unfinished.append(made)
        raise
