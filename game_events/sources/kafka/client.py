"""Options and errors of Confluent's Kafka clients, which driver and workers use alike; creation of a topic.

Source: librdkafka, CONFIGURATION.md.
"""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, GameEventsError, TransientError

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
_WHERE = "GAME_EVENTS_KAFKA_OPTIONS"
#: Set by this project; a user's own value would break exactly-once.
MANAGED = (
    "isolation.level",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "auto.offset.reset",
    "group.id",
)
#: Options that can turn off the verification of the broker, with the value that does not.
VERIFICATION = {"enable.ssl.certificate.verification": "true", "ssl.endpoint.identification.algorithm": "https"}
#: SASL mechanisms with a user and a password.
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: Begin of a name of Kafka's Java client -> what librdkafka has for it.
OF_JAVA = {
    "sasl.jaas.config": "set sasl.username and sasl.password",
    "sasl.login.": "set sasl.username and sasl.password",
    "ssl.truststore.": "set ssl.ca.location, or ssl.ca.pem, to the authority's certificate in PEM",
    "ssl.keystore.type": "set ssl.keystore.location (PKCS #12), or ssl.certificate.location and ssl.key.location (PEM)",
    "ssl.keystore.certificate.chain": "set ssl.certificate.pem",
    "ssl.keystore.key": "set ssl.key.pem",
    "fetch.max.wait.ms": "set fetch.wait.max.ms",
    "max.poll.records": "leave it out",
}
#: PEM files whose content goes to the workers: they may be on other machines.
PEM_FILES = ("ssl.ca", "ssl.certificate", "ssl.key")


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
    """Options of a client: `defaults`, then the settings', then the brokers; raises as `refuse_unusable`."""
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
    settings: Settings, partitions: int, name: str | None = None, connect: Callable[..., AdminClient] = AdminClient
) -> None:
    """Create a topic (None: the simulator's) with the broker's default replication; an existing one stays as it is.

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


def refuse_managed(options: Mapping[str, object]) -> None:
    """Raise ConfigurationError for options that exactly-once depends on."""
    managed = sorted(set(MANAGED) & set(options))
    if managed:
        raise ConfigurationError(f"{_WHERE}: {', '.join(managed)} is managed by game_events")


def refuse_unusable(options: Mapping[str, str]) -> None:
    """Raise ConfigurationError for options with which no client could, or should, connect.

    These are names of Java's client; values that turn off the verification of the broker's certificate and name (man in the
    middle); and SASL without a mechanism, or with one that needs more than a user and a password.
    """
    for name in options:
        instead = next((instead for begin, instead in OF_JAVA.items() if name.startswith(begin)), None)
        if instead is not None:
            raise ConfigurationError(f"{_WHERE}: {name} is an option of Java's client, which is not used: {instead}")
    for name, verifying in VERIFICATION.items():
        if options.get(name, verifying).strip().lower() != verifying:
            raise ConfigurationError(
                f"{_WHERE}: {name} may only be {verifying}: certificates are always verified. For"
                " an authority of your own, set ssl.ca.location; a broker's certificate needs the name that it is reached by"
            )
    _refuse_login(options)


def _refuse_login(options: Mapping[str, str]) -> None:
    """Raise ConfigurationError for SASL without a mechanism that needs a user and a password only."""
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms")
    has_sasl = mechanism is not None or options.get("security.protocol", "").upper().startswith("SASL")
    if has_sasl and mechanism not in MECHANISMS:
        wrong = f"sasl.mechanism {mechanism!r} is not supported" if mechanism else "SASL needs sasl.mechanism"
        raise ConfigurationError(
            f"{_WHERE}: {wrong}: use one of {', '.join(MECHANISMS)} with sasl.username and sasl.password, "
            "or a client's certificate (docs/sources.md)"
        )


def with_file_contents(options: Mapping[str, object]) -> dict[str, object]:
    """The options with the contents of PEM files in place of their paths, for clients on other machines.

    A directory of authorities, and a PKCS #12 file, must be on each machine. ConfigurationError: a file cannot be read.
    """
    own = dict(options)
    for name in PEM_FILES:
        path = Path(str(own.get(f"{name}.location", "")))
        if f"{name}.location" not in own or path.is_dir():
            continue
        del own[f"{name}.location"]
        try:
            own[f"{name}.pem"] = path.read_text()
        except OSError as error:
            raise ConfigurationError(f"{_WHERE}: {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{_WHERE}: {path} is no PEM file") from None
    return own
