"""Plug-in: files and another pipeline's bronze as sources, and the archive of raw records, which is read as files."""

from game_events.plugin import Command, Plugin

PLUGIN = Plugin(
    "files",
    commands={
        "archive": Command(
            "game_events.plugins.files.command:archive",
            "Add the raw records that came since the last time to an archive, with keys, headers, coordinates and schemas.",
        )
    },
    sources={
        "files": "game_events.plugins.files.source:FileSource",
        "table": "game_events.plugins.files.delta_table:TableSource",
    },
    definitions="game_events.plugins.files.archive:build_archive",
)
