"""Settings of erasure: the key with which ids of erased people are hashed."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from pydantic import SecretStr, field_validator
from pydantic_settings import BaseSettings

from game_events.config.pipeline_settings import SettingsGroup
from game_events.errors import ConfigurationError

KEY = "GAME_EVENTS_ERASURE_KEY"

#: Ids can be guessed one by one: only the key protects their hashes.
MIN_ERASURE_KEY_CHARS = 16


class ErasureSettings(SettingsGroup):
    """The key of the hashes."""

    group: ClassVar[str] = "tables"

    # --- erasure (docs/erasure.md)
    erasure_key: SecretStr | None = None
    """secret of 16 characters or more, with which ids of erased people are hashed; keep it for ever; never shown"""
    erasure_key_file: Path | None = None
    """a file that holds the erasure key, instead of `ERASURE_KEY`"""

    @field_validator("erasure_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < MIN_ERASURE_KEY_CHARS:
            raise ValueError(f"must have at least {MIN_ERASURE_KEY_CHARS} characters: `openssl rand -hex 32` makes a good one")
        return value

    def further_secrets(self) -> Iterator[str]:
        """The key in the file."""
        if self.erasure_key_file is not None:
            with suppress(OSError, UnicodeDecodeError):
                yield self.erasure_key_file.read_text().strip()


def erasure_key(settings: BaseSettings) -> bytes | None:
    """The key of the hashes, None if no setting has one; ConfigurationError if both have one, or for an unusable file."""
    erasure = ErasureSettings.of(settings)
    file = erasure.erasure_key_file
    if erasure.erasure_key is not None and file is not None:
        raise ConfigurationError(f"{KEY} and {KEY}_FILE are both set: keep one of them")
    if erasure.erasure_key is not None:
        return erasure.erasure_key.get_secret_value().encode()
    if file is None:
        return None
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{KEY}_FILE: {file} cannot be read ({type(error).__name__})") from None
    if len(text) < MIN_ERASURE_KEY_CHARS:
        raise ConfigurationError(f"{KEY}_FILE: {file} must hold {MIN_ERASURE_KEY_CHARS} characters or more")
    return text.encode()


def required_key(settings: BaseSettings) -> bytes:
    """The key of the hashes; ConfigurationError if there is none."""
    key = erasure_key(settings)
    if key is None:
        raise ConfigurationError(
            f"{KEY} is not set: erased people are recognised by hashes made with it. Make one (`openssl rand -hex 32`), "
            f"set it or {KEY}_FILE for every run on this lakehouse, and keep it for ever"
        )
    return key
