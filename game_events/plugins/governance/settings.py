"""Settings of erasure: the key with which ids of erased people are hashed."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from pydantic import SecretStr, field_validator

from game_events.config.pipeline_settings import SettingsGroup

#: Ids can be guessed one by one: only the key protects their hashes.
MIN_ERASURE_KEY_CHARS = 16


class ErasureSettings(SettingsGroup):
    """The key of the hashes."""

    group: ClassVar[str] = "tables"

    # --- erasure (docs/erasure.md)
    erasure_key: SecretStr | None = None
    """secret of 16 characters or more, with which ids of erased data subjects are hashed; keep it for ever; never shown"""
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
