"""Asset keys, the partitions and what all assets share.

The keys are made from the setting `names`; the constants are those of its defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from game_events.names import Names
from game_events.settings import Settings


@dataclass(frozen=True)
class Keys:
    """What the assets of some settings are called.

    Attributes:
        names: the templates.
    """

    names: Names

    @classmethod
    def of(cls, settings: Settings) -> Keys:
        """The keys of some settings."""
        return cls(settings.names)

    @property
    def bronze(self) -> dg.AssetKey:
        """`bronze_events`."""
        return self._key(self.names.bronze)

    @property
    def quarantine(self) -> dg.AssetKey:
        """`quarantine_events`."""
        return self._key(self.names.quarantine)

    @property
    def silver(self) -> dg.AssetKey:
        """`silver_events`, partitioned."""
        return self._key(self.names.silver_asset)

    @property
    def gold(self) -> dg.AssetKey:
        """`gold_player_agg`, partitioned."""
        return self._key(self.names.gold_asset)

    @property
    def unified(self) -> dg.AssetKey:
        """`gold_unified_player_agg`."""
        return self._key(self.names.unified)

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition for each game; grows with the data, nobody lists them."""
        return dg.DynamicPartitionsDefinition(name=self.names.asset(self.names.partitions))

    @property
    def by_layer(self) -> dict[str, dg.AssetKey]:
        """Layer of a report's entry -> the asset that it materializes."""
        return {
            "bronze": self.bronze,
            "quarantine": self.quarantine,
            "silver": self.silver,
            "gold": self.gold,
            "unified": self.unified,
        }

    def layer(self, layer: str) -> dg.AssetKey:
        """The asset of a report's entry: an aggregate of one's own has `gold:{name}` for a layer."""
        found = self.by_layer.get(layer)
        if found is None:
            kind, _, aggregate = layer.partition(":")
            name = self.names.own_gold_asset.replace("{aggregate}", aggregate) if kind == "gold" else layer.replace(":", "_")
            found = self._key(name)
        return found

    def _key(self, name: str) -> dg.AssetKey:
        return dg.AssetKey([self.names.asset(name)])


DEFAULT = Keys(Names())
GAMES = DEFAULT.partitions
BRONZE_KEY = DEFAULT.bronze
QUARANTINE_KEY = DEFAULT.quarantine
SILVER_KEY = DEFAULT.silver
GOLD_KEY = DEFAULT.gold
UNIFIED_KEY = DEFAULT.unified
LAYER_KEYS = DEFAULT.by_layer

OWNERS = ["team:data-engineering"]


def topic_key(topic: str) -> dg.AssetKey:
    """The external asset of a Kafka topic."""
    return dg.AssetKey(["kafka", topic])


def subject_key(topic: str) -> dg.AssetKey:
    """The external asset of the registry subject that describes a topic's values."""
    return dg.AssetKey(["schema_registry", f"{topic}-value"])
