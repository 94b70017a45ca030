"""Errors of a storage in work that Spark does, too, as the project's own."""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.lakehouse.storage.errors import CARRIERS, storage_error

#: Errors of delta-rs, files and Spark's jobs, which may be those of a storage.
ALL_CARRIERS = (*CARRIERS, PySparkException, Py4JJavaError)


@contextmanager
def storage_named(root: str) -> Iterator[None]:
    """Convert errors of the storage below a root into the project's own; every other error is raised unchanged.

    Raises:
        TransientError, ConfigurationError: as `storage_error` returns them.
    """
    try:
        yield
    except ALL_CARRIERS as error:
        known = storage_error(error, root)
        if known is None:
            raise
        raise known from error
