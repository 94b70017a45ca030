"""Settings of the lineage that is sent to an OpenLineage receiver."""

from collections.abc import Iterator
from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from game_events.config.pipeline_settings import Receiver, SettingsGroup


class LineageSettings(SettingsGroup):
    """Receiver of lineage events."""

    group: ClassVar[str] = "discovery"

    # --- lineage (docs/lineage.md)
    openlineage_url: str | None = None
    """address of an OpenLineage receiver; without it no events are sent"""
    openlineage_endpoint: str = "api/v1/lineage"
    """path below that address that takes events"""
    openlineage_api_key: SecretStr | None = None
    """bearer token for the receiver; never shown"""
    openlineage_namespace: str = Field("game_events", min_length=1)
    """namespace of the jobs"""
    openlineage_timeout_s: float = Field(10.0, gt=0, le=300)
    """seconds that a run spends on sending its events at most"""

    @field_validator("openlineage_url")
    @classmethod
    def _receiver(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        if value is not None and ("@" in urlsplit(value).netloc or urlsplit(value).query):
            raise ValueError("must hold no password or key: set GAME_EVENTS_OPENLINEAGE_API_KEY")
        return value.rstrip("/") if value is not None else None

    def receivers(self) -> Iterator[Receiver]:
        """The receiver of lineage events."""
        yield Receiver("OPENLINEAGE_URL", self.openlineage_url, "lineage, and the token of its receiver")
