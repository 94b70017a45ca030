"""Keys of the assets with default names."""

from game_events.orchestration.keys import DEFAULT
from game_events.plugins.export.assets import export_key

BRONZE_KEY, QUARANTINE_KEY, SILVER_KEY = DEFAULT.bronze, DEFAULT.quarantine, DEFAULT.silver
GOLD_KEY = DEFAULT.gold
UNIFIED_KEY = DEFAULT.unified
EXPORT_KEY = export_key(DEFAULT)
LAYER_KEYS = DEFAULT.by_layer
