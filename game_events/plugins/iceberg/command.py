"""`game-events iceberg`: which version of each table Iceberg has, and catching up without a run."""

from dataclasses import asdict
from typing import Annotated

import typer

from game_events.cli.output import Json, Output
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.pipeline.context import Pipeline, no_spark
from game_events.plugins.iceberg import PLUGIN
from game_events.plugins.iceberg.current import KnownTables, tables_of
from game_events.plugins.iceberg.lag import OFF, lags, own_errors, summary
from game_events.plugins.iceberg.settings import IcebergSettings

Sync = Annotated[bool, typer.Option("--sync", help="First commit to Iceberg what it lacks, of every table.")]


def iceberg(sync: Sync = False, as_json: Json = False) -> None:
    """Show each table's version in Delta and in Iceberg, and where Iceberg's newest metadata is."""
    output = Output(as_json=as_json)
    settings = load_settings()
    pipeline = Pipeline(settings, no_spark)
    is_on = IcebergSettings.of(settings).iceberg
    if sync and not is_on:
        raise ConfigurationError("GAME_EVENTS_ICEBERG is off: set it, also for the runs, or the tables fall behind again")
    with output.working("committing to Iceberg" if sync else "asking Iceberg's catalog"), own_errors(settings):
        catch_up = PLUGIN.load("game_events.plugins.iceberg.work:catch_up") if sync else None
        known = KnownTables(settings, pipeline.lakehouse)
        done = catch_up(pipeline, known, tables_of(pipeline.lakehouse)) if catch_up else None
        found = lags(settings, pipeline.lakehouse)
    rows = [(lag.table, lag.delta, lag.iceberg, lag.snapshots, lag.why or lag.metadata) for lag in found]
    output.table("iceberg", ("table", "delta", "iceberg", "snapshots", "metadata, or why not"), rows)
    output.say(summary(found) if is_on else OFF)
    failed = done.failed if done else {}
    for name, cause in failed.items():
        output.say(f"FAILED {name}: {cause}")
    committed = done.to_dict() if done else {}
    tables = [asdict(lag) for lag in found]
    output.result({"success": not failed, "on": is_on, "committed": committed, "tables": tables}, success=not failed)
