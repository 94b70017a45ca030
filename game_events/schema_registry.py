"""Client of a Confluent-compatible schema registry: schemas by id, references included.

Sources: Confluent Schema Registry REST API v7 (`GET /schemas/ids/{id}`, `GET /subjects/{s}/versions/{v}`).
"""

import logging
import re
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from ssl import SSLContext
from types import MappingProxyType
from typing import Protocol, TypeVar
from urllib.request import getproxies

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import OAuth2Client
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

from game_events.config.http_bounds import bounded
from game_events.config.masking import value_of, without_secrets
from game_events.config.network import UNTRUSTED
from game_events.config.pipeline_settings import split_names
from game_events.config.settings import Settings
from game_events.decoding.frame import MAX_TEXT, MAX_TEXTS, RegistrySchema, SchemaId, registry_of
from game_events.errors import ConfigurationError, DataError, TransientError

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds for one answer, from its request to its last byte; the client's own retries come on top.
TIMEOUT_S = 10.0
#: Further attempts of the client.
RETRIES = 2
#: Seconds without requests after an outage: each request costs ~2 s of the client's own retries.
COOL_DOWN_S = 15
#: Seconds for which a token is used of which the token server does not say when it ends.
TOKEN_S = 60
NOT_FOUND = 404
#: Statuses, with an error code of the registry, for an impossible id (above 2^31, a GUID where unsupported); a gateway's 400
#: has no such code.
IMPOSSIBLE = (400, 405, 422)
FORBIDDEN = (401, 403)
#: OpenSSL's texts for a server that ends the connection as it misses a certificate, or does not take it.
_WANTS_CERTIFICATE = re.compile(r"ALERT.*(CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE|ACCESS_DENIED|DECRYPT_ERROR)")


@dataclass(frozen=True)
class SubjectVersion:
    """One registered version of a subject."""

    subject: str
    version: int
    schema_id: SchemaId


@dataclass(frozen=True)
class SchemaLimits:
    """What one schema may cost.

    Attributes:
        answer_bytes, text_bytes: of one answer, of one text.
        references: files that it may import, directly and indirectly.
        schema_bytes, schema_s: bytes of it with all that it imports, and seconds to fetch them (plus one answer).
    """

    answer_bytes: int = 2**25
    references: int = 500
    text_bytes: int = MAX_TEXT
    schema_bytes: int = MAX_TEXTS
    schema_s: float = 60


@dataclass
class _Texts:
    """Texts of one schema and its references, with their limits.

    `begun`: names of requested references; `references`: name -> text, dependencies before dependents.
    """

    what: str
    limits: SchemaLimits
    remaining_s: Callable[[], float]
    begun: set[str] = field(default_factory=set)
    references: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def take(self, text: object) -> str:
        """A text as it can be stored; raises DataError beyond the limit of bytes."""
        stored = _storable(text)
        size = len(stored.encode())
        if size > self.limits.text_bytes:
            raise DataError(f"one text is longer than {self.limits.text_bytes // 2**20} MiB")
        self.size += size
        if self.size > self.limits.schema_bytes:
            raise DataError(f"with those that it imports it is longer than {self.limits.schema_bytes // 2**20} MiB")
        return stored

    def begin(self, name: str) -> None:
        """Count a reference before its request; DataError for too many, TransientError after the deadline."""
        self.begun.add(name)
        if len(self.begun) > self.limits.references:
            raise DataError(f"it imports more than {self.limits.references} others")
        if self.remaining_s() < 0:
            raise TransientError(
                f"{self.what}: the registry took more than {self.limits.schema_s:g} s for {len(self.begun) - 1} schemas that "
                "it imports: is the registry slow?"
            )


def registry_client(
    settings: Settings, timeout_s: float | None = None, retries: int = RETRIES, most: int = SchemaLimits.answer_bytes
) -> SchemaRegistryClient:
    """A Confluent client with the settings' credentials; connects at the first call. ``mock://`` gives its own fake.

    `timeout_s`, `most`: seconds and bytes of one answer.
    """
    timeout_s = timeout_s or TIMEOUT_S
    conf: dict[str, object] = {"url": settings.schema_registry_url, "timeout": timeout_s, "max.retries": retries}
    conf |= _login(settings)
    addresses = [*split_names(settings.schema_registry_url), settings.schema_registry_token_url or "http://"]
    if settings.tls_ca_file is not None:
        conf["ssl.ca.location"] = str(settings.tls_ca_file)
    elif not getproxies() and all(address.startswith("http://") for address in addresses):
        # Nothing is encrypted, and the certificates of the system's authorities take 50 ms to read.
        conf["ssl.ca.location"] = False
    try:
        client = SchemaRegistryClient.new_client(conf)
    except OSError as error:  # also OpenSSL's
        raise ConfigurationError(
            f"schema registry {settings.schema_registry_url}: the client's certificate cannot be used ({error}): check "
            "GAME_EVENTS_SCHEMA_REGISTRY_CERTIFICATE_FILE, _KEY_FILE and _KEY_PASSWORD"
        ) from None
    rest = getattr(client, "_rest_client", None)  # the fake has none
    if rest is not None:
        rest.session.headers["Accept-Encoding"] = "identity"
        bounded(rest.session, timeout_s, most)
        if settings.schema_registry_token_url is not None:
            # The library's own knows neither these authorities nor a limit of time or bytes.
            rest.bearer_field_provider.client = _token_client(settings, rest.verify, timeout_s, most)
    return client


