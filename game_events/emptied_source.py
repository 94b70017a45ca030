"""A mapping that a source of settings gives as empty stays empty: what the sources behind it have is not put into it."""

from __future__ import annotations

from typing import Any

from pydantic_settings import PydanticBaseSettingsSource


class UnlessEmptied(PydanticBaseSettingsSource):
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
