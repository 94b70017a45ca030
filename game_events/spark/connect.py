"""Spark Connect: a session on a server that other runs share, and how it is lost, renewed and given back."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

from pyspark.errors import PySparkException, PySparkValueError
from pyspark.sql import SparkSession

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError, first_line

#: How a server says that it does not know a session any more (it was restarted, or the session was idle for too long), and how
#: the client says that there is no server (pyspark 4.0, error conditions).
LOST = (
    "INVALID_HANDLE.",
    "RESPONSE_ALREADY_RECEIVED",
    "RETRIES_EXCEEDED",
    "NO_ACTIVE_SESSION",
    "StatusCode.UNAVAILABLE",
    "SparkContext was shut down",
    "stopped SparkContext",
)
REFUSED = ("StatusCode.UNAUTHENTICATED", "authentication token")
#: Where client and server look for the token that they share; an address with it would stand in logs.
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - its name
CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
CLIENTS_LOGGER = "pyspark.sql.connect.logging"
#: A server that is being started again answers within seconds; the client's own policy waits for ten minutes. Together 45 s.
RETRIES, LONGEST_WAIT_MS = 12, 5_000


def is_session_lost(error: BaseException | None) -> bool:
    """Whether an error says that the server, or the session on it, is gone: another session may work."""
    return isinstance(error, PySparkException) and any(mark in str(error) for mark in LOST)


def lost(settings: Settings) -> TransientError:
    """What to raise for it."""
    return TransientError(
        f"the Spark Connect server {_address(settings)} ended, or does not know this run's session any more; what was "
        "committed stays, and a new session goes on from there. If it happens again: is the server up (its log), does it "
        "have enough memory, is its session time-out longer than a run's pauses?"
    )


def connect(settings: Settings, conf: Mapping[str, str]) -> SparkSession:
    """A session of this run's own: nobody else's settings, tags or files are in it.

    Args:
        settings: the settings; they name the server.
        conf: settings of the session (`spark.session_config`).

    Raises:
        TransientError: no server answers.
        ConfigurationError: it refuses us, or the address is none.
    """
    # Only where Connect is used: classic Spark needs none of its packages.
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
    from pyspark.sql.connect.session import SparkSession as ConnectSession  # noqa: PLC0415

    from game_events.spark.connect_channel import channel_to  # noqa: PLC0415

    _keep_what_sessions_share()
    # At DEBUG it repeats every plan, Kafka's password in it; its errors are raised as well. PySpark switches it off, and who
    # configures logging afterwards (Dagster does) switches it on again.
    logging.getLogger(CLIENTS_LOGGER).setLevel(logging.CRITICAL)
    try:
        # Nothing is sent yet: its settings follow, with the policy above.
        channel = channel_to(str(settings.spark_remote))
        with _connect_mode():
            session = cast(SparkSession, ConnectSession.builder.channelBuilder(channel).create())
            cast(Any, session).client.set_retry_policies([DefaultPolicy(max_retries=RETRIES, max_backoff=LONGEST_WAIT_MS)])
            try:
                for key, value in conf.items():
                    session.conf.set(key, value)
            except BaseException:
                # Nobody else knows of it: a living server would keep it until its time-out.
                close_session(session)
                raise
    except PySparkValueError as error:
        raise ConfigurationError(f"GAME_EVENTS_SPARK_REMOTE: {first_line(error)}: use sc://host:port") from None
    except PySparkException as error:
        raise named(error, settings) from error
    return session


@contextmanager
def _connect_mode() -> Iterator[None]:
    """PySpark's functions make columns for Connect, in the block and after it.

    `SparkSession.builder.remote` says so by the same variable, but takes no channel.

    If the block fails there is no session: they make columns for classic Spark, as before.
    """
    before = os.environ.get(CONNECT_MODE)
    os.environ[CONNECT_MODE] = "1"
    try:
        yield
    except BaseException:
        if before is None:
            os.environ.pop(CONNECT_MODE, None)
        raise


def _keep_what_sessions_share() -> None:
    """One session's end leaves the others of this process alone.

    PySpark 4.0 ends, with any session, the threads by which all of the process tell the server what they have read; as it
    does so in `__del__` too, under the lock that is held while such a thread starts, garbage collection at that moment hangs
    the process for ever. Without it the threads end with the process.
    """
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator  # noqa: PLC0415

    setattr(ExecutePlanResponseReattachableIterator, "shutdown", lambda: None)  # noqa: B010 - a method, to the type checker


def named(error: PySparkException, settings: Settings) -> Exception:
    """The project's error for one of the connection; the error itself if it is about something else."""
    if any(mark in str(error) for mark in REFUSED):
        return ConfigurationError(
            f"the Spark Connect server {_address(settings)} refuses us: set {TOKEN_VARIABLE} in this process's environment to "
            "the token that it was started with"
        )
    return lost(settings) if is_session_lost(error) else error


def answers(session: SparkSession) -> bool:
    """Whether a session can still be used; waits for a server that is being started again."""
    try:
        session.conf.get("spark.sql.session.timeZone")
    except PySparkException as error:
        if is_session_lost(error):
            return False
        raise
    return True


def is_connect(session: SparkSession) -> bool:
    """Whether a session is one on a Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def is_closed(session: SparkSession) -> bool:
    """Whether it was given back; a classic session never is."""
    return is_connect(session) and bool(cast(Any, session).is_stopped)


def close_session(session: SparkSession) -> None:
    """End a session: the server forgets it, and ends what it still does for it. Nothing happens to a classic one."""
    if not is_connect(session) or is_closed(session):
        return
    # A server that is gone has nothing to forget: nobody waits for it.
    cast(Any, session).client.set_retry_policies([])
    with suppress(PySparkException):
        session.stop()


def _address(settings: Settings) -> str:
    """Without the parameters, among which may be a token."""
    return (settings.spark_remote or "").split(";", 1)[0].rstrip("/")
