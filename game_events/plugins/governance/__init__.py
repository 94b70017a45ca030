"""Plug-in: erasure of people from every table; their later records are kept out."""

from game_events.plugin import Command, Plugin

PLUGIN = Plugin(
    "governance",
    settings="game_events.plugins.governance.settings:ErasureSettings",
    commands={
        "erase": Command(
            "game_events.plugins.governance.command:erase",
            "Delete all rows of the given players from every table, and drop their later records, from Kafka or a replay.",
            former="forget",
        )
    },
    doctor="game_events.plugins.governance.erased_people:doctor",
    record_filter="game_events.plugins.governance.erased_people:record_filter",
    erase_rejected="game_events.plugins.governance.commits:erase_from_quarantine",
)
