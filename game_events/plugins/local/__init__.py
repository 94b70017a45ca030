"""Plug-in: all of it on one machine: broker, registry, producer, demo, and the Dagster UI with its daemon."""

from game_events.plugin import Command, Plugin

PLUGIN = Plugin(
    "local",
    packages=("aiohttp", "dagster_webserver"),
    settings="game_events.plugins.local.settings:SampleDataSettings",
    commands={
        "demo": Command(
            "game_events.plugins.local.demo:demo",
            "Broker, registry, producer, Spark, Delta and Dagster from nothing to checked tables; leaves nothing running.",
        ),
        "up": Command(
            "game_events.plugins.local.up:up",
            "Start the local stack, the Dagster UI and the daemon that runs sensors; Ctrl-C stops all of it.",
        ),
        "stack": Command("game_events.plugins.local.up:stack_app", "The local Apache Kafka broker and schema registry."),
        "init": Command(
            "game_events.plugins.local.demo:init",
            "Write a settings file, a .proto and a README for another domain; the commands in it work as they are.",
        ),
        "produce": Command(
            "game_events.plugins.local.demo:produce_events",
            "Register the schema versions, write events to the topic, and say exactly what was sent.",
        ),
        "mock-api": Command(
            "game_events.plugins.local.mock_api:mock_api", "Take rows on loopback until Ctrl-C; nothing is kept but the log."
        ),
    },
)
