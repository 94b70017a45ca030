"""`game-events redecode`: bronze's decoded columns, rebuilt from the raw values it keeps."""

from typing import Annotated

import typer

from game_events.cli.common.arguments import Json
from game_events.cli.common.output import Output
from game_events.cli.common.run_job import run_job
from game_events.cli.common.summary import finish, show_run
from game_events.config.settings import load_settings

Downstream = Annotated[
    bool, typer.Option("--downstream", help="Afterwards replace silver by what bronze has now; gold and unified follow.")
]


def redecode(downstream: Downstream = False, as_json: Json = False) -> None:
    """Decode every row of bronze again, without Kafka, in one atomic commit; rows, batches and progress stay."""
    output, settings = Output(as_json=as_json), load_settings()
    with output.working("redecoding"):
        result = run_job(settings, "redecode", {"refresh_silver_and_gold": downstream})
    if result.report:
        show_run(output, result.report, settings.names)
        new, kept = result.report["new_columns"], result.report["kept_by_reason"]
        output.say(f"redecoded: {result.report['redecoded_rows']:,} rows; new columns: {', '.join(new) or 'none'}")
        if kept:
            output.say("rows that keep the columns they had: " + ", ".join(f"{why} {n:,}" for why, n in sorted(kept.items())))
        others = result.report["undecoded_by_type"]
        if others:
            output.say("of types that are not selected: " + ", ".join(f"{name} {n:,}" for name, n in sorted(others.items())))
        if not downstream:
            output.say("silver and gold keep what they have; `--downstream` takes the new columns over")
    finish(output, result, "redecode failed")
