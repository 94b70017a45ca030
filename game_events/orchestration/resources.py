"""Dagster's resources: the Spark session, and the pipeline that uses it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from dagster_spark.utils import flatten_dict
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from game_events.config.settings import SettingsSource
from game_events.config.tls import unencrypted
from game_events.orchestration.runs.dead_runs import mark_process
from game_events.orchestration.runs.errors import StepContext, errors_decide
from game_events.orchestration.runs.own_runs import lakehouse_tag
from game_events.pipeline.context import Pipeline
from game_events.pipeline.observability.event_log import recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import TriggeredRun
from game_events.spark.connect import answers, close_session, is_closed, is_connect
from game_events.spark.session import EARLY_SESSION

log = logging.getLogger(__name__)
#: Makes the work of a run, which adds to the report.
Begin = Callable[[Pipeline, RunReport], TriggeredRun]


class SparkResource(LazyPySparkResource):
    """A Spark session made at first use, with this project's settings below those given here.

    The project's own settings are read in the run's process and never become Dagster configuration, where the UI would show
    them: `GAME_EVENTS_SPARK_CONF` may hold an object store's keys.
    """

    spark_config: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    source: dg.ResourceDependency[SettingsSource] = SettingsSource()  # type: ignore[assignment]

    def _init_session(self) -> None:
        """Make the session, once for each process; on a Connect server again if it was given back."""
        if self._spark_session is None or is_closed(self._spark_session):
            more = dict(flatten_dict(self.spark_config))  # type: ignore[no-untyped-call]
            self._spark_session = EARLY_SESSION.taken_or_new(self.source.read(), more)

    def renew_if_lost(self) -> None:
        """What is done next gets a new session if the server does not know the one there is; no classic session is renewed."""
        session: SparkSession | None = self._spark_session
        if session is not None and is_connect(session) and not is_closed(session) and not answers(session):
            close_session(session)

    def release(self) -> None:
        """Give back a session on a Connect server: what a cancelled run left working there ends, too."""
        if self._spark_session is not None:
            close_session(self._spark_session)


class SharedRun:
    """What the steps of a run share: its work, with its report, and its entry in the event log, written once at its end.

    A step that is retried goes on with the same report.
    """

    def __init__(self, pipeline: Pipeline, name: str, attempt: int, begin: Begin) -> None:
        """Begin the entry, then the work; an error of that is in the entry."""
        self.closed = False
        self.done: set[str] = set()
        self._entry, report = ExitStack(), RunReport()
        self._entry.enter_context(recorded(pipeline, report, name, attempt))
        try:
            self.work = begin(pipeline, report)
        except BaseException as error:
            self.close(error)
            raise

    def execute(self, name: str) -> None:
        """Execute a step, unless this run has."""
        if name not in self.done:
            self.work.steps[name]()
            self.done.add(name)

    def close(self, error: BaseException | None = None) -> None:
        """Write the entry."""
        self.closed = True
        try:
            self._entry.__exit__(type(error) if error is not None else None, error, None)
        except BaseException as raised:
            if raised is not error:
                raise


class LakehouseResource(dg.ConfigurableResource[Any]):
    """The pipeline over one lakehouse; its settings are those of the graph, or what environment, `.env` and YAML say now."""

    spark: dg.ResourceDependency[SparkResource]
    source: dg.ResourceDependency[SettingsSource] = SettingsSource()  # type: ignore[assignment]

    _open: SharedRun | None = PrivateAttr(default=None)
    _opened: int = PrivateAttr(default=0)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Every run that works on the tables says which process does, and on which lakehouse."""
        settings = self.source.read()
        mark_process(context)
        if context.instance is not None and context.run is not None:
            context.instance.add_run_tags(context.run.run_id, lakehouse_tag(settings))
        for said in unencrypted(settings):
            log.warning("not_encrypted=%r", said)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """What the steps shared is ended, if no step has; a server that other runs use remembers nothing of this one."""
        try:
            if self._open is not None and not self._open.closed:
                self._open.close(dg.DagsterExecutionInterruptedError("the run ended between two steps"))
        finally:
            self.spark.release()

    def shared(self, run_id: str, name: str, begin: Begin) -> SharedRun:
        """What the steps of a run share, made at first use, and again after it was closed.

        Dagster makes one resource for all steps of a run that one process executes.
        """
        if self._open is None or self._open.closed:
            self._open, self._opened = SharedRun(self.pipeline(run_id), name, self._opened, begin), self._opened + 1
        return self._open

    @property
    def last(self) -> SharedRun:
        """What the steps shared last, closed or not."""
        assert self._open is not None, "no step has shared anything"  # noqa: S101 - a mistake in a job
        return self._open

    def pipeline(self, run_id: str) -> Pipeline:
        """The parts of the pipeline for one step; Spark starts when the first of them needs it."""
        self.spark.renew_if_lost()
        return Pipeline(self.source.read(), lambda: self.spark.spark_session, run_id)

    @contextmanager
    def recorded(self, context: StepContext, name: str, *, lineage: bool = True) -> Iterator[tuple[Pipeline, RunReport]]:
        """The pipeline and the report of one step, recorded in the event log; errors inside end the step (`errors_decide`)."""
        pipeline, report = self.pipeline(context.run.run_id), RunReport()
        with (
            errors_decide(context, pipeline.settings),
            recorded(pipeline, report, name, context.retry_number, lineage=lineage),
        ):
            yield pipeline, report
