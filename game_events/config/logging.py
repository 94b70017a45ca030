"""Names and levels of loggers. Only entry points (the command line, `build_defs`) configure logging."""

import logging

#: Progress messages for users: shown in the Dagster run's log, and by the command line beside its spinner.
PROGRESS_LOGGER = "game_events.progress"
#: Logger of Spark Connect's client.
CONNECT_LOGGER = "pyspark.sql.connect.logging"
#: Lowest levels of libraries that log secrets below them.
LIBRARY_LEVELS = {
    # At DEBUG every argument of every call into the JVM, Kafka's password among them.
    "py4j": logging.INFO,
    # At DEBUG every plan with Kafka's password; its errors are raised as well. PySpark disables it, and a later configuration
    # of logging (Dagster's) enables it again.
    CONNECT_LOGGER: logging.CRITICAL,
    # At INFO the webhook's address, which may hold a token.
    "httpx2": logging.WARNING,
    # At DEBUG every lineage event and the receiver's address; urllib3 warns of each attempt.
    "openlineage": logging.ERROR,
    "urllib3": logging.ERROR,
}


def limit_library_loggers() -> None:
    """Set `LIBRARY_LEVELS`, for this process."""
    for name, level in LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(level)
