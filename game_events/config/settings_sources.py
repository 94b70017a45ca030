"""Settings sources for pydantic: the settings file with its groups, the local stack's addresses, emptied mappings."""

import difflib
import json
from pathlib import Path
from typing import Any

from pydantic_settings import PydanticBaseSettingsSource, YamlConfigSettingsSource

from game_events.errors import ConfigurationError

#: The local stack's state file, below ``state_dir``.
STACK_STATE_FILE = "stack/stack.json"


class GroupedYamlSource(YamlConfigSettingsSource):
    """The settings file: settings by name, or in a mapping of their group (`kafka: {topic: events}`).

    Raises:
        ConfigurationError: a name that is no setting.
    """

    def __call__(self) -> dict[str, Any]:
        """The settings of the file, by their full names."""
        groups = {vars(c)["group"]: set(c.__annotations__) for c in self.settings_cls.__mro__ if "group" in vars(c)}
        found: dict[str, Any] = {}
        for key, value in super().__call__().items():
            if key in self.settings_cls.model_fields:
                found[key] = value
            elif key not in groups:
                raise self._error(key, "is no setting", [*self.settings_cls.model_fields, *groups])
            elif not isinstance(value, dict):
                raise self._error(key, "is no mapping, but a group of settings", [])
            else:
                for name, inner in value.items():
                    full = f"{key}_{name}" if f"{key}_{name}" in groups[key] else name
                    if full not in groups[key]:
                        raise self._error(name, f"is no setting of {key!r}", [*groups[key]])
                    found[full] = inner
        return found

    def _error(self, name: object, what: str, names: list[str]) -> ConfigurationError:
        near = difflib.get_close_matches(str(name), names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        return ConfigurationError(f"settings file {self.yaml_file_path}: {name!r} {what}{hint} See docs/reference/settings.md")


class LocalStackSource(PydanticBaseSettingsSource):
    """Default addresses of Kafka and registry: those of the local stack (``game-events stack up``)."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ANN401, ARG002
        """Unused: `__call__` gives all fields."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """The two addresses, if a local stack was started."""
        state_dir = self.current_state.get("state_dir") or Path(".game_events")
        try:
            state = json.loads((Path(state_dir) / STACK_STATE_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return {}
        return {key: state[key] for key in ("kafka_bootstrap_servers", "schema_registry_url") if state.get(key)}


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
