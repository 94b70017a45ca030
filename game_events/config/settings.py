"""Every setting of the system, typed and frozen.

Sources, first wins: arguments, environment ``GAME_EVENTS_*``, ``.env``, files of the folder ``GAME_EVENTS_SECRETS_DIR`` (one
for each setting, as Docker and Kubernetes mount secrets), a YAML file (``game_events.yaml``, or the one named
by ``GAME_EVENTS_CONFIG``), the addresses of a running local stack, defaults.
"""

import difflib
import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self, cast

from dotenv import dotenv_values
from pydantic import ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)
from yaml import YAMLError

from game_events.config.definitions.settings import DefinitionSettings
from game_events.config.pipeline_settings import (
    ENV_PREFIX,
    DiscoverySettings,
    LimitSettings,
    RunSettings,
    SettingsGroup,
    SourceSettings,
    SparkSettings,
    StorageSettings,
    TableSettings,
)
from game_events.config.sources.registry_login import RegistryLoginSettings
from game_events.config.sources.several import PARTED, SeveralSettings, is_of_source, settings_of_each, settings_or_each
from game_events.errors import ConfigurationError
from game_events.plugin import parts

log = logging.getLogger(__name__)
SETTING = "GAME_EVENTS_ON_DATA_LOSS"
#: Names with the prefix that are read elsewhere: where settings are, the cache of fetched parts; those of this project's tests.
NO_SETTINGS = frozenset({"config", "secrets_dir", "cache"})
TESTS_PREFIX = "test"
#: Names of earlier releases -> those of now. They are refused: what they meant would go unnoticed.
RENAMED = {"retention_h": "replaced_files_h", "derived_retention_h": "derived_replaced_files_h"}
#: The local stack's state file, below ``state_dir``.
STACK_STATE_FILE = "stack/stack.json"
#: Name of the class of the core's and all plug-ins' settings.
ALL_SETTINGS = "AllSettings"


