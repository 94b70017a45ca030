"""`game-events run`: one Dagster run over all layers or those selected, or the long one of continuous mode."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from game_events.cli.commands.doctor import show_checks
from game_events.cli.dagster_run import JobResult, finish, run_job, show_run
from game_events.cli.output import Json, Output, words
from game_events.cli.shared_spark import SharedSpark, leave, shared_spark, spark_session, use
from game_events.config.settings import Settings, load_settings
from game_events.errors import GameEventsError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.runs.loop import idle_report
from game_events.pipeline.runs.preflight import PreflightResult
from game_events.pipeline.runs.refresh import ALL, selection_of
from game_events.spark.connect import lost
from game_events.spark.session import begin_session

FULL_REFRESH = "--full-refresh"


class RunCommand(TyperCommand):
    """`--full-refresh` may stand without names: then it means all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a type of typer's own, which is not public
        """Put the word in that was left out."""
        filled: list[str] = []
        for at, word in enumerate(args):
            filled.append(word)
            if word == FULL_REFRESH and (at + 1 == len(args) or args[at + 1].startswith("-")):
                filled.append(ALL)
        return super().parse_args(ctx, filled)


app = typer.Typer(add_completion=False)

Select = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Only these: layers (bronze, silver, gold, unified), asset keys or tables."),
]
Games = Annotated[
    list[str] | None, typer.Option("--games", "--entities", metavar="NAMES", help="Only these games, in silver and gold.")
]
FullRefresh = Annotated[
    list[str] | None,
    typer.Option(
        FULL_REFRESH,
        metavar="[NAMES]",
        help="Replace these by everything the layer before has of them; without names: every layer, bronze only if "
        "GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH is true.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check all that a run needs and say what it would do; writes nothing.")]
Continuous = Annotated[bool, typer.Option("--continuous", help="Go on until Ctrl-C: every table stays up to the topic.")]
Duration = Annotated[float | None, typer.Option("--duration-s", min=0.1, help="End continuous mode after so many seconds.")]
IgnoreIntervals = Annotated[
    bool, typer.Option("--ignore-intervals", help="Refresh gold aggregates before their own interval has passed, too.")
]


@app.command("run", cls=RunCommand)
def run(  # noqa: PLR0913, PLR0917 - the command's options
    select: Select = None,
    games: Games = None,
    full_refresh: FullRefresh = None,
    dry_run: DryRun = False,
    continuous: Continuous = False,
    duration_s: Duration = None,
    ignore_intervals: IgnoreIntervals = False,
    as_json: Json = False,
) -> None:
    """Read the topic up to its end, bring every table up to date, and stop; with --continuous go on until Ctrl-C."""
    if duration_s is not None and not continuous:
        raise typer.BadParameter("only with --continuous", param_hint="--duration-s")
    output = Output(as_json=as_json)
    asked = {"select": words(select), "games": words(games), "full_refresh": words(full_refresh)}
    if dry_run:
        show_dry_run(output, asked)
        return
    settings = load_settings()
    if not continuous:
        result = run_once(output, settings, asked, ignore_intervals=ignore_intervals)
    elif any(asked.values()) or ignore_intervals:
        raise typer.BadParameter("continuous mode is always about everything", param_hint="--continuous")
    else:
        from game_events.cli.commands.continuous import run_continuously  # imports Dagster

        result = run_continuously(output, settings, duration_s)
    finish(output, result)


def run_once(output: Output, settings: Settings, asked: Mapping[str, list[str]], *, ignore_intervals: bool) -> JobResult:
    """A run over all layers, or what was asked for, and its summary; no run is made where there is nothing to do."""
    # A wrong name is said at once, without a run that fails.
    selection_of(Pipeline(settings, no_spark), **asked)
    server = shared_spark(settings)
    if not any(asked.values()):
        on_work = partial(begin_session, settings) if server is None else (lambda: None)
        idle = idle_report(settings, ignore_intervals=ignore_intervals, on_work=on_work)
        if idle is not None:
            show_run(output, idle.to_dict(), settings.names)
            return JobResult("", True, idle.to_dict())
    config = {**asked, "ignore_intervals": ignore_intervals}
    if server is None:
        return run_and_show(output, settings, config)
    return run_on(server, output, settings, config)


def show_dry_run(output: Output, asked: Mapping[str, list[str]]) -> None:
    """Show checks of all that a run needs, and what it would do; exit code 1 if one has failed. `asked`: its selection."""
    # Dagster, which a run that ends before it begins does not need.
    from game_events.definitions import build_defs
    from game_events.orchestration.jobs import dry_run

    try:
        settings = load_settings()
    except GameEventsError as error:
        results = [PreflightResult("settings", False, str(error))]
    else:
        results = dry_run(Pipeline(settings, spark_session), lambda: build_defs(settings), **asked)  # only rules need Spark
    show_checks(output, "dry run: nothing was written", results)


def run_on(server: SharedSpark, output: Output, settings: Settings, asked: Mapping[str, object]) -> JobResult:
    """As `run_and_show`, on the server of `game-events up`; if that goes away, a second run has a JVM of its own."""
    use(server)
    shared = load_settings()
    result = run_and_show(output, shared, asked)
    if result.success or str(lost(shared)) not in (result.error or ""):
        return result
    leave(server)
    output.say("a second run goes on without the shared Spark server")
    return run_and_show(output, settings, asked)


def run_and_show(output: Output, settings: Settings, asked: Mapping[str, object] | None = None) -> JobResult:
    """Run the job with a spinner, then show the summary, or what went wrong."""
    with output.working("running"):
        result = run_job(settings, "refresh", asked)
    if result.report:
        show_run(output, result.report, settings.names)
        output.say(f"tables: {Lakehouse.of(settings).root}")
    if result.error:
        output.say(f"the run failed: {result.error}")
    return result
