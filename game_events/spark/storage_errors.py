"""Errors of a storage in work that Spark does, too, as the project's own."""

from contextlib import AbstractContextManager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.lakehouse.storage.errors import CARRIERS, storage_error, store_errors_named

#: Errors of delta-rs, files and Spark's jobs, which may be those of a storage.
ALL_CARRIERS = (*CARRIERS, PySparkException, Py4JJavaError)


def storage_named(root: str) -> AbstractContextManager[None]:
    """As `store_errors_named`, for errors of disks and of Spark's jobs, too."""
    return store_errors_named(root, ALL_CARRIERS, storage_error)
