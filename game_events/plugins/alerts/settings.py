"""Settings of the webhook that alerts are sent to."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from game_events.config.masking import secret_parts, value_of
from game_events.config.pipeline_settings import Receiver, SecretUrl, SettingsGroup


class AlertSettings(SettingsGroup):
    """The webhook, and how bad what is."""

    group: ClassVar[str] = "runs"

    # --- retries and alerts (docs/alerts.md)
    alert_webhook_url: SecretUrl | None = None
    """where alerts are POSTed; may hold a token, never shown"""
    alert_severity: dict[str, Literal["error", "warning", "none"]] = Field(default_factory=dict)
    """name of a check -> severity of its alerts (`error`, `warning`; `none`: no alerts)"""

    def further_secrets(self) -> Iterator[str]:
        """Parts of the address."""
        yield from secret_parts(value_of(self.alert_webhook_url) or "")

    def receivers(self) -> Iterator[Receiver]:
        """The receiver of alerts."""
        yield Receiver("ALERT_WEBHOOK_URL", value_of(self.alert_webhook_url), "alerts, and the token in that address")
