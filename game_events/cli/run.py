"""Commands that make runs, and what a run needs.

`game-events run`: one Dagster run over all layers or those selected, or the long ones of continuous mode.

`game-events doctor`: checks everything a run needs, and says what to do about what is missing; Dagster is not imported.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

from game_events.cli.dagster_run import INSTANCE_FILE, JobResult, find_dagster_home, finish, run_job, show_run
from game_events.cli.output import Json, Output, words
from game_events.cli.shared_spark import leave, shared_spark, use
from game_events.config.settings import Settings, load_settings
from game_events.errors import GameEventsError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.context import Pipeline, no_spark
from game_events.pipeline.runs.loop import idle_report
from game_events.pipeline.runs.preflight import Check, Hint, PreflightResult, state_checks, validation
from game_events.pipeline.runs.refresh import ALL, selection_of
from game_events.spark.connect import lost
from game_events.spark.session import begin_session, new_session

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
    if continuous and (any(asked.values()) or ignore_intervals):
        raise typer.BadParameter("continuous mode is always about everything", param_hint="--continuous")
    if continuous:
        from game_events.cli.continuous import run_continuously  # imports Dagster

        result = run_continuously(output, settings, duration_s)
    else:
        result = run_once(output, settings, asked, ignore_intervals=ignore_intervals)
    finish(output, result)


def run_once(output: Output, settings: Settings, asked: Mapping[str, list[str]], *, ignore_intervals: bool) -> JobResult:
    """A run over all layers, or what was asked for, and its summary; no run is made where there is nothing to do.

    On the server of `game-events up`, if it is there; if that goes away, a second run has a JVM of its own.
    """
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
    if server is not None:
        use(server)
        shared = load_settings()
        result = run_and_show(output, shared, config)
        if result.success or str(lost(shared)) not in (result.error or ""):
            return result
        leave(server)
        output.say("a second run goes on without the shared Spark server")
    return run_and_show(output, settings, config)


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
        pipeline = Pipeline(settings, partial(new_session, settings))  # only rules need Spark
        results = dry_run(pipeline, lambda: build_defs(settings), **asked)
    show_checks(output, "dry run: nothing was written", results)


def doctor(as_json: Json = False) -> None:
    """Check Java, the Java parts, Kafka, the registry, the lakehouse; exit code 1 if one fails. Then how the tables stand."""
    output = Output(as_json=as_json)
    settings = load_settings()
    pipeline = Pipeline(settings, partial(new_session, settings))
    instance: dict[str, Check] = {"dagster": lambda: check_instance(find_dagster_home(settings))}
    show_checks(output, "doctor", validation(pipeline, instance | state_checks(pipeline)))


def show_checks(output: Output, title: str, results: Sequence[PreflightResult]) -> None:
    """Show all of them; exit code 1 if one has failed."""
    rows = [(c.check, "FAILED" if not c.ok else "LOOK" if c.look else "ok", c.detail) for c in results]
    output.table(title, ("check", "", "detail"), rows)
    healthy = all(c.ok for c in results)
    output.result({"success": healthy, "checks": [c.to_dict() for c in results]}, success=healthy)


LOGGER = "game_events"
#: What a `dagster.yaml` can lack, and what comes of it.
NO_POOLS = "no pool limit (concurrency.pools.default_limit): two runs may do the same layer's work twice"
NO_MONITORING = "no run monitoring (run_monitoring.enabled): a run that never starts or never stops is not ended"
NO_LOGGER = f"the logger {LOGGER} is not managed (python_logs.managed_python_loggers): progress is in no run's log"


def check_instance(home: Path) -> str:
    """What the instance in a folder lacks, as its `dagster.yaml` says; a hint, no failure: runs are right without it."""
    if not home.is_dir() or not any(home.iterdir()):
        return f"{home}: made by the first run"
    file = home / INSTANCE_FILE
    config = yaml.safe_load(file.read_text()) if file.exists() else {}
    concurrency = _part(config, "concurrency")
    # The second name is of Dagster's versions before pools.
    limited = "default_limit" in _part(concurrency, "pools") or "default_op_concurrency_limit" in concurrency
    managed = {"root", LOGGER} & set(_part(config, "python_logs").get("managed_python_loggers") or ())
    monitored = _part(config, "run_monitoring").get("enabled", False)
    there = {NO_POOLS: limited, NO_MONITORING: monitored, NO_LOGGER: managed}
    lacks = [lack for lack, is_there in there.items() if not is_there]
    if not lacks:
        return f"{home}: limits its pools, monitors runs, shows their progress"
    return Hint(f"{file}: {'; '.join(lacks)}; docs/dagster.md has what to add")


def _part(config: object, name: str) -> Mapping[str, Any]:
    part = config.get(name) if isinstance(config, Mapping) else None
    return part if isinstance(part, Mapping) else {}
