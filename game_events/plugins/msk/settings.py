"""Settings of the login at Amazon MSK."""

from typing import ClassVar

from pydantic import Field

from game_events.config.pipeline_settings import SettingsGroup


class MskSettings(SettingsGroup):
    """Login at Amazon MSK by IAM."""

    group: ClassVar[str] = "msk"

    # --- Amazon MSK (docs/sources.md)
    msk_region: str | None = Field(None, pattern=r"^[a-z0-9-]{4,40}$")
    """AWS region of the MSK cluster (`eu-west-1`), for `KAFKA_LOGIN=msk_iam`"""
