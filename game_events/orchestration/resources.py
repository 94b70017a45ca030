"""Dagster's resources: the Spark session, and the pipeline that uses it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from game_events.config.logging import limit_library_loggers
from game_events.config.settings import load_settings
from game_events.config.tls import unencrypted
from game_events.orchestration.runs.dead_runs import mark_process
from game_events.orchestration.runs.errors import StepContext, errors_decide
from game_events.pipeline.context import Pipeline
from game_events.pipeline.observability.event_log import recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.spark.code_shipping import shares_python_environment, ship_code
from game_events.spark.config import server_only_settings, session_config, spark_config
from game_events.spark.connect import answers, close_session, connect, is_closed, is_connect

log = logging.getLogger(__name__)


class SparkResource(LazyPySparkResource):
    """A Spark session made at first use, with this project's settings below those given here.

    The project's own settings are read in the run's process and never become Dagster configuration, where the UI would show
    them: `GAME_EVENTS_SPARK_CONF` may hold an object store's keys.
    """

    spark_config: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    _session: SparkSession | None = PrivateAttr(default=None)

    @property
    def spark_session(self) -> SparkSession:
        """The session; made once for each process, on a Connect server again if it was given back."""
        if self._session is None or is_closed(self._session):
            settings = load_settings()
            # Again: Dagster may have configured logging since the definitions were loaded.
            limit_library_loggers()
            if settings.spark_remote:
                not_ours = server_only_settings(settings)
                if not_ours:
                    # The server of `game-events up`, on this machine, was started with them.
                    level = logging.INFO if shares_python_environment(settings) else logging.WARNING
                    log.log(level, "spark_remote=set not_used_as_they_are_the_servers=%s", ",".join(not_ours))
                session = connect(settings, session_config(settings) | self.spark_config)
            else:
                session = spark_session_from_config(spark_config(settings) | self.spark_config)  # type: ignore[no-untyped-call]
            try:
                ship_code(session, settings)
            except BaseException:
                # The next use fails in the same way, and gets no session without code on its workers.
                close_session(session)
                raise
            self._session = session
        return self._session

    def renew_if_lost(self) -> None:
        """What is done next gets a new session if the server does not know the one there is; no classic session is renewed."""
        session = self._session
        if session is not None and is_connect(session) and not is_closed(session) and not answers(session):
            close_session(session)

    def release(self) -> None:
        """Give back a session on a Connect server: what a cancelled run left working there ends, too."""
        if self._session is not None:
            close_session(self._session)


class LakehouseResource(dg.ConfigurableResource[Any]):
    """The pipeline over one lakehouse; settings come from the environment, `.env` or YAML."""

    spark: dg.ResourceDependency[SparkResource]

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Every run that works on the tables says which process does."""
        mark_process(context)
        for said in unencrypted(load_settings()):
            log.warning("not_encrypted=%r", said)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """A server that other runs use remembers nothing of this one."""
        self.spark.release()

    def pipeline(self, run_id: str) -> Pipeline:
        """The parts of the pipeline for one step; Spark starts when the first of them needs it."""
        self.spark.renew_if_lost()
        return Pipeline(load_settings(), lambda: self.spark.spark_session, run_id)

    @contextmanager
    def recorded(self, context: StepContext, name: str, *, lineage: bool = True) -> Iterator[tuple[Pipeline, RunReport]]:
        """The pipeline and the report of one step, recorded in the event log; errors inside end the step (`errors_decide`)."""
        pipeline, report = self.pipeline(context.run.run_id), RunReport()
        with (
            errors_decide(context, pipeline.settings),
            recorded(pipeline, report, name, context.retry_number, lineage=lineage),
        ):
            yield pipeline, report
