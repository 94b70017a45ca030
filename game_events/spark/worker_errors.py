"""This project's errors that Spark's workers raise, as themselves in the driver."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events import errors
from game_events.errors import GameEventsError

#: The last line of a worker's traceback in the text of Spark's error: class and message.
_BY_WORKER = re.compile(r"^game_events\.errors\.(\w+): (.*)$", re.MULTILINE)


def raised_by_worker(error: BaseException) -> GameEventsError | None:
    """The error that a worker raised and that ended a Spark job; None: it is none of this project's."""
    found = _BY_WORKER.search(str(error)) if isinstance(error, PySparkException | Py4JJavaError) else None
    kind = getattr(errors, found[1], None) if found is not None else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, GameEventsError)):
        return None
    return kind(found[2])


@contextmanager
def worker_errors_named() -> Iterator[None]:
    """Raise this project's errors of workers in the block as themselves; other errors unchanged."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        found = raised_by_worker(error)
        if found is None:
            raise
        raise found from error
