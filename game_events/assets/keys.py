"""Asset keys, the partitions and what all assets share."""

from __future__ import annotations

import dagster as dg

from game_events.lakehouse.tables import BRONZE, QUARANTINE, UNIFIED
from game_events.settings import Settings

#: One partition for each game; grows with the data, nobody lists them.
GAMES = dg.DynamicPartitionsDefinition(name="games")

BRONZE_KEY = dg.AssetKey([BRONZE])
QUARANTINE_KEY = dg.AssetKey([QUARANTINE])
SILVER_KEY = dg.AssetKey(["silver_events"])
GOLD_KEY = dg.AssetKey(["gold_player_agg"])
UNIFIED_KEY = dg.AssetKey([UNIFIED])

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


#: Names of the one asset, and the one of its subjects, that stands for all topics of a pattern: which there are, and when one
#: joins, the broker alone knows, and a graph that has to ask it cannot be loaded while it is down.
BY_PATTERN = "topics_by_pattern"
SUBJECTS_BY_PATTERN = "subjects_by_pattern"


def source_key(settings: Settings, topic: str) -> dg.AssetKey:
    """The external asset of a topic that the settings name, or of all that a pattern does; of the table they name."""
    if settings.source_table is not None:
        return table_key(settings.source_table)
    return topic_key(topic if settings.kafka_topic_pattern is None else BY_PATTERN)


def schema_key(settings: Settings, subject: str) -> dg.AssetKey:
    """The external asset of a subject; of all subjects of a pattern's topics."""
    return dg.AssetKey(["schema_registry", subject if settings.kafka_topic_pattern is None else SUBJECTS_BY_PATTERN])


def table_key(address: str) -> dg.AssetKey:
    """The external asset of another pipeline's table: its lakehouse's name and its own."""
    return dg.AssetKey(["delta", *[part for part in address.split("/") if part][-2:]])


def topic_key(topic: str) -> dg.AssetKey:
    """The external asset of a Kafka topic."""
    return dg.AssetKey(["kafka", topic])


def subject_key(topic: str) -> dg.AssetKey:
    """The external asset of the registry subject that describes a topic's values."""
    return dg.AssetKey(["schema_registry", f"{topic}-value"])
