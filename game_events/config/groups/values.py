"""Types and checks of single values that several groups of settings use."""

import json
from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic_settings import NoDecode

#: Prefix of all environment variables.
ENV_PREFIX = "GAME_EVENTS_"


def split_names(value: str) -> tuple[str, ...]:
    """``a, b`` as names."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


#: ``a, b`` in the environment, or a list in YAML.
NameList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(lambda v: split_names(v) if isinstance(v, str) else v)]


Choice = Literal["quarantine", "null"]


def _choices(value: object) -> object:
    """A choice, or choices by column; YAML's null is the word."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = json.loads(value)
    if isinstance(value, Mapping):
        return {name: "null" if choice is None else choice for name, choice in value.items()}
    return "null" if value is None else value


#: `null`, `quarantine`, or a mapping column -> one of them: JSON in the environment.
OnBadValue = Annotated[Choice | dict[str, Choice], NoDecode, BeforeValidator(_choices)]


def _refuse_credentials(address: str) -> str:
    """An address, unchanged; raises ValueError if it holds a key or password, as reports, logs and metadata show it."""
    parts = urlsplit(address)
    # In Azure's `abfss://container@account` it is no login.
    named = "@" in parts.netloc and not (parts.scheme.startswith("abfs") and parts.password is None)
    if "://" in address and (named or parts.query):
        raise ValueError("must hold no key or password: credentials come from the environment (docs/object-store.md)")
    return address


def _require_http(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    try:
        parts = urlsplit(value.get_secret_value())
        is_complete = parts.port != 0 and len((parts.hostname or "").encode("idna")) > 0
    except ValueError:
        is_complete = False
    if not is_complete:  # the address, which may hold a secret, is not repeated
        raise ValueError("is no address that can be called, such as https://host:port/path")
    return value


#: The address of tables or files, without credentials.
Address = Annotated[str, AfterValidator(_refuse_credentials)]
#: A secret address of HTTP or HTTPS.
SecretUrl = Annotated[SecretStr, AfterValidator(_require_http)]