def _login(settings: Settings) -> dict[str, object]:
    """The client's options with the settings' login."""
    conf: dict[str, object] = {}
    if settings.schema_registry_user:
        conf["basic.auth.user.info"] = f"{settings.schema_registry_user}:{value_of(settings.schema_registry_password) or ''}"
    tokens: dict[str, object] = {"bearer.auth.logical.cluster": settings.schema_registry_cluster}
    if settings.schema_registry_identity_pool is not None:
        tokens["bearer.auth.identity.pool.id"] = settings.schema_registry_identity_pool
    if settings.schema_registry_token is not None:
        conf |= tokens | {"bearer.auth.credentials.source": "STATIC_TOKEN"}
        conf["bearer.auth.token"] = settings.schema_registry_token.get_secret_value()
    elif settings.schema_registry_token_url is not None:
        conf |= tokens | {"bearer.auth.credentials.source": "OAUTHBEARER"}
        conf["bearer.auth.client.id"] = settings.schema_registry_client_id
        conf["bearer.auth.client.secret"] = value_of(settings.schema_registry_client_secret)
        conf["bearer.auth.scope"] = settings.schema_registry_scope
        conf["bearer.auth.issuer.endpoint.url"] = settings.schema_registry_token_url
    if settings.schema_registry_certificate_file is not None:
        certificate = settings.schema_registry_certificate_file
        conf["ssl.certificate.location"] = str(certificate)
        conf["ssl.key.location"] = str(settings.schema_registry_key_file or certificate)
        # Without one OpenSSL would ask for the password of an encrypted key on the terminal.
        conf["ssl.key.password"] = value_of(settings.schema_registry_key_password) or ""
    return conf


class _TokenClient(OAuth2Client):  # type: ignore[misc]  # Authlib has no types
    def fetch_token(self, **asked: object) -> dict[str, object]:
        """A token; one of which the server does not say when it ends is used for `TOKEN_S`."""
        token: dict[str, object] = super().fetch_token(**asked)
        token.setdefault("expires_in", TOKEN_S)
        token.setdefault("expires_at", time.time() + TOKEN_S)
        return token


def _token_client(settings: Settings, verify: SSLContext, timeout_s: float, most: int) -> _TokenClient:
    client = _TokenClient(
        client_id=settings.schema_registry_client_id,
        client_secret=value_of(settings.schema_registry_client_secret),
        scope=settings.schema_registry_scope or None,
        verify=verify,
        timeout=timeout_s,
    )
    client.headers["Accept-Encoding"] = "identity"
    bounded(client, timeout_s, most)
    return client


def login_of(settings: Settings) -> str | None:
    """The login at the registry as texts name it; None: there is none."""
    parts = []
    if settings.schema_registry_user:
        parts.append(f"login of user {settings.schema_registry_user}")
    if settings.schema_registry_token is not None:
        parts.append("login by a fixed token")
    if settings.schema_registry_token_url is not None:
        client = settings.schema_registry_client_id
        parts.append(f"login of client {client}, tokens of {settings.schema_registry_token_url}")
    if settings.schema_registry_certificate_file is not None:
        parts.append("a client's certificate")
    return " and ".join(parts) or None


class SchemaLookup(Protocol):
    """Schemas by id: the registry, or what a source puts before it, as its records bring schemas along."""

    url: str
    #: Source -> name of its registry in ids (`frame.named`), where there are several.
    registries: Mapping[str, str] = MappingProxyType({})

    def url_of(self, schema_id: SchemaId) -> str:  # noqa: ARG002
        """The address of the registry of an id, in messages."""
        return self.url

    def fetch(self, schema_id: SchemaId) -> RegistrySchema | None:
        """The schema of an id or GUID; None: unknown; TransientError, ConfigurationError: there is no answer."""

    def version_numbers(self, subject: str) -> list[int]:  # noqa: ARG002
        """Versions of a subject, oldest first; empty: it is unknown."""
        return []

    def versions(self, subject: str) -> list[SubjectVersion]:  # noqa: ARG002
        """The same with the ids of their schemas."""
        return []

    def id_of(self, subject: str, version: int | None = None) -> SchemaId | None:  # noqa: ARG002
        """Id of a version of a subject, of the newest one if none is given; None: there is none."""
        return None

    def newest(self, subject: str) -> tuple[int, SchemaId] | None:  # noqa: ARG002
        """Number and schema id of a subject's newest version; None: there is none."""
        return None

    def subject_of(self, schema_id: SchemaId) -> str | None:  # noqa: ARG002
        """A subject that has the schema; None: it is not known."""
        return None

    def offer(self, schemas: Iterable[RegistrySchema]) -> None:  # noqa: ARG002
        """Schemas that came with the records; a registry has its own."""
        return


