"""Whose fault a failed job with user code is."""

from __future__ import annotations

import traceback

import pytest
from pyspark.errors import PySparkException

from game_events.errors import ConfigurationError, GameEventsError, TransientError, UserCodeError
from game_events.lakehouse.storage import store_errors_named
from game_events.pipeline.silver.transformations import run_time_failure

ROOT = "s3://bucket/lake"
AWAY = "Generic S3 error: Error performing HEAD http://127.0.0.1:9/bucket/x in 2s, after 9 retries, error sending request"
REFUSED = "Generic S3 error: The operation lacked the necessary privileges to complete for path x: 403 Forbidden"


def of_a_worker(error, named=ROOT):
    """Spark's error for one that a worker raised while it read a file."""
    try:
        with store_errors_named(f"{named}/silver_uno_events"):
            raise error
    except (GameEventsError, OSError, ValueError):
        return PySparkException(f"An exception was thrown from the Python worker:\n{traceback.format_exc()}")


@pytest.mark.parametrize(("said", "kind"), [(AWAY, TransientError), (REFUSED, ConfigurationError)])
def test_a_store_that_fails_while_workers_read_is_not_the_fault_of_user_code_and_said_once(said, kind):
    found = run_time_failure("aggregate x", of_a_worker(OSError(said)), ROOT)
    assert type(found) is kind
    assert str(found).startswith(f"object store {ROOT}/silver_uno_events ")
    assert str(found).count("object store") == 1
    assert "aggregate x" not in str(found)


@pytest.mark.parametrize("error", [OSError(AWAY), ValueError("no number")])
def test_what_user_code_raises_is_its_fault(error):
    found = run_time_failure("aggregate x", of_a_worker(error, "/folder"), "/folder")
    assert type(found) is UserCodeError
    assert str(found).startswith("aggregate x failed while running")
    assert str(found).endswith(f"{type(error).__name__}: {error}")
