"""Keys of the assets with default names."""

from game_events.orchestration.keys import DEFAULT

BRONZE_KEY, QUARANTINE_KEY, SILVER_KEY = DEFAULT.bronze, DEFAULT.quarantine, DEFAULT.silver
GOLD_KEY, UNIFIED_KEY, EXPORT_KEY = DEFAULT.gold, DEFAULT.unified, DEFAULT.export
LAYER_KEYS = DEFAULT.by_layer
