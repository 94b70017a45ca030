"""Where settings come from if nothing else says so: the local stack that was started from here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic_settings import PydanticBaseSettingsSource

#: What the local stack writes about itself, below ``state_dir``.
STACK_STATE_FILE = "stack/stack.json"


class LocalStackSource(PydanticBaseSettingsSource):
    """Addresses of the local stack (``game-events stack up``) for whoever names no Kafka and registry of their own."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ANN401, ARG002
        """Unused: this source answers as a whole."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """The two addresses, or nothing if no stack was started from here."""
        state_dir = self.current_state.get("state_dir") or Path(".game_events")
        try:
            state = json.loads((Path(state_dir) / STACK_STATE_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return {}
        return {key: state[key] for key in ("kafka_bootstrap_servers", "schema_registry_url") if state.get(key)}


class WithoutEmptiedMappings(PydanticBaseSettingsSource):
    """A source without the mappings that one before it says are empty.

    Mappings of several sources are put together, so there would be no other way to get rid of what a settings file says: of
    the partitions of another topic, for one, or of another broker's options.
    """

    def __init__(self, source: PydanticBaseSettingsSource) -> None:
        """Takes the source, which may not look at the state itself: it is asked without."""
        super().__init__(source.settings_cls)
        self._source = source

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ANN401
        """As the source has it."""
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        """What the source gives, but for what is to be empty."""
        return {name: value for name, value in self._source().items() if self.current_state.get(name) != {}}
