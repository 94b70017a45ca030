"""`game-events iceberg`: which version of each table Iceberg has, and catching up without a run."""

from dataclasses import asdict
from typing import Annotated

import typer

from game_events.cli.output import Json, Output
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.pipeline.context import Pipeline, no_spark
from game_events.plugins.iceberg.current import KnownTables, tables_of
from game_events.plugins.iceberg.lag import OFF, lags, summary
from game_events.plugins.iceberg.settings import IcebergSettings
from game_events.plugins.iceberg.work import IcebergResult, catch_up

Sync = Annotated[bool, typer.Option("--sync", help="First commit to Iceberg what it lacks, of every table.")]


def iceberg(sync: Sync = False, as_json: Json = False) -> None:
    """Show each table's version in Delta and in Iceberg, and where Iceberg's newest metadata is."""
    output = Output(as_json=as_json)
    settings = load_settings()
    pipeline = Pipeline(settings, no_spark)
    is_on = IcebergSettings.of(settings).iceberg
    done = IcebergResult()
    if sync:
        if not is_on:
            raise ConfigurationError("GAME_EVENTS_ICEBERG is off: set it, also for the runs, or the tables fall behind again")
        with output.working("committing to Iceberg"):
            known = KnownTables(settings, pipeline.lakehouse)
            done = catch_up(pipeline, known, tables_of(pipeline.lakehouse))
    found = lags(settings, pipeline.lakehouse)
    rows = [(lag.table, lag.delta, lag.iceberg, lag.snapshots, lag.refused or lag.metadata) for lag in found]
    output.table("iceberg", ("table", "delta", "iceberg", "snapshots", "metadata"), rows)
    output.say(summary(found) if is_on else OFF)
    for name, why in done.failed.items():
        output.say(f"FAILED {name}: {why}")
    success = not done.failed
    result = {"success": success, "on": is_on, "committed": done.to_dict(), "tables": [asdict(lag) for lag in found]}
    output.result(result, success=success)
