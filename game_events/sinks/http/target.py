"""The receiver of an export: address, credentials and options of a call, from the settings.

Guarantee: neither `repr` nor an error shows the address's path or a credential. Workers get them as part of the pickled
function, which no plan, log or page of Spark shows.
"""

import base64
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from game_events.config.masking import mask_all, secret_parts, value_of
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError


@dataclass(frozen=True)
class RestTarget:
    """One receiver; picklable.

    Attributes:
        headers: of every call, with the credentials.
        secrets: texts that are masked in tables, logs and errors.
        calls: concurrent calls of one task.
        ca: PEM certificates of trusted authorities; None: the system's.
    """

    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    as_object: bool
    calls: int
    timeout_s: float
    attempts: int
    retry_delay_s: float
    ca: str | None = field(repr=False, default=None)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The target of the settings.

        Raises:
            ConfigurationError: the export is off, or its settings contradict each other.
        """
        if settings.rest_url is None:
            raise ConfigurationError("the export is off: set GAME_EVENTS_REST_URL to the address that rows are POSTed to")
        url = settings.rest_url.get_secret_value()
        if "@" in urlsplit(url).netloc:
            raise ConfigurationError(
                "GAME_EVENTS_REST_URL must hold no password: set GAME_EVENTS_REST_USER and GAME_EVENTS_REST_PASSWORD"
            )
        if settings.rest_body == "object" and settings.rest_rows_per_call != 1:
            raise ConfigurationError("GAME_EVENTS_REST_BODY=object: set GAME_EVENTS_REST_ROWS_PER_CALL=1, or send arrays")
        credentials, secrets = _credentials(settings)
        return cls(
            url,
            {"Content-Type": "application/json", **credentials},
            tuple({url, *secret_parts(url), *secrets}),
            settings.rest_body == "object",
            settings.rest_calls_per_task,
            settings.rest_timeout_s,
            settings.rest_max_attempts,
            settings.rest_retry_delay_s,
            # The content, as workers may be on other machines.
            _authorities(settings.tls_ca_file),
        )

    @property
    def shown(self) -> str:
        """The address without secrets: scheme, host and port."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def at(self, path: str) -> str:
        """Another path at the same address."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc, path, "", "")) if path else self.url

    def trust(self) -> ssl.SSLContext | bool:
        """Trust in the receiver's certificate, which is always verified."""
        return True if self.ca is None else ssl.create_default_context(cadata=self.ca)

    def masked(self, text: str) -> str:
        """A text without secrets."""
        return mask_all(text, self.secrets)


def _credentials(settings: Settings) -> tuple[dict[str, str], list[str]]:
    """Headers of the configured authentication, and its secrets."""
    token, password, key = settings.rest_bearer_token, settings.rest_password, settings.rest_api_key
    ways = {
        "GAME_EVENTS_REST_BEARER_TOKEN": token is not None,
        "GAME_EVENTS_REST_USER": settings.rest_user is not None or password is not None,
        "GAME_EVENTS_REST_API_KEY": key is not None,
    }
    named = [name for name, is_set in ways.items() if is_set]
    if len(named) > 1:
        raise ConfigurationError(f"{' and '.join(named)} are both set: the receiver wants one of them")
    if not (value_of(token if key is None else key) or "").isprintable():
        raise ConfigurationError(f"{named[0]} has a line break or another character that no header may have")
    if token is not None:
        return {"Authorization": f"Bearer {token.get_secret_value()}"}, [token.get_secret_value()]
    if key is not None:
        return {settings.rest_api_key_header: key.get_secret_value()}, [key.get_secret_value()]
    if named:
        if settings.rest_user is None or password is None:
            raise ConfigurationError("set both GAME_EVENTS_REST_USER and GAME_EVENTS_REST_PASSWORD, or neither")
        pair = base64.b64encode(f"{settings.rest_user}:{password.get_secret_value()}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}, [password.get_secret_value(), pair]
    return {}, []


def _authorities(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"GAME_EVENTS_TLS_CA_FILE: {file} cannot be read ({type(error).__name__})") from None
