"""A job run by a command. Dagster itself is imported when it runs."""

from collections.abc import Mapping

from game_events.cli.common.dagster_home import dagster_home
from game_events.cli.common.summary import JobResult
from game_events.config.settings import Settings


def run_job(settings: Settings, name: str, config: Mapping[str, object] | None = None, place: str | None = None) -> JobResult:
    """Run a job of one op, with its configuration; whatever happens to it is in the result and in Dagster's event log.

    `place`: a folder or prefix that the command line names for the job, which may use it.
    """
    home = dagster_home(settings)
    from game_events.cli.common.dagster_run import execute  # imports Dagster and the whole graph: 2 s

    return execute(settings, home, name, config or {}, place)
