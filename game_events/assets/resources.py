"""Dagster's resources: the Spark session, and the pipeline that uses it."""

import logging
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from game_events.assets.run_hygiene import mark_process
from game_events.pipeline.context import Pipeline
from game_events.pipeline.spark import spark_config
from game_events.settings import load_settings


class SparkResource(LazyPySparkResource):
    """A Spark session made at first use, with this project's settings below those given here.

    The project's own settings are read in the run's process and never become Dagster configuration, where the UI would show
    them: `GAME_EVENTS_SPARK_CONF` may hold an object store's keys.
    """

    spark_config: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    _session: SparkSession | None = PrivateAttr(default=None)

    @property
    def spark_session(self) -> SparkSession:
        """The session; made once for each process."""
        if self._session is None:
            # At DEBUG it repeats every argument of every call into the JVM, Kafka's password among them.
            logging.getLogger("py4j").setLevel(logging.INFO)
            conf = spark_config(load_settings()) | self.spark_config
            self._session = spark_session_from_config(conf)  # type: ignore[no-untyped-call]
        return self._session


class LakehouseResource(dg.ConfigurableResource[Any]):
    """The pipeline over one lakehouse; settings come from the environment, `.env` or YAML."""

    spark: dg.ResourceDependency[SparkResource]

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Every run that works on the tables says which process does."""
        mark_process(context)

    def pipeline(self, run_id: str) -> Pipeline:
        """The parts of the pipeline for one run; Spark starts when the first of them needs it."""
        return Pipeline(load_settings(), lambda: self.spark.spark_session, run_id)
