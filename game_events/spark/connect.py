"""Spark Connect sessions on a shared server: create, detect a loss, close."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from pyspark.errors import PySparkException, PySparkValueError
from pyspark.sql import SparkSession

from game_events.config.network import LOOPBACK, UNIX_SOCKET, at_loopback
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError, first_line

if TYPE_CHECKING:
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

#: Marks of errors for a lost session (server restarted, session expired) or server (error conditions of PySpark 4.0 to 4.2).
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
#: Environment variable of the shared token; in an address it would be logged.
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - its name
CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
#: Together 45 s: a restarted server answers within seconds; the client's own policy waits for ten minutes.
RETRIES, LONGEST_WAIT_MS = 12, 5_000


def is_session_lost(error: BaseException | None) -> bool:
    """Whether an error means that the server or the session is gone: a new session may work."""
    return isinstance(error, PySparkException) and any(mark in str(error) for mark in LOST)


def lost(settings: Settings) -> TransientError:
    """The error for a lost session."""
    return TransientError(
        f"the Spark Connect server {_address(settings)} ended, or has expired this run's session; what was "
        "committed stays, and a new session continues from there. If it happens again: is the server up (its log), does it "
        "have enough memory, is its session time-out longer than a run's pauses?"
    )


def connect(settings: Settings, conf: Mapping[str, str]) -> SparkSession:
    """Create a session of this run, with its own settings, tags and files; `conf`: see `config.session_config`.

    Raises:
        TransientError: no server answers.
        ConfigurationError: it refuses the token, or the address is invalid.
    """
    # Imported here, as classic Spark does not need Connect's packages.
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator  # noqa: PLC0415
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
    from pyspark.sql.connect.session import SparkSession as ConnectSession  # noqa: PLC0415

    # When one session ends, PySpark 4.0 and 4.1 end the reader threads of all sessions: in `__del__` too, under the lock
    # that is held while such a thread starts, so garbage collection hangs the process for ever. Without it they end with it.
    setattr(ExecutePlanResponseReattachableIterator, "shutdown", lambda: None)  # noqa: B010 - a method, to the type checker
    try:
        # Nothing is sent before the retry policy is set.
        channel = channel_to(str(settings.spark_remote))
        session = cast(SparkSession, ConnectSession.builder.channelBuilder(channel).create())
        cast(Any, session).client.set_retry_policies([DefaultPolicy(max_retries=RETRIES, max_backoff=LONGEST_WAIT_MS)])
        try:
            for key, value in conf.items():
                session.conf.set(key, value)
        except BaseException:
            # The server would keep it until its time-out.
            close_session(session)
            raise
    except PySparkValueError as error:
        raise ConfigurationError(f"GAME_EVENTS_SPARK_REMOTE: {first_line(error)}: use sc://host:port") from None
    except PySparkException as error:
        raise named(error, settings) from error
    # From now on PySpark's functions create columns for Connect; `SparkSession.builder.remote` sets it, but takes no channel.
    os.environ[CONNECT_MODE] = "1"
    return session


def channel_to(remote: str) -> "DefaultChannelBuilder":
    """The gRPC channel for `spark_remote`; PySparkValueError for a bad address. PySpark sends tokens elsewhere by TLS only."""
    import grpc  # noqa: PLC0415 - as in `connect`
    from pyspark.sql.connect.client.core import DefaultChannelBuilder  # noqa: PLC0415

    class LocalChannel(DefaultChannelBuilder):
        """A channel within this machine, without proxy, to exactly one address, of which `target` is gRPC's name.

        PySpark's own tries each address of `localhost`, IPv6 first: another process listening there would get the token and
        plans.
        """

        def __init__(self, url: str, target: str, kind: grpc.LocalConnectionType) -> None:
            super().__init__(url, [("grpc.enable_http_proxy", 0)])
            self._target = target
            self._kind = kind

        def toChannel(self) -> grpc.Channel:  # noqa: N802 - PySpark's name
            credentials = grpc.local_channel_credentials(self._kind)
            if self.token is not None:
                credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(self.token))
            return self._secure_channel(self._target, credentials)

    if remote.startswith(UNIX_SOCKET):
        # PySpark's builder requires an address also for a Unix socket.
        return LocalChannel("sc://localhost:1", remote, grpc.LocalConnectionType.UDS)
    usual = DefaultChannelBuilder(remote)
    if usual.use_ssl or not at_loopback(remote):
        return usual
    host, _, port = usual.endpoint.rpartition(":")
    # An address stays what it is: all of 127/8 is this machine, and 127.0.0.1 another listener's than 127.0.0.2.
    target = f"ipv4:{LOOPBACK if host.lower() == 'localhost' else host}:{port}"
    return LocalChannel(remote, target, grpc.LocalConnectionType.LOCAL_TCP)


def named(error: PySparkException, settings: Settings) -> Exception:
    """The project's error for one of the connection; any other error is returned unchanged."""
    if any(mark in str(error) for mark in REFUSED):
        return ConfigurationError(
            f"the Spark Connect server {_address(settings)} refuses this client: set {TOKEN_VARIABLE} in this process's "
            "environment to the token that it was started with"
        )
    return lost(settings) if is_session_lost(error) else error


def answers(session: SparkSession) -> bool:
    """Whether a session can still be used; waits for a server that is restarting."""
    try:
        session.conf.get("spark.sql.session.timeZone")
    except PySparkException as error:
        if is_session_lost(error):
            return False
        raise
    return True


def is_connect(session: SparkSession) -> bool:
    """Whether a session is on a Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def is_closed(session: SparkSession) -> bool:
    """Whether a Connect session was closed; False for a classic one."""
    return is_connect(session) and bool(cast(Any, session).is_stopped)


def close_session(session: SparkSession) -> None:
    """Close a Connect session, which ends its jobs on the server; a classic one is left alone."""
    if not is_connect(session) or is_closed(session):
        return
    # No retries: a stopped server has nothing to close.
    cast(Any, session).client.set_retry_policies([])
    with suppress(PySparkException):
        session.stop()


def _address(settings: Settings) -> str:
    """The address without its parameters, which may hold a token."""
    return (settings.spark_remote or "").split(";", 1)[0].rstrip("/")
