"""`game-events run --dry-run`: checks of all that a run needs, and what it would do."""

from collections.abc import Mapping

from game_events.cli.common.checks import show_checks
from game_events.cli.common.output import Output
from game_events.cli.common.spark import spark_session
from game_events.config.settings import load_settings
from game_events.definitions import build_defs
from game_events.errors import GameEventsError
from game_events.orchestration.jobs.validate import dry_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.preflight import PreflightResult

DRY_RUN = "dry run: nothing was written"


def show_dry_run(output: Output, asked: Mapping[str, list[str]]) -> None:
    """Show the checks; exit code 1 if one has failed. `asked`: the selection of the run."""
    try:
        settings = load_settings()
    except GameEventsError as error:
        show_checks(output, DRY_RUN, [PreflightResult("settings", False, str(error))])
        return
    pipeline = Pipeline(settings, spark_session)  # only rules need it
    show_checks(output, DRY_RUN, dry_run(pipeline, lambda: build_defs(settings), **asked))
