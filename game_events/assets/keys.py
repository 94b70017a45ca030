"""Asset keys, the partitions and what all assets share."""

from __future__ import annotations

import dagster as dg

from game_events.lakehouse.tables import BRONZE, QUARANTINE, UNIFIED

#: One partition for each game; grows with the data, nobody lists them.
GAMES = dg.DynamicPartitionsDefinition(name="games")

BRONZE_KEY = dg.AssetKey([BRONZE])
QUARANTINE_KEY = dg.AssetKey([QUARANTINE])
SILVER_KEY = dg.AssetKey(["silver_events"])
GOLD_KEY = dg.AssetKey(["gold_player_agg"])
UNIFIED_KEY = dg.AssetKey([UNIFIED])
#: Rows sent to an HTTP receiver, and the group that this is in.
REST_KEY = dg.AssetKey(["rest_export"])
EXPORTS = "exports"

#: Layer of a report's entry -> the asset that it materializes.
LAYER_KEYS = {
    "bronze": BRONZE_KEY,
    "quarantine": QUARANTINE_KEY,
    "silver": SILVER_KEY,
    "gold": GOLD_KEY,
    "unified": UNIFIED_KEY,
}


def layer_key(layer: str) -> dg.AssetKey:
    """The asset of a report's entry: one's own aggregates have `gold:{name}` for a layer and `gold_{name}` for an asset."""
    return LAYER_KEYS[layer] if layer in LAYER_KEYS else dg.AssetKey([layer.replace(":", "_")])


OWNERS = ["team:data-engineering"]


def topic_key(topic: str) -> dg.AssetKey:
    """The external asset of a Kafka topic."""
    return dg.AssetKey(["kafka", topic])


def subject_key(topic: str) -> dg.AssetKey:
    """The external asset of the registry subject that describes a topic's values."""
    return dg.AssetKey(["schema_registry", f"{topic}-value"])
