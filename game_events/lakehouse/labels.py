"""Owners and tags of each layer's tables, from the settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from game_events.config.settings import Settings

#: The tags of every table.
EVERY = "all"


@dataclass(frozen=True)
class Labels:
    """Owners and tags.

    `owners`: teams (`team:name`) and e-mail addresses. `tags`: layer, or `all` -> key -> value.
    """

    owners: tuple[str, ...] = ()
    tags: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Labels:
        """Those of the settings."""
        return cls(settings.owners, settings.tags)

    def of_layer(self, layer: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Owners and tags of a layer's tables; a layer's own tags win over those for all."""
        tags = self.tags.get(EVERY, {}) | self.tags.get(layer, {})
        return self.owners, tuple(sorted(tags.items()))
