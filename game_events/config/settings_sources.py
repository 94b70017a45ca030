"""Settings sources for pydantic: the local stack's addresses, and mappings that an earlier source has emptied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic_settings import PydanticBaseSettingsSource

#: The local stack's state file, below ``state_dir``.
STACK_STATE_FILE = "stack/stack.json"


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
