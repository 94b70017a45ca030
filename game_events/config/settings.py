"""Every setting of the system, typed and frozen.

Sources, first wins: arguments, environment ``GAME_EVENTS_*``, ``.env``, files of the folder ``GAME_EVENTS_SECRETS_DIR`` (one
for each setting, as Docker and Kubernetes mount secrets), a YAML file (``game_events.yaml``, or the one named
by ``GAME_EVENTS_CONFIG``), the addresses of a running local stack, defaults.
"""

import os
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)
from yaml import YAMLError

from game_events.config.groups.domain import DomainSettings
from game_events.config.groups.export import ExportSettings
from game_events.config.groups.limits import LimitSettings
from game_events.config.groups.runs import RunSettings, SparkSettings
from game_events.config.groups.source import SourceSettings
from game_events.config.groups.tables import DiscoverySettings, StorageSettings, TableSettings
from game_events.config.groups.values import ENV_PREFIX
from game_events.config.settings_sources import GroupedYamlSource, LocalStackSource, WithoutEmptiedMappings
from game_events.errors import ConfigurationError

SETTING = "GAME_EVENTS_ON_DATA_LOSS"


class Settings(
    SourceSettings,
    TableSettings,
    StorageSettings,
    DomainSettings,
    SparkSettings,
    RunSettings,
    DiscoverySettings,
    ExportSettings,
    LimitSettings,
):
    """Settings of one pipeline; docs/reference/settings.md lists all of them."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_file=".env", extra="ignore", frozen=True, validate_default=True, hide_input_in_errors=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object, info: ValidationInfo) -> object:
        optional = value == "" and cls.model_fields[str(info.field_name)].default is None
        return None if optional else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The order of the module's docstring."""
        yaml = GroupedYamlSource(settings_cls, os.environ.get(ENV_PREFIX + "CONFIG", "game_events.yaml"))
        merged = map(WithoutEmptiedMappings, (env_settings, dotenv_settings, file_secret_settings, yaml))
        return init_settings, *merged, LocalStackSource(settings_cls)


def load_settings(**overrides: Any) -> Settings:  # noqa: ANN401
    """Read and validate the settings.

    Raises:
        ConfigurationError: names each bad key, what is wrong with it and where to change it. Values are not repeated,
            as they may be secrets.
    """
    named = os.environ.get(ENV_PREFIX + "CONFIG")
    if named and not Path(named).is_file():
        raise ConfigurationError(f"{ENV_PREFIX}CONFIG names {named!r}, which is not a file")
    secrets = os.environ.get(ENV_PREFIX + "SECRETS_DIR") or None
    if secrets and not Path(secrets).is_dir():
        raise ConfigurationError(f"{ENV_PREFIX}SECRETS_DIR names {secrets!r}, which is not a folder")
    try:
        return Settings(_secrets_dir=secrets, **overrides)
    except (SettingsError, YAMLError, ValueError, UnicodeDecodeError) as error:
        if not isinstance(error, ValidationError):
            raise _unreadable(error) from None
        lines = [
            # An error of several settings together has no name.
            f"  {ENV_PREFIX}{'.'.join(str(part) for part in e['loc']).upper() or '*'}: {e['msg']}"
            for e in error.errors(include_input=False, include_url=False)
        ]
        where = "environment, .env or game_events.yaml"
        raise ConfigurationError("\n".join([f"bad settings (from {where}):", *lines])) from None


def _unreadable(error: Exception) -> ConfigurationError:
    """Error for an unreadable settings source, without its content, which may hold secrets."""
    field = re.search(r'field "(\w+)"', str(error))
    if isinstance(error, SettingsError) and field:
        return ConfigurationError(f"{ENV_PREFIX}{field[1].upper()} is not valid JSON")
    named = os.environ.get(ENV_PREFIX + "CONFIG", "game_events.yaml")
    mark = getattr(error, "problem_mark", None)
    where = f", line {mark.line + 1}" if mark is not None else ""
    return ConfigurationError(f"settings file {named}{where} cannot be read: it must be YAML with one `name: value` a line")
