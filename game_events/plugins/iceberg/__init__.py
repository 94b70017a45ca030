"""Plug-in: each table as an Iceberg table, too (`ICEBERG=on`): Iceberg's metadata over the same Parquet files."""

from game_events.plugin import Command, Plugin

PLUGIN = Plugin(
    "iceberg",
    packages=("pyiceberg", "sqlalchemy"),
    settings="game_events.plugins.iceberg.settings:IcebergSettings",
    commands={
        "iceberg": Command(
            "game_events.plugins.iceberg.command:iceberg",
            "Show each table's version in Delta and in Iceberg, and where Iceberg's newest metadata is.",
        )
    },
    checks="game_events.plugins.iceberg.lag:CHECKS",
    doctor="game_events.plugins.iceberg.lag:doctor",
    run_observer="game_events.plugins.iceberg.observer:IcebergObserver",
)