class SchemaRegistry(SchemaLookup):
    """Read-only client. Every answer is bounded in time and in bytes; raises only this project's errors.

    For `COOL_DOWN_S` seconds after an outage requests fail at once with the same error.
    """

    def __init__(
        self,
        settings: Settings,
        timeout_s: float | None = None,
        *,
        retries: int = RETRIES,
        limits: SchemaLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects at the first call; `timeout_s`: for one answer; `retries`: further attempts after an error."""
        self.url = settings.schema_registry_url
        self._limits = limits or SchemaLimits()
        self._clock = clock
        self._settings = settings
        self._client = registry_client(settings, timeout_s, retries, self._limits.answer_bytes)
        self._outage: tuple[float, TransientError] | None = None
        # Its connections close with this object.
        weakref.finalize(self, self._client.close)

    def fetch(self, schema_id: SchemaId) -> RegistrySchema | None:
        """The schema of an id (a number) or a GUID (text), or None if the registry does not know it.

        Raises:
            ConfigurationError: the registry refuses the credentials.
            TransientError: it cannot be reached, answers with an error, or takes too long.
            DataError: the schema with its imports is too long, or imports too many others.
        """
        if registry_of(schema_id):  # of a source that the settings do not name
            return None
        is_id = isinstance(schema_id, int)
        what = f"schema {'id' if is_id else 'GUID'} {schema_id}"
        deadline = self._clock() + self._limits.schema_s
        texts = _Texts(f"schema registry {self.url}: {what}", self._limits, lambda: deadline - self._clock())
        get: Callable[..., Schema] = self._client.get_schema if is_id else self._client.get_schema_by_guid
        try:
            schema = self._call(what, partial(get, schema_id))
            if schema is None:
                return None
            text = texts.take(schema.schema_str)
            self._collect(schema, texts)
        except (DataError, RecursionError) as error:
            raise DataError(f"schema id {schema_id} does not compile: {error}") from None
        kind = str(schema.schema_type or "AVRO").upper()
        return RegistrySchema(schema_id, kind, text, tuple(texts.references.items()))

    def versions(self, subject: str) -> list[SubjectVersion]:
        """One call per version; TransientError also for more than can be asked about in `SchemaLimits.schema_s`."""
        versions = []
        until = self._clock() + self._limits.schema_s
        for number in self.version_numbers(subject):
            if self._clock() > until:
                raise TransientError(f"schema registry {self.url}: {subject!r} has more versions than it names in time")
            registered = self._call(f"subject {subject!r} version {number}", partial(self._client.get_version, subject, number))
            if registered is not None and isinstance(registered.schema_id, int):
                versions.append(SubjectVersion(subject, number, registered.schema_id))
        return versions

    def version_numbers(self, subject: str) -> list[int]:
        """The version numbers of a subject: one call."""
        return self._call(f"subject {subject!r}", lambda: sorted(map(int, self._client.get_versions(subject) or []))) or []

    def newest(self, subject: str) -> tuple[int, int] | None:
        """Number and schema id of a subject's newest version, or None if there is none: one call."""
        newest = self._call(f"subject {subject!r}", lambda: self._client.get_latest_version(subject))
        if newest is None or not isinstance(newest.version, int) or not isinstance(newest.schema_id, int):
            return None
        return newest.version, newest.schema_id

    def id_of(self, subject: str, version: int | None = None) -> int | None:
        """One call."""
        if version is None:
            newest = self.newest(subject)
            return None if newest is None else newest[1]
        what = f"subject {subject!r} version {version}"
        registered = self._call(what, lambda: self._client.get_version(subject, version))
        return None if registered is None or not isinstance(registered.schema_id, int) else registered.schema_id

    def subject_of(self, schema_id: SchemaId) -> str | None:
        """The first subject, by name, that has the schema of an id; None: no subject has it, or it is a GUID."""
        if not isinstance(schema_id, int):
            return None
        subjects = self._call(f"subjects of id {schema_id}", lambda: self._client.get_subjects_by_schema_id(schema_id))
        return min(map(str, subjects), default=None) if subjects else None

    def _collect(self, schema: Schema, texts: _Texts) -> None:
        """Adds the texts of all references, depth first, so that dependencies precede dependents; each name once."""
        for reference in schema.references or []:
            name = reference.name
            subject = reference.subject
            version = reference.version
            if not (isinstance(name, str) and isinstance(subject, str) and isinstance(version, int)) or name in texts.begun:
                continue
            texts.begin(name)
            registered = self._call(
                f"reference {name!r} ({subject!r} version {version})",
                partial(self._client.get_version, subject, version, deleted=True),
            )
            if registered is not None and registered.schema is not None:
                text = texts.take(registered.schema.schema_str)
                self._collect(registered.schema, texts)
                texts.references[_storable(name)] = text

    def _call(self, what: str, call: Callable[[], T]) -> T | None:
        if self._outage is not None and self._clock() < self._outage[0] + COOL_DOWN_S:
            raise TransientError(str(self._outage[1]))
        try:
            answer = self._ask(what, call)
        except TransientError as error:
            self._outage = (self._clock(), error)
            log.warning("registry_down=true asked_again_in_s=%d error=%r", COOL_DOWN_S, str(error))
            raise
        self._outage = None
        return answer

    def _ask(self, what: str, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except SchemaRegistryError as error:
            status = error.http_status_code
            if status == NOT_FOUND or (status in IMPOSSIBLE and (error.error_code or 0) > 0):
                return None
            if status in FORBIDDEN:
                raise ConfigurationError(
                    f"schema registry {self.url} refuses {what} (HTTP {status}): {_advice(self._settings)}"
                ) from None
            # Its text may be a page of megabytes, or repeat the request with its login.
            said = without_secrets(str(error), self._settings)
            raise TransientError(f"schema registry {self.url} answered {what} with {status}: {said}") from None
        except OAuthTokenError as error:
            raise self._without_token(error) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            if UNTRUSTED in str(error):
                raise ConfigurationError(
                    f"schema registry {self.url}: its certificate is not trusted ({error}): set GAME_EVENTS_TLS_CA_FILE to the "
                    "PEM file of the authority that signed it"
                ) from error
            if _WANTS_CERTIFICATE.search(str(error)):
                raise ConfigurationError(
                    f"schema registry {self.url} refuses this client's certificate, or that there is none ({error}): check "
                    "GAME_EVENTS_SCHEMA_REGISTRY_CERTIFICATE_FILE and GAME_EVENTS_SCHEMA_REGISTRY_KEY_FILE"
                ) from error
            raise TransientError(
                f"schema registry {self.url} gave no usable answer for {what} ({type(error).__name__}: {error}): "
                "is GAME_EVENTS_SCHEMA_REGISTRY_URL right, and is it up? (`game-events doctor` checks both)"
            ) from error

    def _without_token(self, error: OAuthTokenError) -> ConfigurationError | TransientError:
        """The project's error for a token server that gives no token."""
        url = self._settings.schema_registry_token_url
        cause = error.__context__ or error  # the library's own text repeats it
        said = without_secrets(f"{type(cause).__name__}: {cause}", self._settings)
        text = f"schema registry {self.url}: no login, as the token server {url}"
        if isinstance(cause, OAuthError):
            return ConfigurationError(
                f"{text} refuses the client ({said}): check GAME_EVENTS_SCHEMA_REGISTRY_CLIENT_ID, _CLIENT_SECRET and _SCOPE"
            )
        if UNTRUSTED in str(cause):
            return ConfigurationError(
                f"{text} has a certificate that is not trusted ({said}): set GAME_EVENTS_TLS_CA_FILE to the PEM file of the "
                "authority that signed it"
            )
        return TransientError(f"{text} gives no token ({said}): is GAME_EVENTS_SCHEMA_REGISTRY_TOKEN_URL right, and is it up?")


def _advice(settings: Settings) -> str:
    """What to check when the registry refuses a login."""
    if settings.schema_registry_token is not None:
        return "check GAME_EVENTS_SCHEMA_REGISTRY_TOKEN; it may have ended"
    if settings.schema_registry_token_url is not None:
        return (
            f"it does not take the token of {settings.schema_registry_token_url}: check GAME_EVENTS_SCHEMA_REGISTRY_SCOPE, "
            "_CLUSTER and _IDENTITY_POOL, and what the client may do"
        )
    return "check GAME_EVENTS_SCHEMA_REGISTRY_USER and GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD"


def _storable(text: object) -> str:
    """A text as UTF-8 can hold it, lone surrogates escaped."""
    return str(text or "").encode("utf-8", "backslashreplace").decode()
