"""A Spark session with this project's settings, on this machine, a cluster, or a Connect server."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

from pyspark.sql import SparkSession

from game_events.config.logging import limit_library_loggers
from game_events.config.network import begin_call
from game_events.config.settings import Settings
from game_events.spark.config import server_only_settings, session_config, shares_python_environment, ship_code, spark_config
from game_events.spark.connect import close_session, connect

log = logging.getLogger(__name__)


def new_session(settings: Settings, more: Mapping[str, str] | None = None, *, small_run: bool = False) -> SparkSession:
    """The session of the settings, with `more` configuration above theirs; its workers can import this project.

    `small_run`: a JVM of its own is made for a run of few rows.

    Raises:
        ConfigurationError, TransientError: Spark cannot be started or reached.
    """
    # Again: Dagster may have configured logging since the definitions were loaded.
    limit_library_loggers()
    if settings.spark_remote:
        not_ours = server_only_settings(settings)
        if not_ours:
            # The server of `game-events up`, on this machine, was started with them.
            level = logging.INFO if shares_python_environment(settings) else logging.WARNING
            log.log(level, "spark_remote=set not_used_as_they_are_the_servers=%s", ",".join(not_ours))
        session = connect(settings, session_config(settings) | dict(more or {}))
    else:
        builder = SparkSession.builder
        for name, value in (spark_config(settings, small_run=small_run) | dict(more or {})).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    try:
        ship_code(session, settings)
    except BaseException:
        # The next use fails in the same way, and gets no session without code on its workers.
        close_session(session)
        raise
    return session


class EarlySession:
    """A session that is made while its process still imports what will use it."""

    def __init__(self, make: Callable[..., SparkSession] = new_session) -> None:
        """`make`: makes a session; arguments, result and errors as `new_session`."""
        self._make = make
        self._begun: tuple[Settings, Future[SparkSession]] | None = None

    def begin(self, settings: Settings, *, small_run: bool = False) -> None:
        """Begin to make the session of the settings, if none is begun; the thread ends with the process.

        Not on a Connect server, where there is little to wait for.
        """
        if settings.spark_remote or self._begun is not None:
            return
        self._begun = settings, begin_call(partial(self._make, settings, small_run=small_run), "early_session")

    def taken_or_new(self, settings: Settings, more: Mapping[str, str]) -> SparkSession:
        """The session that was begun for the same settings, once; any other one is made now. Raises as `new_session`."""
        begun, self._begun = self._begun, None
        if begun is not None and not more and begun[0] == settings:
            session = begun[1].result()
            # Again: Dagster may have configured logging since.
            limit_library_loggers()
            return session
        return self._make(settings, more)


#: That of this process.
EARLY_SESSION = EarlySession()
