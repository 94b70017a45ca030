"""`game-events archive`: raw records of bronze and quarantine, to files that can be read back as the records they were."""

from typing import Annotated

import typer

from game_events.cli.dagster_run import finish, run_job
from game_events.cli.output import Json, Output
from game_events.config.settings import load_settings
from game_events.lakehouse.tables import BRONZE

To = Annotated[
    str, typer.Option("--to", metavar="PLACE", help="Folder, or prefix of an object store; made if it is not there.")
]


def archive(to: To, as_json: Json = False) -> None:
    """Add the raw records that came since the last time to an archive, with keys, headers, coordinates and schemas."""
    output = Output(as_json=as_json)
    settings = load_settings()
    with output.working("archive"):
        result = run_job(settings, "archive", {"to": to}, place=to)
    done = result.report.get("archive")
    if done is not None:
        output.say(
            f"{done['rows']:,} records in {done['files']:,} files ({done['bytes']:,} bytes) added to {done['to']}: it has "
            f"come to batch {done['batch']:,} of {settings.names.name_of(BRONZE)}"
        )
        for notice in result.report.get("notices", []):
            output.say(notice)
    finish(output, result, "archive failed")
