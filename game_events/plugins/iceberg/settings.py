"""Settings of the tables' Iceberg metadata."""

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from game_events.config.pipeline_settings import SettingsGroup
from game_events.plugins.iceberg.credentials import secrets_of_pyiceberg


class IcebergSettings(SettingsGroup):
    """Iceberg beside Delta."""

    group: ClassVar[str] = "discovery"

    # --- Iceberg (docs/iceberg.md)
    iceberg: bool = False
    """each table is an Iceberg table, too: after each run, a snapshot over the same files for each table that has changed"""
    iceberg_catalog: str | None = Field(None, min_length=1)
    """name of a catalog in pyiceberg's own configuration (`.pyiceberg.yaml`, `PYICEBERG_CATALOG__...`); without it: a file,
    `_iceberg/catalog.db` below the lakehouse"""
    iceberg_namespace: str = Field("game_events", pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$")
    """namespace of the tables in that catalog"""
    iceberg_timeout_s: float = Field(120.0, gt=0, le=3600)
    """seconds that a run waits for the catalog at most; the next run catches up"""

    def further_secrets(self) -> Iterator[str]:
        """Credentials of pyiceberg's own configuration, of which an error may repeat some."""
        if self.iceberg or self.iceberg_catalog is not None:
            yield from secrets_of_pyiceberg()
