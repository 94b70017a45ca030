"""Errors of a storage in work that Spark does, too, as the project's own."""

import re
from contextlib import AbstractContextManager
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.errors import GameEventsError, LostFileError
from game_events.lakehouse.storage.errors import CARRIERS, LONGEST, storage_error, store_errors_named

#: Errors of delta-rs, files and Spark's jobs, which may be those of a storage.
ALL_CARRIERS = (*CARRIERS, PySparkException, Py4JJavaError)
#: A worker's own error of a file, in the text of Spark's.
_BY_WORKER = re.compile(r"game_events\.errors\.LostFileError: (.*)")
#: Spark's error of a file that it reads itself: kind, URI, and words; Java's cause, for the kind without words.
_BY_SPARK = re.compile(
    r"\[FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (\S+?)\.(?=\s|$) *(.*?) *(?:SQLSTATE|\n|$)"
)
_CAUSE = re.compile(r"Caused by: (?:[\w.$]+: )?(.+)")
_GONE = "FILE_NOT_EXIST"


def storage_named(root: str) -> AbstractContextManager[None]:
    """As `store_errors_named`, for errors of disks and of Spark's jobs, too."""
    return store_errors_named(root, ALL_CARRIERS, _storage_error)


def lost_file(error: BaseException, root: str) -> LostFileError | None:
    """The error for a Spark job that met a file that is gone or damaged; None for any other, as one of the whole storage."""
    if storage_error(error, root) is not None:
        return None
    by_worker, by_spark, cause = (pattern.search(str(error)) for pattern in (_BY_WORKER, _BY_SPARK, _CAUSE))
    if by_worker is not None:
        return LostFileError(by_worker[1])
    if by_spark is None:
        return None
    kind, uri, words = by_spark.groups()
    path = unquote(uri.removeprefix("file://").removeprefix("file:"))
    if kind == _GONE:
        return LostFileError(f"{path} is gone, though the table's log lists it")
    why = words or (cause[1] if cause is not None else "")
    return LostFileError(f"{path} cannot be read" + f": {why[:LONGEST]}" * bool(why))


def _storage_error(error: BaseException, root: str) -> GameEventsError | None:
    return storage_error(error, root) or lost_file(error, root)
