"""A job run by a command. Dagster itself is imported when it runs."""

from collections.abc import Mapping

import typer

from game_events.cli.common.dagster_home import dagster_home
from game_events.cli.common.job_result import JobResult
from game_events.cli.common.output import Output
from game_events.config.settings import Settings


def run_job(settings: Settings, name: str, config: Mapping[str, object] | None = None, place: str | None = None) -> JobResult:
    """Run a job of one op, with its configuration; whatever happens to it is in the result and in Dagster's event log.

    `place`: a folder or prefix that the command line names for the job, which may use it.
    """
    home = dagster_home(settings)
    from game_events.cli.common.dagster_run import execute  # imports Dagster and the whole graph: 2 s

    return execute(settings, home, name, config or {}, place)


def finish(output: Output, result: JobResult, failed: str = "") -> None:
    """End a command with a run's result: the error after the text `failed`, the JSON object, exit code 1 after a failure."""
    if failed and result.error:
        output.say(f"{failed}: {result.error}")
    # The report's own `success` is about its tables: a run that broke off may have none that failed.
    output.result({**result.report, "success": result.success, "run_id": result.run_id or None, "error": result.error})
    if not result.success:
        raise typer.Exit(1)
