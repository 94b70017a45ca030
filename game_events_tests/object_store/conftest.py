"""A pipeline whose lakehouse is a prefix of its bucket."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from game_events.lakehouse.object_store import spark_options
from game_events.pipeline.context import Pipeline
from game_events.settings import Settings
from game_events_tests.conftest import MakeSettings
from game_events_tests.object_store.client import BUCKET, ObjectStore

_prefixes = itertools.count(1)
#: Long enough that a store which is away for a moment is waited for, short enough for a test of one that stays away.
RETRY_TIMEOUT = "3s"


@pytest.fixture
def s3(store: ObjectStore, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings with a lakehouse of their own in the server's bucket."""
    monkeypatch.setattr("game_events.lakehouse.object_store.RETRY_TIMEOUT", RETRY_TIMEOUT)
    # For the tests' own handles of delta-rs; the pipeline's have them from the settings.
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield make_settings(lakehouse=f"s3://{BUCKET}/root{next(_prefixes)}", storage_endpoint=store.endpoint)
    store.tell("fail 0 0")


@pytest.fixture
def make_s3_pipeline(spark: SparkSession) -> Iterator[Callable[[Settings], Pipeline]]:
    """As `make_pipeline`; the shared session is told of the store as a session of its own would be from the start."""

    def make(settings: Settings) -> Pipeline:
        for key, value in spark_options(settings).items():
            spark.conf.set(key.removeprefix("spark.hadoop."), value)
        return Pipeline(settings, lambda: spark)

    yield make
