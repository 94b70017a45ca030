"""Plug-in: the tables as other tools see them: catalogs, OpenLineage; SQL and a report from the command line."""

from game_events.plugin import Command, Plugin

PLUGIN = Plugin(
    "catalog",
    packages=("fsspec", "jinja2", "openlineage", "plotly", "requests"),
    settings="game_events.plugins.catalog.settings:LineageSettings",
    commands={
        "sql": Command(
            "game_events.plugins.catalog.sql:sql",
            "Query the tables, each by its name: nothing is written, and no Spark is started.",
        ),
        "report": Command(
            "game_events.plugins.catalog.report:report",
            "One HTML page, which loads nothing from anywhere: throughput, lag, games, rejections, durations, tables, errors.",
        ),
    },
    checks="game_events.plugins.catalog.observer:CHECKS",
    run_observer="game_events.plugins.catalog.observer:CatalogObserver",
)
