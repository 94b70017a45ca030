"""Options and errors of Confluent's Kafka clients, which driver and workers use alike; creation of a topic.

Source: librdkafka, CONFIGURATION.md.
"""

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import certifi
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from game_events.config.settings import Settings
from game_events.config.sources.kafka_login import OPTIONS, TOKEN_URL, TOKENS, tokens_of
from game_events.errors import ConfigurationError, GameEventsError, TransientError
from game_events.plugin import installed

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
#: librdkafka's text for each failed attempt to get a token; it makes the next one 10 s later.
_NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token"  # noqa: S105 - a text
#: Seconds for which such a failure explains others: of an answer 5xx librdkafka tells after 20 s of attempts of its own.
NO_TOKEN_S = 45.0
#: Error codes of RFC 6749, 5.2: the token server does not take the client, its secret or the scope, also the next time.
_NO_CLIENT = re.compile(
    r"invalid_(request|client|grant|scope|target)|unauthorized_client|unsupported_grant_type|access_denied|[Uu]nauthorized|[Ff]orbidden"
)
_UNTRUSTED_TOKENS = re.compile(r"certificate|trust anchors", re.IGNORECASE)
#: A connection's new login that came too soon after the last one, or with the token's end: the client connects again by itself.
_AGAIN = "Request not valid in current SASL state"
#: Characters of an answer of a token server in a text.
ANSWER_CHARS = 300
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
PEM_FILES = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
    "https.ca.location": "https.ca.pem",
    "sasl.oauthbearer.assertion.private.key.file": "sasl.oauthbearer.assertion.private.key.pem",
}


class CauseMemory:
    """An ``error_cb`` that keeps the cause: librdkafka reports a failed login only there; calls just time out.

    Of a login by tokens it tells the steps apart: the token server does not answer, it refuses the client, the broker refuses.
    """

    def __init__(self, servers: str, tokens: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`tokens`: who gives the login its tokens, as texts name it."""
        self._servers = servers
        self._tokens = tokens
        self._clock = clock
        self._last: KafkaError | None = None
        #: When the token server last gave no token, though it may the next time, and what was said.
        self._without_token: tuple[float, str] | None = None

    @classmethod
    def of(cls, options: Mapping[str, object]) -> "CauseMemory":
        """That of a client with these options."""
        return cls(str(options.get("bootstrap.servers", "")), tokens_of(options))

    def __call__(self, error: KafkaError) -> None:
        """Keeps a refusal, else the last error; "all brokers down" never replaces another one."""
        if error.str().startswith(_NO_TOKEN) and not _is_refusal(error):
            self._without_token = (self._clock(), _answer(error))
        elif self._lacks_token() and _is_login(error):
            return  # what comes of it: the broker refuses the last token, which has ended
        elif not self.refused and (self._last is None or error.code() != KafkaError._ALL_BROKERS_DOWN):
            self._last = error

    @property
    def refused(self) -> bool:
        """Whether the broker, or the token server, refused the client, so that waiting is useless."""
        return _is_refusal(self._last)

    def explain(self, what: str, error: KafkaError | None = None) -> GameEventsError:
        """The project's error for a Kafka error, with the remembered cause."""
        where = f"{what}: Kafka at {self._servers}"
        if not self.refused and self._without_token and self._lacks_token():
            is_server = str(self._tokens).startswith("http")
            advice = f"is it up, and is {TOKEN_URL} of {_WHERE} right?" if is_server else "the log of who asked says why"
            return TransientError(f"{where}: no login, as {self._tokens} gives no token ({self._without_token[1]}): {advice}")
        cause = error if _is_refusal(error) and not self.refused else self._last or error
        if _is_login(cause):
            return ConfigurationError(f"{where}: {self._of_login(cause)}")
        if _is_refusal(cause):
            return ConfigurationError(
                f"{where}: {_text(cause)}: check the topic's name and partitions, and what this login may do"
            )
        advice = "is it up, and are GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS and security.protocol right?"
        tokens = f" Does {self._tokens} give tokens?" if self._tokens else ""
        return TransientError(f"{where}: {_text(cause)}: {advice}{tokens}")

    def _lacks_token(self) -> bool:
        """Whether the token server has given none when it was last asked, as far as is known."""
        return self._without_token is not None and self._clock() - self._without_token[0] < NO_TOKEN_S

    def _of_login(self, cause: KafkaError | None) -> str:
        """Of a refused login: by whom, and what to do."""
        if cause is not None and cause.str().startswith(_NO_TOKEN):
            said = f"({_answer(cause)})"
            if _UNTRUSTED_TOKENS.search(cause.str()):
                advice = "set GAME_EVENTS_TLS_CA_FILE to the PEM file of the authority that signed it"
                return f"no login, as the certificate of {self._tokens} is not trusted {said}: {advice}"
            advice = f"check sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret and sasl.oauthbearer.scope in {_WHERE}"
            return f"no login, as {self._tokens} refuses the client {said}: {advice}"
        if self._tokens and cause is not None and cause.code() != KafkaError._SSL:
            advice = "check that the broker trusts it, what this login may do, the audience, the scope and the clocks"
            return f"{_text(cause)}: it refuses the token of {self._tokens}: {advice}"
        return f"{_text(cause)}: check {_WHERE} (security.protocol, sasl.*, ssl.*)"


def _answer(error: KafkaError) -> str:
    """What a token server has said, or why it has said nothing."""
    return " ".join(error.str().removeprefix(_NO_TOKEN).lstrip(": ").split())[:ANSWER_CHARS]


def _is_login(error: KafkaError | None) -> bool:
    """Whether a login was refused for good: not one that had no token for a while, or that came too soon after another."""
    if error is None or _AGAIN in error.str():
        return False
    if error.str().startswith(_NO_TOKEN):
        return _NO_CLIENT.search(error.str()) is not None or _UNTRUSTED_TOKENS.search(error.str()) is not None
    return error.code() in LOGIN or _REFUSED_BY_TLS.search(error.str()) is not None


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
        **_login_of_a_plugin(settings),
        **_authorities(settings),
        **own,
        "bootstrap.servers": settings.kafka_bootstrap_servers,
    }


