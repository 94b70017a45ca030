"""`game-events run`: one Dagster run over all layers, or the long one of continuous mode."""

from __future__ import annotations

from typing import Annotated

import typer

from game_events.cli.continuous import run_continuously
from game_events.cli.dagster_run import JobResult, run_job
from game_events.cli.options import Json
from game_events.cli.output import Output
from game_events.cli.summary import show_run
from game_events.lakehouse.tables import Lakehouse
from game_events.settings import Settings, load_settings

Continuous = Annotated[bool, typer.Option("--continuous", help="Go on until Ctrl-C: every table stays up to the topic.")]
Duration = Annotated[float | None, typer.Option("--duration-s", min=0.1, help="End continuous mode after so many seconds.")]

IgnoreIntervals = Annotated[
    bool, typer.Option("--ignore-intervals", help="Refresh gold aggregates before their own interval has passed, too.")
]


def run(
    continuous: Continuous = False,
    duration_s: Duration = None,
    ignore_intervals: IgnoreIntervals = False,
    as_json: Json = False,
) -> None:
    """Read the topic up to its end, bring every table up to date, and stop; with --continuous go on until Ctrl-C."""
    if duration_s is not None and not continuous:
        raise typer.BadParameter("only with --continuous", param_hint="--duration-s")
    output = Output(as_json=as_json)
    settings = load_settings()
    if continuous:
        result = run_continuously(output, settings, duration_s)
    else:
        result = run_and_show(output, settings, ignore_intervals=ignore_intervals)
    output.result({"success": result.success, "run_id": result.run_id, "error": result.error, **result.report})
    if not result.success:
        raise typer.Exit(1)


def run_and_show(output: Output, settings: Settings, *, ignore_intervals: bool = False) -> JobResult:
    """Run the job with a spinner, then show the summary, or what went wrong."""
    with output.working("running"):
        result = run_job(settings, "refresh", "refresh_all_layers", {"ignore_intervals": ignore_intervals})
    if result.report:
        show_run(output, result.report)
        output.say(f"tables: {Lakehouse(settings.lakehouse).root}")
    if result.error:
        output.say(f"the run failed: {result.error}")
    return result
