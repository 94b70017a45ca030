"""Options and errors of Confluent's Kafka clients; creation of a topic."""

import re
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, GameEventsError, TransientError
from game_events.sources.kafka.options import refuse_unusable

T = TypeVar("T")
CONNECT_TIMEOUT_S = 15
#: The broker's own default: a hosted cluster refuses any other number than its own.
BROKERS_DEFAULT = -1
#: Interval at which the wait for the broker checks the errors of `error_cb`.
LOOK_S = 1.0
#: Errors of authentication.
LOGIN = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
#: Refused requests: retrying does not help.
REQUEST = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    }
)

#: A broker's TLS alert about the client's certificate; librdkafka reports it as a broken connection.
_REFUSED_BY_TLS = re.compile(
    r"SSL routines.*alert (bad certificate|unsupported certificate|certificate (expired|required|revoked|unknown)|unknown ca|"
    r"access denied|handshake failure)"
)


class CauseMemory:
    """An ``error_cb`` that keeps the cause: librdkafka reports a failed login only there; calls just time out."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Keeps a refusal, else the last error; "all brokers down" never replaces another one."""
        if self.refused or (self._last is not None and error.code() == KafkaError._ALL_BROKERS_DOWN):
            return
        self._last = error

    @property
    def refused(self) -> bool:
        """Whether the broker refused the client, so that waiting is useless."""
        return _is_refusal(self._last)

    def explain(self, what: str, error: KafkaError | None = None) -> GameEventsError:
        """The project's error for a Kafka error, with the remembered cause."""
        cause = error if _is_refusal(error) and not self.refused else self._last or error
        text = f"{what}: Kafka at {self._servers}: {_text(cause)}"
        if _is_login(cause):
            return ConfigurationError(f"{text}: check GAME_EVENTS_KAFKA_OPTIONS (security.protocol, sasl.*, ssl.*)")
        if _is_refusal(cause):
            return ConfigurationError(f"{text}: check the topic's name and partitions, and what this login may do")
        return TransientError(f"{text}: is it up, and are GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS and security.protocol right?")


def _is_login(error: KafkaError | None) -> bool:
    return error is not None and (error.code() in LOGIN or _REFUSED_BY_TLS.search(error.str()) is not None)


def _is_refusal(error: KafkaError | None) -> bool:
    return error is not None and (_is_login(error) or error.code() in REQUEST)


def client_options(settings: Settings, defaults: Mapping[str, object]) -> dict[str, object]:
    """Options of a client: `defaults`, then the settings', then the brokers. `error_cb` is left to the caller.

    Raises:
        ConfigurationError: as `refuse_unusable`.
    """
    own = {key: value.get_secret_value() for key, value in settings.kafka_options.items()}
    refuse_unusable(own)
    return {
        # Connection failures reach the caller through a `CauseMemory`; librdkafka would also print each attempt to stderr.
        "log_level": 2,
        **defaults,
        **own,
        "bootstrap.servers": settings.kafka_bootstrap_servers,
    }


def new_client(make: Callable[..., T], options: dict[str, object]) -> T:
    """A client with these options; ConfigurationError for a bad one, which the library names without its value."""
    try:
        return make(options)
    except KafkaException as error:
        raise ConfigurationError(f"GAME_EVENTS_KAFKA_OPTIONS: {_text(error.args[0])}") from None


def ensure_topic(
    settings: Settings,
    partitions: int,
    name: str | None = None,
    connect: Callable[..., AdminClient] = AdminClient,
) -> None:
    """Create a topic (None: the simulator's) with the broker's default replication; an existing one stays as it is.

    `connect`: makes a client of its options.

    Raises:
        ConfigurationError: refused login, or not allowed to create it.
        TransientError: no broker answers.
    """
    topic = name or settings.produced_topic
    memory = CauseMemory(settings.kafka_bootstrap_servers)
    admin = new_client(connect, client_options(settings, {}) | {"error_cb": memory})
    if topic in _topics(admin, memory):
        return
    try:
        new = NewTopic(topic, partitions, BROKERS_DEFAULT)
        admin.create_topics([new], request_timeout=CONNECT_TIMEOUT_S)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise memory.explain(f"creating topic {topic!r}", error.args[0]) from error


def _topics(admin: AdminClient, memory: CauseMemory) -> set[str]:
    """Names of all topics; fails at once when the broker refuses the client."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            return set(admin.list_topics(timeout=LOOK_S).topics)
        except KafkaException as error:
            admin.poll(0)
            if memory.refused or time.monotonic() > deadline:
                raise memory.explain("listing topics", error.args[0]) from error


def _text(error: KafkaError | None) -> str:
    return "no answer" if error is None else f"{error.name()}: {error.str()}"
