"""Texts for the event log and lineage without secrets and values of events: user, settings, errors."""

import getpass
import socket
from importlib.metadata import version
from typing import Any

from deltalake.exceptions import DeltaError
from pydantic import SecretStr
from pyspark.errors import PySparkException

from game_events.config.masking import MASK, mask_all
from game_events.config.settings import Settings
from game_events.errors import GameEventsError, without_quotes


def who() -> dict[str, str]:
    """User, host and version of this package."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return {"user": user, "host": socket.gethostname(), "version": version("game-events")}


def masked(settings: Settings) -> dict[str, Any]:
    """Settings that differ from their defaults. Of options for Kafka and Spark only the names: values may be secrets."""
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
    return mask_all(str(value), ())


def safe_error_text(error: BaseException) -> str:
    """Text of an error without values of rows, which errors of Spark and of custom code may quote."""
    if isinstance(error, PySparkException):
        return f"{error.getCondition() or 'it has no class'}: its text is in the run's log"
    ours = isinstance(error, GameEventsError | DeltaError | OSError) or not isinstance(error, Exception)
    return without_quotes(str(error)) if ours else "its text is in the run's log"
