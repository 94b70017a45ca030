"""Plug-in: the tables as other tools see them: catalogs, OpenLineage; SQL, a report and the history of schemas."""

from game_events.plugin import Command, Plugin

PLUGIN = Plugin(
    "catalog",
    packages=("fsspec", "jinja2", "openlineage", "plotly", "requests"),
    settings="game_events.plugins.catalog.settings:CatalogSettings",
    commands={
        "sql": Command(
            "game_events.plugins.catalog.sql:sql",
            "Query the tables, each by its name: nothing is written, and no Spark is started.",
        ),
        "schema": Command(
            "game_events.plugins.catalog.schema:app",
            "The versions of the topic's schema and the columns they become; with a table's name: its columns.",
        ),
        "grants": Command(
            "game_events.plugins.catalog.catalogs.command:app",
            "Who may read which table in Unity Catalog: what the settings want and the catalog lacks; made, or checked.",
        ),
        "report": Command(
            "game_events.plugins.catalog.report:report",
            "One HTML page, which loads nothing from anywhere: throughput, lag, games, rejections, durations, tables, errors.",
        ),
    },
    definitions="game_events.plugins.catalog.schema_versions:build_schema_versions",
    checks="game_events.plugins.catalog.catalogs.checks:CHECKS",
    doctor="game_events.plugins.catalog.catalogs.checks:doctor",
    run_observer="game_events.plugins.catalog.observer:CatalogObserver",
)