class GroupedYamlSource(YamlConfigSettingsSource):
    """The settings file: settings by name, or in a mapping of their group (`kafka: {topic: events}`)."""

    def __call__(self) -> dict[str, Any]:
        """The settings, by their full names; ConfigurationError for a name that is none."""
        groups: defaultdict[str, set[str]] = defaultdict(set)
        for group in groups_of(self.settings_cls):
            groups[group.group].update(group.__annotations__)
        settings: dict[str, Any] = {}
        for key, value in super().__call__().items():
            if key in self.settings_cls.model_fields:
                settings[key] = value
            elif key not in groups:
                raise self._error(key, "is no setting", [*self.settings_cls.model_fields, *groups])
            elif not isinstance(value, dict):
                raise self._error(key, "is no mapping, but a group of settings", [])
            else:
                for name, inner in value.items():
                    full = f"{key}_{name}" if f"{key}_{name}" in groups[key] else name
                    if full not in groups[key]:
                        raise self._error(name, f"is no setting of {key!r}", [*groups[key]])
                    settings[full] = inner
        return settings

    def _read_file(self, file_path: Any) -> dict[str, Any]:  # noqa: ANN401 - of two kinds of path
        """The file's content, in which each name is a text: `1: 2` and `true: 3` have other names in YAML."""
        content: object = super()._read_file(file_path)
        if not isinstance(content, dict):
            raise ValueError("no mapping")
        for name in content:
            if not isinstance(name, str):
                raise self._error(name, "is no setting", [])
        return content

    def _error(self, name: object, what: str, names: list[str]) -> ConfigurationError:
        near = [RENAMED[str(name)]] if name in RENAMED else difflib.get_close_matches(str(name), names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        return ConfigurationError(f"settings file {self.yaml_file_path}: {name!r} {what}{hint} See docs/reference/settings.md")


class LocalStackSource(PydanticBaseSettingsSource):
    """Default addresses of Kafka and registry: those of the local stack (``game-events stack up``)."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ANN401, ARG002
        """Unused."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """The two addresses, if a local stack was started."""
        state_dir = self.current_state.get("state_dir") or Path(".game_events")
        try:
            state = json.loads((Path(state_dir) / STACK_STATE_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return {}
        return {key: state[key] for key in ("kafka_bootstrap_servers", "schema_registry_url") if state.get(key)}


class _OneByOne:
    """Of the environment's variables only those of several sources are parts of a setting (`GAME_EVENTS_SOURCES__EU__...`)."""

    def explode_env_vars(self, field_name: str, field: Any, env_vars: Any) -> dict[str, Any]:  # noqa: ANN401
        """The parts of a setting; none of any other one."""
        parts: dict[str, Any] = super().explode_env_vars(field_name, field, env_vars) if field_name == PARTED else {}  # type: ignore[misc]
        return parts


class EnvironmentSource(_OneByOne, EnvSettingsSource):
    """The environment."""


class DotEnvSource(_OneByOne, DotEnvSettingsSource):
    """The file `.env`."""


class WithoutEmptiedMappings(PydanticBaseSettingsSource):
    """A source without the mappings that an earlier source sets to `{}`.

    Mappings of several sources are merged, so there is no other way to remove entries of a settings file.
    """

    def __init__(self, source: PydanticBaseSettingsSource) -> None:
        super().__init__(source.settings_cls)
        self._source = source

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ANN401
        """Unchanged."""
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        """The source's values without the emptied mappings."""
        return {name: value for name, value in self._source().items() if self.current_state.get(name) != {}}


class Settings(
    SourceSettings,
    RegistryLoginSettings,
    SeveralSettings,
    TableSettings,
    StorageSettings,
    DefinitionSettings,
    SparkSettings,
    RunSettings,
    DiscoverySettings,
    LimitSettings,
):
    """The core's settings of one pipeline. `load_settings` gives them with those of plug-ins (docs/reference/settings.md)."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_file=".env",
        # Of one setting of one source (`config.sources.several`).
        env_nested_delimiter="__",
        extra="ignore",
        frozen=True,
        validate_default=True,
        hide_input_in_errors=True,
    )

    @model_validator(mode="after")
    def _types_are_bounded(self) -> Self:
        """With a table for each type, records must not choose how many tables there are."""
        has_all_types = self.silver_per == "entity_and_type" and not self.silver_types
        for one in settings_or_each(self) if has_all_types else []:
            for topic, entry in one.decoding.items():
                if entry.type_field is not None or entry.cloudevents:
                    raise ValueError(
                        f"GAME_EVENTS_SILVER_PER=entity_and_type needs GAME_EVENTS_SILVER_TYPES, as records of {topic} say "
                        "themselves of which type they are (`type_field`, `cloudevents`): name those that get tables"
                    )
        return self

    @model_validator(mode="after")
    def _no_bounds_of_persons(self) -> Self:
        """Bounds are values in the tables' logs, which outlive the rows."""
        names = {name for columns in self.statistics_columns.values() for name in columns}
        if self.key_column in names:
            raise ValueError(
                f"GAME_EVENTS_STATISTICS_COLUMNS names {self.key_column}, the GAME_EVENTS_KEY_COLUMN: no value of it may be in "
                "a table's log. Readers find it by the files' own statistics (docs/maintenance.md)"
            )
        return self

    @model_validator(mode="after")
    def _topics_of_one_name_are_alike(self) -> Self:
        """A topic's columns are those of all sources: without a schema, their entries must say the same of it."""
        each = settings_of_each(self)
        patterns = {pattern for one in each.values() for pattern in one.decoding_patterns}
        for topic in sorted({topic for one in each.values() for topic in (*one.kafka_topics, *one.decoding)} - patterns):
            reading = {name: one.decoding_of(topic) for name, one in each.items() if re.fullmatch(one.topic_pattern, topic)}
            inferred = {name: entry for name, entry in reading.items() if entry is not None and entry.schema_ is None}
            first, *others = inferred or [""]
            for name in others:
                if inferred[name].inference != inferred[first].inference:
                    raise ValueError(
                        f"GAME_EVENTS_DECODING: the sources {first} and {name} have other `hints` or another `type_field` for "
                        f"topics of one name, {topic}, which have the same columns: let both say the same"
                    )
        return self

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
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The order of the module's docstring."""
        yaml = GroupedYamlSource(settings_cls, os.environ.get(ENV_PREFIX + "CONFIG", "game_events.yaml"))
        dotenv = DotEnvSource(settings_cls, getattr(dotenv_settings, "env_file", None))
        merged = map(WithoutEmptiedMappings, (EnvironmentSource(settings_cls), dotenv, file_secret_settings, yaml))
        return init_settings, *merged, LocalStackSource(settings_cls)


@cache
def settings_class() -> type[Settings]:
    """The class of the settings: the core's and those of every plug-in; ConfigurationError for a name that is there twice."""
    groups: list[type[SettingsGroup]] = []
    names = set(Settings.model_fields)
    for group in parts("settings"):
        twice = names & set(group.model_fields)
        if twice:
            raise ConfigurationError(
                f"{group.__module__}.{group.__name__}: there are settings {', '.join(sorted(twice))} already"
            )
        names.update(group.model_fields)
        groups.append(group)
    space = {"model_config": Settings.model_config, "__module__": __name__, "__doc__": Settings.__doc__}
    return cast(type[Settings], type(ALL_SETTINGS, (Settings, *groups), space))


def __getattr__(name: str) -> type[Settings]:
    """The class of all settings under its name: settings are pickled by it."""
    if name == ALL_SETTINGS:
        return settings_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def groups_of(settings: type[BaseSettings]) -> Iterator[type[SettingsGroup]]:
    """The groups that a class of settings is made of."""
    for group in settings.__mro__:
        if issubclass(group, SettingsGroup) and "group" in vars(group):
            yield group


def load_settings(**overrides: Any) -> Settings:  # noqa: ANN401
    """Read and validate the settings.

    Raises:
        ConfigurationError: names each bad key, what is wrong with it and where to change it. Values are not repeated,
            as they may be secrets. Also for an override that is no setting.
    """
    for name in overrides:
        if name not in settings_class().model_fields:
            raise ConfigurationError(f"{name!r} {_no_setting(name)}")
    for name, text in _without_effect():
        if name in RENAMED:
            raise ConfigurationError(text)
        _warn_once(text)
    secrets = os.environ.get(ENV_PREFIX + "SECRETS_DIR") or None
    _require_sources(os.environ.get(ENV_PREFIX + "CONFIG"), secrets)
    try:
        return settings_class()(_secrets_dir=secrets, **overrides)
    except ValidationError as error:
        lines = [f"  {_named(e['loc'])}: {e['msg']}" for e in error.errors(include_input=False, include_url=False)]
        where = "environment, .env or game_events.yaml"
        raise ConfigurationError("\n".join([f"bad settings (from {where}):", *lines])) from None
    except (YAMLError, ValueError) as error:  # ValueError: also SettingsError, and a file that is not UTF-8
        raise _unreadable(error) from None


def _require_sources(file: str | None, secrets: str | None) -> None:
    """Raise ConfigurationError if the file of settings, or the folder of secrets, is named and is not there."""
    if file and not Path(file).is_file():
        raise ConfigurationError(f"{ENV_PREFIX}CONFIG names {file!r}, which is not a file")
    if secrets and not Path(secrets).is_dir():
        raise ConfigurationError(f"{ENV_PREFIX}SECRETS_DIR names {secrets!r}, which is not a folder")


def misspelt() -> list[str]:
    """A sentence for each variable of the environment or of `.env` that has the prefix and is no setting."""
    return [text for _, text in _without_effect()]


def _without_effect() -> list[tuple[str, str]]:
    """What each of these variables sets, and the sentence."""
    try:
        in_file = dotenv_values(".env")
    except (OSError, UnicodeDecodeError):  # reading the settings reports it
        in_file = {}
    messages: list[tuple[str, str]] = []
    for variable in sorted({*os.environ, *in_file}):
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        name = variable[len(ENV_PREFIX) :].lower()
        known = name in settings_class().model_fields or name in NO_SETTINGS or is_of_source(name)
        if not known and not name.startswith(TESTS_PREFIX):
            where = "" if variable in os.environ else ".env: "
            messages.append((name, f"{where}{variable} {_no_setting(name, ENV_PREFIX)}"))
    return messages


def _no_setting(name: str, prefix: str = "") -> str:
    if name in RENAMED:
        new = RENAMED[name]
        return f"is called {prefix}{new.upper() if prefix else new} now, and means something else (docs/maintenance.md)"
    near = difflib.get_close_matches(name, [*settings_class().model_fields, *NO_SETTINGS], 1)
    written = f"{prefix}{near[0].upper() if prefix else near[0]}" if near else ""
    hint = f"did you mean {written}?" if written else "docs/reference/settings.md lists all of them"
    return f"is no setting, and has no effect; {hint}"


@cache
def _warn_once(text: str) -> None:
    """Log a warning, in each process once: sensors read the settings at each tick."""
    log.warning("%s", text)


def _named(place: tuple[int | str, ...]) -> str:
    """A setting, and the part of it that is wrong; an error of several settings together has no name."""
    setting, *inner = place or ("*",)
    return f"{ENV_PREFIX}{setting}".upper() + (f": {'.'.join(map(str, inner))}" if inner else "")


def _unreadable(error: Exception) -> ConfigurationError:
    """Error for an unreadable settings source, without its content, which may hold secrets."""
    field = re.search(r'field "(\w+)"', str(error))
    if isinstance(error, SettingsError) and field:
        return ConfigurationError(f"{ENV_PREFIX}{field[1].upper()} is not valid JSON")
    named = os.environ.get(ENV_PREFIX + "CONFIG", "game_events.yaml")
    if isinstance(error, UnicodeDecodeError):
        return ConfigurationError(f"a settings file (.env, {named} or one of {ENV_PREFIX}SECRETS_DIR) is not UTF-8")
    mark = getattr(error, "problem_mark", None)
    where = f", line {mark.line + 1}" if mark is not None else ""
    return ConfigurationError(f"settings file {named}{where} cannot be read: it must be YAML with one `name: value` a line")


@dataclass(frozen=True)
class SettingsSource:
    """Settings of a graph that were given; None: what the environment says now, so that a changed rule needs no restart."""

    given: Settings | None = field(default=None, repr=False)

    def read(self) -> Settings:
        """The settings; ConfigurationError if the environment's are invalid."""
        return self.given if self.given is not None else load_settings()
