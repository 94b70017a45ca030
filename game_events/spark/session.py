"""A Spark session with this project's settings, on this machine, a cluster, or a Connect server."""

import logging
from collections.abc import Mapping

from pyspark.sql import SparkSession

from game_events.config.logging import limit_library_loggers
from game_events.config.settings import Settings
from game_events.spark.code_shipping import shares_python_environment, ship_code
from game_events.spark.config import server_only_settings, session_config, spark_config
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
