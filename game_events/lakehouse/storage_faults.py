"""Storage that is full, away or refuses us, told in clear words wherever the error comes from: Arrow, delta-rs, Spark.

An object store's own answers are read by `store_errors.py`; this is for all of them. None of the libraries has a
class for it: the operating system's words, or its error number, stand somewhere in their texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.errors import ConfigurationError, GameEventsError, TransientError
from game_events.lakehouse.store_errors import explain

#: As Linux and Rust's standard library (`os error N`) say it.
FULL = ("No space left on device", "Disk quota exceeded", "os error 28", "os error 122")
DENIED = (
    "Read-only file system",
    "Permission denied",
    "Operation not permitted",
    "os error 30",
    "os error 13)",
    "os error 1)",
)
#: What tables' files and Spark's jobs fail with.
RAW = (OSError, DeltaError, PySparkException, Py4JJavaError)
_STAYS = "What was committed stays, nothing else is visible, and the next run goes on from there"


def storage_error(error: BaseException, root: str) -> GameEventsError | None:
    """The project's error for one that storage caused; None for any other.

    Args:
        error: what was raised.
        root: where the tables are.

    Returns:
        TransientError: it is full, and may have room again. ConfigurationError: only a person can give the right to write.
    """
    found = explain(error, root)
    if found is not None:
        return found
    said = next((line.strip() for line in str(error).splitlines() if _has(line, FULL + DENIED)), "")[:300]
    if _has(said, FULL):
        return TransientError(
            f"no space is left, below {root} or where Spark keeps what it spills (spark.local.dir): {said}. {_STAYS}. Free "
            "some space: files that no version needs any more are removed by maintenance (vacuum)"
        )
    if _has(said, DENIED):
        return ConfigurationError(
            f"{root} cannot be read or written: {said}. {_STAYS}. Give this user the right to write "
            "there, or mount it for writing"
        )
    return None


@contextmanager
def storage_named(root: str) -> Iterator[None]:
    """Storage's errors inside become the project's own.

    Raises:
        TransientError, ConfigurationError: as `storage_error` says; every other error as it is.
    """
    try:
        yield
    except RAW as error:
        known = storage_error(error, root)
        if known is None:
            raise
        raise known from error


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
