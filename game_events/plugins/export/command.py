"""`game-events export`: rows sent to an HTTP receiver, failed calls, status, and how many tasks a rate needs."""

import math
from typing import Annotated, Any

import typer

from game_events.cli.dagster_run import finish, run_job
from game_events.cli.output import Json, Output, words
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import games_of
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.context import Pipeline, no_spark
from game_events.plugins.export.delivery import ExportTarget
from game_events.plugins.export.run import export_status
from game_events.plugins.export.settings import ExportSettings

app = typer.Typer(help="Rows POSTed to an HTTP receiver (GAME_EVENTS_REST_URL).", no_args_is_help=True, add_completion=False)
#: Calls, and rows, per second of one core; measured with the receiver on the same machine, and rounded down.
CALLS_PER_CORE = 2_000
ROWS_PER_CORE = 25_000
#: Planned utilization of a core.
BUSY = 0.7

Resend = Annotated[list[str] | None, typer.Option(metavar="GAMES", help="Send all rows of these games again, under new keys.")]
GoOn = Annotated[list[str] | None, typer.Option(metavar="GAMES", help="Of these games send only what comes from now on.")]
Files = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Rows of a folder of Parquet files, or of a Delta table, instead.")
]
Statuses = Annotated[list[int] | None, typer.Option("--status", help="Only what was answered with this; may be repeated.")]


@app.command("run")
def run(resend: Resend = None, go_on: GoOn = None, files: Files = None, as_json: Json = False) -> None:
    """Send what waits and what is new; the same job that automation starts."""
    _export(Output(as_json=as_json), {"resend": _games(resend), "go_on": _games(go_on), "files": files}, place=files)


@app.command("replay")
def replay(status: Statuses = None, as_json: Json = False) -> None:
    """Send failed calls again, under the keys they had; then what else waits or is new."""
    _export(Output(as_json=as_json), {"replay": True, "replay_statuses": status or []})


@app.command("status")
def status(as_json: Json = False) -> None:
    """How many rows wait, were delivered, have failed, and why; from the tables, without a call."""
    output = Output(as_json=as_json)
    settings = load_settings()
    counts = export_status(Pipeline(settings, no_spark))
    is_on = ExportSettings.of(settings).rest_url is not None
    where = ExportTarget.of(settings).shown if is_on else "off (GAME_EVENTS_REST_URL is not set)"
    output.say(f"export: {where}")
    names = {"delivered": "delivered", "waiting": "waiting", "failed": "dead"}
    lines = [(shown, counts[name]["chunks"], counts[name]["rows"]) for shown, name in names.items()]
    output.table("rows by what became of them", ("", "calls", "rows"), lines)
    if counts["dead_letters"]:
        columns = ("source", "status", "reason", "chunks", "rows")
        output.table("failed calls", columns, [[entry[c] for c in columns] for entry in counts["dead_letters"]])
        output.say("send them again when the cause is gone: `game-events export replay [--status N]`")
    output.result(counts)


@app.command("size")
def size(
    rows_per_s: Annotated[float, typer.Option(min=0.001, help="Rows a second that shall arrive.")],
    latency_ms: Annotated[float, typer.Option(min=0.001, help="How long the receiver takes for a call.")],
    rows_per_call: Annotated[int, typer.Option(min=1, help="Rows of one call.")] = 100,
    calls_per_task: Annotated[int, typer.Option(min=1, help="Calls under way at the same time in one task.")] = 8,
    as_json: Json = False,
) -> None:
    """How many tasks and cores a rate needs, and why."""
    output = Output(as_json=as_json)
    calls_per_s = rows_per_s / rows_per_call
    # Little's law. Waiting needs no core: cores follow from the measured processor time of a call and a row (docs/export.md).
    at_once = max(1, math.ceil(round(calls_per_s * latency_ms / 1000, 9)))
    tasks = math.ceil(at_once / calls_per_task)
    cores = max(1, math.ceil((calls_per_s / CALLS_PER_CORE + rows_per_s / ROWS_PER_CORE) / BUSY))
    output.say(f"{rows_per_s:,g} rows/s / {rows_per_call:,} rows per call = {calls_per_s:,.1f} calls/s")
    output.say(
        f"{calls_per_s:,.1f} calls/s x {latency_ms:g} ms each = {at_once:,} calls under way at the same time (Little's law)"
    )
    output.say(
        f"{at_once:,} / {calls_per_task} calls per task = {tasks:,} tasks: each takes a slot of Spark "
        f"(GAME_EVENTS_REST_TASKS={tasks}, GAME_EVENTS_REST_CALLS_PER_TASK={calls_per_task}; one machine: "
        f"GAME_EVENTS_SPARK_MASTER='local[{tasks}]'). One call at a time would take {at_once:,}"
    )
    output.say(
        f"they wait most of the time: at {CALLS_PER_CORE:,} calls and {ROWS_PER_CORE:,} rows a second for each "
        f"core, {BUSY:.0%} busy, {cores:,} core{'s' if cores > 1 else ''} will do"
    )
    given = {
        "rows_per_s": rows_per_s,
        "latency_ms": latency_ms,
        "rows_per_call": rows_per_call,
        "calls_per_task": calls_per_task,
    }
    needs = {"calls_per_s": calls_per_s, "calls_at_once": at_once, "tasks": tasks, "cores": cores, "one_by_one": at_once}
    output.result({**given, **needs})


def _export(output: Output, config: dict[str, Any], place: str | None = None) -> None:
    settings = load_settings()
    ExportTarget.of(settings)  # what is wrong with it is said before Spark starts
    with output.working("exporting"):
        result = run_job(settings, "rest_export", config, place)
    done = result.report.get("export")
    if done:
        _show(output, done)
    finish(output, result, "the export failed")


def _show(output: Output, done: dict[str, Any]) -> None:
    if not done["calls"]:
        output.say("nothing new to send" if not done["held"] else "nothing was sent")
    else:
        latency = done["latency_ms"].get("p50")
        took = f", {latency:g} ms each (median)" if latency is not None else ""
        output.say(
            f"{done['delivered_rows']:,} rows delivered in {done['seconds']:.1f} s ({done['rows_per_s']:,.0f}/s): "
            f"{done['calls']:,} calls{took}, {done['tasks']} tasks"
        )
        if done["tasks_at_once"] < done["tasks"]:
            output.say(
                f"only {done['tasks_at_once']} of {done['tasks']} tasks ran at the same time: Spark has no more slots "
                f"(one machine: GAME_EVENTS_SPARK_MASTER='local[{done['tasks']}]')"
            )
    if done["dead_rows"]:
        output.say(f"{done['dead_rows']:,} rows are of failed calls: `game-events export status` has the reasons")
    if done["waiting_chunks"]:
        output.say(f"{done['waiting_chunks']:,} calls wait for the next run")


def _games(given: list[str] | None) -> list[str]:
    """Names of games; `all`: every game that has a silver table."""
    names = words(given)
    if not names:
        return []
    there = sorted(games_of(Lakehouse.of(load_settings())))
    if names == ["all"]:
        return there
    unknown = sorted(set(names).difference(there))
    if unknown:
        raise ConfigurationError(f"there is no game {', '.join(unknown)}; there are: {', '.join(there) or 'none'}")
    return names
