"""Plug-in: new rows of silver or gold, POSTed to an HTTP receiver."""

from game_events.plugin import Command, Plugin

PLUGIN = Plugin(
    "export",
    packages=("aiohttp",),
    settings="game_events.plugins.export.settings:ExportSettings",
    commands={
        "export": Command(
            "game_events.plugins.export.command:app", "Rows POSTed to an HTTP receiver (GAME_EVENTS_REST_URL).", former="rest"
        )
    },
    definitions="game_events.plugins.export.assets:build_export",
    silver_taken="game_events.plugins.export.older_rows:silver_taken",
)
