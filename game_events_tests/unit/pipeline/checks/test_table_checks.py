"""All checks: what each needs of a process."""

from contextlib import suppress

import pytest
from pyspark import SparkContext

from game_events.config.settings import load_settings
from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.tables import Layer
from game_events.pipeline.checks.table_checks import CHECKS
from game_events.pipeline.context import Pipeline
from game_events.sources.source import SourceSnapshot
from game_events_tests.support.pipelines import reading
from game_events_tests.support.tables import put


class SparkIsAskedError(Exception):
    """A session is asked for."""


class Nothing:
    """A source without records."""

    def snapshot(self):
        return SourceSnapshot({}, {})


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_may_be_the_first_work_of_a_process_that_needs_spark(check, tmp_path, monkeypatch):
    """Columns of Spark cannot be made before there is a session: a check that made one first would fail in a new process."""

    def spark():
        raise SparkIsAskedError

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    pipeline = reading(Pipeline(load_settings(lakehouse=str(tmp_path)), spark), Nothing())
    rows = {"game_name": ["uno"], "gamer_id": ["ann"], "_kafka_topic_id": ["t"], "_kafka_partition": [0], "_kafka_offset": [0]}
    put(pipeline.bronze, rows | {"_batch": [1]}, {"batch": 1})
    bronze = BronzeIdentity.of(pipeline.bronze.open())
    put(pipeline.lakehouse.silver("uno"), rows | {"_batch": [1]}, {f"bronze:{bronze.table_id}": 1})
    pipeline.progress.update(bronze.key, lambda now: now.done(Layer.SILVER, 1, {"uno": 1}))
    with suppress(SparkIsAskedError):
        check.run(pipeline)
