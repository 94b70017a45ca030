"""A Spark session with this project's settings, on this machine, a cluster, or a Connect server."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from pyspark.sql import SparkSession

from game_events.config.background import begin_call
from game_events.config.logging import limit_library_loggers
from game_events.config.settings import Settings
from game_events.spark.code_shipping import shares_python_environment, ship_code
from game_events.spark.config import server_only_settings, session_config, spark_config
from game_events.spark.connect import close_session, connect

log = logging.getLogger(__name__)
#: The session that was begun, with its settings.
_begun: list[tuple[Settings, Future[SparkSession]]] = []


def begin(settings: Settings, *, small_run: bool = False) -> None:
    """Begin to make the session of the settings, while this process still imports what will use it.

    Its thread ends with the process. Not on a Connect server, where there is little to wait for.
    """
    if settings.spark_remote or _begun:
        return
    _begun.append((settings, begin_call(partial(new_session, settings, small_run=small_run), "early_session")))


def taken_or_new(settings: Settings, more: Mapping[str, str]) -> SparkSession:
    """The session that was begun for the same settings, once; any other one is made now. Raises as `new_session`."""
    if _begun:
        early, made = _begun.pop()
        if not more and early == settings:
            session = made.result()
            # Again: Dagster may have configured logging since.
            limit_library_loggers()
            return session
    return new_session(settings, more)


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