def _authorities(settings: Settings) -> dict[str, object]:
    """The authorities of a token server, if the settings name them."""
    named = settings.tls_ca_file is not None and TOKEN_URL in settings.kafka_options
    has_own = settings.kafka_options.keys() & {"https.ca.location", "https.ca.pem"}
    return {"https.ca.location": str(settings.tls_ca_file)} if named and not has_own else {}


def _login_of_a_plugin(settings: Settings) -> dict[str, object]:
    """Options of the login that the settings name, if it is one of a plug-in's."""
    if settings.kafka_login == OPTIONS:
        return {}
    named = (plugin for plugin in installed() if settings.kafka_login in plugin.kafka_logins)
    plugin = next(named)  # the settings have no other
    tokens = plugin.load(plugin.kafka_logins[settings.kafka_login])(settings)
    return {"security.protocol": "SASL_SSL", "sasl.mechanism": TOKENS, "oauth_cb": tokens}


def new_client(make: Callable[..., T], options: dict[str, object]) -> T:
    """A client with these options; ConfigurationError for a bad one, which the library names without its value.

    A plug-in's login is asked for a token first: its error has the reason, the library's after 10 s has none.
    """
    tokens = options.get("oauth_cb")
    if callable(tokens):
        tokens("")
    if TOKEN_URL in options and not options.keys() & {"https.ca.location", "https.ca.pem"}:
        # The library's own place is that of some distributions only; the registry's client looks at the same places as this.
        options = {**options, "https.ca.location": os.environ.get("SSL_CERT_FILE") or certifi.where()}
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
    options = client_options(settings, {})
    memory = CauseMemory.of(options)
    admin = new_client(connect, options | {"error_cb": memory})
    if topic in _topics(admin, memory):
        return
    try:
        new = NewTopic(topic, partitions, BROKERS_DEFAULT)
        admin.create_topics([new], request_timeout=CONNECT_TIMEOUT_S)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise memory.explain(f"creating topic {topic!r}", error.args[0]) from error


def _topics(admin: AdminClient, memory: CauseMemory) -> set[str]:
    """Names of all topics; fails at once when the client is refused."""
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
    middle). A login that is not supported was refused when the settings were read.
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


def with_file_contents(options: Mapping[str, object]) -> dict[str, object]:
    """The options with the contents of PEM files in place of their paths, for clients on other machines.

    A directory of authorities, and a PKCS #12 file, must be on each machine. ConfigurationError: a file cannot be read.
    """
    own = dict(options)
    for name, of_content in PEM_FILES.items():
        path = Path(str(own.get(name, "")))
        if name not in own or path.is_dir():
            continue
        del own[name]
        try:
            own[of_content] = path.read_text()
        except OSError as error:
            raise ConfigurationError(f"{_WHERE}: {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{_WHERE}: {path} is no PEM file") from None
    return own
