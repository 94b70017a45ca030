"""A pipeline whose lakehouse is a prefix of the test store's bucket."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from game_events.config.settings import Settings, load_settings
from game_events.lakehouse.storage.options import spark_options
from game_events.pipeline.context import Pipeline
from game_events_tests.conftest import MakeSettings
from game_events_tests.object_store.client import BUCKET, ObjectStore

_prefixes = itertools.count(1)
#: Long enough that a store which is away for a moment is waited for, short enough for a test of one that stays away.
RETRY_TIMEOUT = "3s"


@pytest.fixture
def place(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Settings of a lakehouse of the test's own in the store's bucket."""
    monkeypatch.setattr("game_events.lakehouse.storage.options.RETRY_TIMEOUT", RETRY_TIMEOUT)
    # For the tests' own handles of delta-rs; the pipeline's have them from the settings.
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield {"lakehouse": f"s3://{BUCKET}/root{next(_prefixes)}", "storage_endpoint": store.endpoint}
    store.tell("fail 0 0")
    store.tell("deny")


@pytest.fixture
def tables_only(place: dict[str, str]) -> Settings:
    """Settings for tests that need neither broker nor registry."""
    return load_settings(**place)


@pytest.fixture
def s3(place: dict[str, str], make_settings: MakeSettings) -> Settings:
    """Settings of a whole pipeline."""
    return make_settings(**place)


@pytest.fixture
def make_s3_pipeline(spark: SparkSession) -> Callable[[Settings], Pipeline]:
    """As `make_pipeline`; the shared session is told of the store as a session of its own would be from the start."""

    def make(settings: Settings) -> Pipeline:
        for key, value in spark_options(settings).items():
            spark.conf.set(key.removeprefix("spark.hadoop."), value)
        return Pipeline(settings, lambda: spark)

    return make
