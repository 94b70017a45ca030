"""Who ran what with which settings; secrets masked."""

from __future__ import annotations

import getpass
import os
import re
import socket
from importlib.metadata import version
from typing import Any

from deltalake.exceptions import DeltaError
from pydantic import SecretStr
from pyspark.errors import PySparkException

from game_events.errors import GameEventsError, without_quotes
from game_events.settings import Settings

MASK = "***"
#: Longer error texts are cut: Spark's repeat whole plans.
MAX_TEXT = 1_000
#: Shorter values would blot out half of any text.
MIN_SECRET_CHARS = 4
#: Spark's settings are plain texts; these hold an object store's keys.
_SECRET_NAME = re.compile(r"key|secret|password|token|credential|sas", re.IGNORECASE)
#: Where object stores' clients find credentials; their errors repeat what the store said, and should not repeat these.
_VARIABLES = re.compile(r"^(AWS|AZURE|GOOGLE)_.*(SECRET|TOKEN|PASSWORD|ACCOUNT_KEY|ACCESS_KEY$|SAS|SERVICE_ACCOUNT_KEY)")
_IN_ADDRESS = re.compile(r"(://)[^/@\s]+@")
#: Spark Connect's address carries its token as a parameter (`sc://host:443/;use_ssl=true;token=...`).
_TOKEN = re.compile(r"(;\s*token=)[^;\s]+", re.IGNORECASE)
#: Kafka's options that hold no secret, and often a word or a number that stands in any text: `https`, `true`, `5000`.
_HARMLESS = re.compile(
    r"^(security\.protocol|sasl\.mechanisms?|ssl\.endpoint\.identification\.algorithm|ssl\.\w*store\.type|client\.id|group\.id|"
    r"isolation\.level|auto\.offset\.reset|(.*\.)?enable(\..*)?|.*\.(ms|bytes|kbytes|records|messages|max))$"
)


def who() -> dict[str, str]:
    """User, host and version of this package."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return {"user": user, "host": socket.gethostname(), "version": version("game-events")}


def masked(settings: Settings) -> dict[str, Any]:
    """The settings that differ from their defaults; of options for Kafka and Spark the names alone, as values may be keys."""
    defaults = {name: field.get_default(call_default_factory=True) for name, field in type(settings).model_fields.items()}
    return {name: _masked(value) for name, value in settings if value != defaults[name]}


def _masked(value: object) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, dict):
        return dict.fromkeys(sorted(map(str, value)), MASK)
    if isinstance(value, tuple | list | set | frozenset):
        return [_masked(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _without_credentials(str(value))


def _without_credentials(text: str) -> str:
    """A text without what addresses in it may carry."""
    return _TOKEN.sub(rf"\1{MASK}", _IN_ADDRESS.sub(rf"\1{MASK}@", text))


def without_secrets(text: str, settings: Settings) -> str:
    """A text with every secret of the settings masked, cut to a length."""
    text = mask(text, settings)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " ..."


def words_to_keep(error: BaseException) -> str:
    """What an error says, if no row can stand in it: what Spark stumbles over, it quotes, and so does anybody's own code."""
    if isinstance(error, PySparkException):
        return f"{error.getCondition() or 'it has no class'}: its words are in the run's log"
    ours = isinstance(error, GameEventsError | DeltaError | OSError) or not isinstance(error, Exception)
    return without_quotes(str(error)) if ours else "its words are in the run's log"


def mask(text: str, settings: Settings) -> str:
    """A text with every secret of the settings, and of the environment's credentials for object stores, masked."""
    for secret in sorted(_secrets(settings), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _without_credentials(text)


def _secrets(settings: Settings) -> set[str]:
    found: set[str] = set()
    for name, value in settings:
        for option, item in value.items() if isinstance(value, dict) else [(name, value)]:
            if isinstance(item, SecretStr) and not _HARMLESS.match(option):
                found.add(item.get_secret_value())
    if settings.spark_remote:
        found |= {
            part.partition("=")[2] for part in settings.spark_remote.split(";") if part.strip().lower().startswith("token=")
        }
    found |= {value for name, value in settings.spark_conf.items() if _SECRET_NAME.search(name)}
    found |= {value for name, value in os.environ.items() if _VARIABLES.search(name) and not name.endswith("_FILE")}
    return {secret for secret in found if len(secret) >= MIN_SECRET_CHARS}
