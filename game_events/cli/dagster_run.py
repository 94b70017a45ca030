"""Dagster of the command line: its folder, a job run in this process, the run's result, and what people see of it.

The folder is that of the instance that the UI shows, and `dagster dev` and `dg dev` use it too (docs/dagster.md). Dagster
itself is imported when a job runs: with the whole graph that takes two seconds.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dotenv import dotenv_values

from game_events.cli.output import Output
from game_events.config.logging import PROGRESS_LOGGER
from game_events.config.names import Names
from game_events.config.settings import Settings, load_settings
from game_events.errors import STOPS, ConfigurationError
from game_events.jvm.private_folders import private_folder
from game_events.lakehouse.tables import REPORTED, Layer
from game_events.pipeline.reporting.result import RunResult
from game_events.plugin import parts

if TYPE_CHECKING:
    from dagster import ExecuteInProcessResult

VARIABLE, STATE_VARIABLE = "DAGSTER_HOME", "GAME_EVENTS_STATE_DIR"
#: Read by Dagster's own commands, too, from the folder in which they are started.
ENV_FILE = Path(".env")
INSTANCE_FILE = "dagster.yaml"
WORKSPACE_FILE = "workspace.yaml"
#: File beside `dagster.yaml`: digest of the project's own text that was last written there, or that people were told of.
DIGEST_FILE = ".dagster.yaml.sha256"
#: Said of a run that a signal has ended.
STOPPED = "it was stopped by a signal (Ctrl-C, SIGTERM). What was committed stays, and the next run goes on from there"
#: What they are called without the setting.
USUAL = Names()
#: More games than this are summed up in one line.
GAMES_SHOWN = 20

_log = logging.getLogger(__name__)

_progress = logging.getLogger(PROGRESS_LOGGER)


def find_dagster_home(settings: Settings) -> Path:
    """Dagster's folder: ``DAGSTER_HOME``, or `dagster` below the state folder; nothing is made or changed.

    ``DAGSTER_HOME`` is read from the environment and, unless that names a state folder, from `.env`.

    Raises:
        ConfigurationError: `DAGSTER_HOME` is no absolute path (Dagster asks for one).
    """
    named = os.environ.get(VARIABLE) or (None if os.environ.get(STATE_VARIABLE) else dotenv_values(ENV_FILE).get(VARIABLE))
    if named and not Path(named).is_absolute():
        raise ConfigurationError(f"{VARIABLE}: {named!r} is not an absolute path; unset it to use {settings.state_dir}/dagster")
    return Path(named) if named else (settings.state_dir / "dagster").resolve()


def dagster_home(settings: Settings) -> Path:
    """Dagster's folder, made where it is missing.

    The one below the state folder gets a `dagster.yaml`, and so does a ``DAGSTER_HOME`` that is new or empty: without one
    Dagster warns at each start, sends its statistics, and knows of no pools. One that was edited stays as it is.

    Raises:
        ConfigurationError: `DAGSTER_HOME` is no absolute path, or the folder cannot be made or read.
    """
    home = find_dagster_home(settings)
    is_own = home == (settings.state_dir / "dagster").resolve()
    if is_own:
        private_folder(home)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_own or (home / DIGEST_FILE).exists() or not any(home.iterdir()):
            _write_instance_file(home)
    except OSError as error:
        raise ConfigurationError(f"{VARIABLE}: the folder {home} cannot be made: {error.strerror}") from error
    return home


def dagster_file(name: str) -> Path:
    """`dagster.yaml` or `workspace.yaml`: the one of the current folder, or the one that comes with this package."""
    here = Path(name)
    return here.resolve() if here.is_file() else Path(__file__).parent / "instance" / name


def share_dagster_home(settings: Settings) -> None:
    """Make Dagster's folder and name it in `.env`, so that `dagster dev` and `dg dev` in this folder use the same one.

    No line is written if `.env` has one, or if the environment names the folder or the state folder; a file that cannot be
    written is a warning.
    """
    home = dagster_home(settings)
    if VARIABLE in os.environ or VARIABLE in dotenv_values(ENV_FILE) or os.environ.get(STATE_VARIABLE):
        return
    line = f"{VARIABLE}={shlex.quote(str(home))}"
    try:
        before = ENV_FILE.read_text() if ENV_FILE.exists() else ""
        with ENV_FILE.open("a") as file:
            file.write(("" if before.endswith("\n") or not before else "\n") + f"{line}\n")
    except OSError as error:
        # Only Dagster's own commands need the line.
        _log.warning("%s cannot be written (%s): set %s for `dagster dev`", ENV_FILE.resolve(), error.strerror, line)


def _write_instance_file(home: Path) -> None:
    """Write `dagster.yaml`, unless there is one that this project has not written."""
    source = dagster_file(INSTANCE_FILE)
    target = home / INSTANCE_FILE
    record = home / DIGEST_FILE
    text = source.read_bytes()
    present = target.read_bytes() if target.exists() else None
    known = record.read_text() if record.exists() else None
    if present is None or (present != text and _digest(present) == known):
        new = home / f".{INSTANCE_FILE}.{os.getpid()}"  # another process may read the file at the same time
        new.write_bytes(text)
        new.replace(target)
    elif present != text and known != _digest(text):
        _log.warning("%s is not this version's own and stays as it is; compare it with %s", target, source)
    if known != _digest(text):
        record.write_text(_digest(text))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


@dataclass(frozen=True)
class JobResult:
    """How it ended; `report`: `RunReport.to_dict`, empty if the run failed before there was one.

    `run_id`: Dagster's; empty: there was nothing to do, so there is no run.
    """

    run_id: str
    success: bool
    report: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def run_job(settings: Settings, name: str, config: Mapping[str, object] | None = None, place: str | None = None) -> JobResult:
    """Run a job of one op, with its configuration; whatever happens to it is in the result and in Dagster's event log.

    `place`: a folder or prefix that the command line names for the job, which may use it.
    """
    home = dagster_home(settings)
    from dagster import DagsterInstance, DagsterRunStatus

    from game_events.definitions import build_defs
    from game_events.orchestration.jobs import allow_here
    from game_events.orchestration.keys import Keys, execute_here
    from game_events.orchestration.runs import (
        OWN_ALERTS,
        PROCESS_TAG,
        REASON,
        OwnRuns,
        drop_old_runs,
        end_dead_runs,
        lakehouse_tag,
        this_process,
    )

    if place is not None:
        allow_here(place)
    own = OwnRuns.of(settings)
    definitions = build_defs(settings)
    job = definitions.resolve_job_def(Keys.of(settings).named(name))
    op = job.nodes_in_topological_order[0]
    with DagsterInstance.from_config(str(home)) as instance:
        # A run that was killed would keep its pool's slot, and this one would wait for it for ever.
        end_dead_runs(instance, own)
        # Where no daemon runs the command line alone keeps the history short.
        drop_old_runs(instance, own, settings.run_history_h, definitions.resolve_asset_graph().asset_check_keys)
        # With pools, this run may have to wait for them.
        for run in own.runs(instance, 20, statuses=[DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]):
            _progress.info(
                "run %s of %s is under way; this one waits where both write the same table", run.run_id[:8], run.job_name
            )
        ended = execute_here(
            job,
            instance,
            {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}, "ops": {op.name: {"config": dict(config or {})}}},
            tags={**lakehouse_tag(settings), REASON: "command line", PROCESS_TAG: this_process(), OWN_ALERTS: "true"},
        )
        for run_ended in parts("command_run_ended"):
            run_ended(instance, settings, ended.run_id)
    return _result(ended)


def _result(ended: ExecuteInProcessResult) -> JobResult:
    """The last report and error of a run."""
    from dagster import DagsterEventType

    from game_events.orchestration.keys import report_in

    report: dict[str, Any] = {}
    error: str | None = None
    for event in ended.all_events:
        if event.event_type == DagsterEventType.STEP_OUTPUT:
            report = report_in(event.step_output_data.metadata) or report
        elif event.event_type == DagsterEventType.STEP_FAILURE:
            data = event.step_failure_data
            if data.user_failure_data is not None:
                report = report_in(data.user_failure_data.metadata) or report
                error = data.user_failure_data.description
            elif data.error is not None:
                cause = data.error.cause or data.error
                error = STOPPED if cause.cls_name in STOPS else cause.message.strip()
    return JobResult(ended.run_id, ended.success, report, error)


def finish(output: Output, result: JobResult, failed: str = "") -> None:
    """End a command with a run's result: the error after the text `failed`, the JSON object, exit code 1 after a failure."""
    if failed and result.error:
        output.say(f"{failed}: {result.error}")
    # The report's own `success` is about its tables: a run that broke off may have none that failed.
    body = {**result.report, "success": result.success, "run_id": result.run_id or None, "error": result.error}
    output.result(body, success=result.success)


def show_run(output: Output, report: dict[str, Any], words: Names = USUAL) -> None:
    """Rows by layer and game, throughput, lag, where the tables are."""
    _show_notices(output, report)
    for name, counts in report.get("sources", {}).items():
        output.say(f"source {name}: " + ", ".join(f"{what.replace('_', ' ')} {value}" for what, value in counts.items()))
    if not report["tables"] and not report["errors"]:
        unrouted = sum(report["unrouted"].values())
        nothing_new = "nothing new: every table is up to date, and none was written"
        to_no_table = (
            f"no table was written: {unrouted:,} new rows of bronze belong to none (`game-events doctor` shows their names)"
        )
        output.say(to_no_table if unrouted else nothing_new)
        _show_counters(output, report)
        return
    _show_layers(output, report["rows"], report["seconds"])
    if report["games"]:
        _show_games(output, report["games"], words)
    _show_counters(output, report)
    if report["rules"]:
        _show_rules(output, report, words)
    ids = ", ".join(map(str, report["schema_ids"]))
    output.say(f"lag: {report['lag']:,} records; schema ids seen: {ids or '-'}")
    for error in report["errors"]:
        output.say(f"FAILED {error['table']}: {error['error']}")


def _show_notices(output: Output, report: dict[str, Any]) -> None:
    """What a run has to say beside the rows: notices, postponed tables, files."""
    for notice in report["notices"]:
        output.say(notice)
    if report["postponed"]:
        output.say(f"not due yet: {', '.join(report['postponed'])} (--ignore-intervals refreshes them at once)")
    if "files" in report:
        output.say("files: " + ", ".join(f"{count:,} {what}" for what, count in report["files"].items()))


def _show_layers(output: Output, rows: Mapping[str, int], seconds: Mapping[str, float]) -> None:
    lines = []
    for layer in (*REPORTED, *(own for own in rows if own not in REPORTED)):
        took = seconds.get(layer, 0.0)
        # Rows go to quarantine on the way to bronze.
        rate = f"{rows[layer] / took:,.0f}/s" if took and rows[layer] and layer != Layer.QUARANTINE else "-"
        lines.append((layer, rows[layer], f"{took:.1f} s" if layer in seconds else "-", rate))
    output.table("rows by layer (gold and unified: all rows of what changed)", ("layer", "rows", "took", "rate"), lines)


def _show_games(output: Output, games: Mapping[str, Mapping[str, int]], words: Names) -> None:
    lines = [(game, counts.get(Layer.SILVER, 0), counts.get(Layer.GOLD, 0)) for game, counts in sorted(games.items())]
    more = lines[GAMES_SHOWN:]
    lines = lines[:GAMES_SHOWN]
    if more:
        lines.append((f"{len(more)} more", sum(silver for _, silver, _ in more), sum(gold for _, _, gold in more)))
    keys = "players" if words.keys == USUAL.keys else words.keys
    output.table(f"by {words.entity}", (words.entity, "silver rows added", f"{keys} in gold"), lines)


def _show_counters(output: Output, report: dict[str, Any]) -> None:
    """Counters that are printed unless they are 0: those by name, then the others with their meaning."""
    printed = {
        f.name: f.metadata["printed"] for f in fields(RunResult) if f.metadata["printed"] is not None and report.get(f.name)
    }
    for name, meaning in sorted(printed.items(), key=lambda item: item[1] != ""):
        value = report[name]
        said = f"{value:,} {meaning}" if meaning else ", ".join(f"{why} {n:,}" for why, n in sorted(value.items()))
        output.say(f"{name.replace('_', ' ')}: {said}")


def _show_rules(output: Output, report: dict[str, Any], words: Names) -> None:
    """Each rule that was violated: by how many rows of how many games, and what became of them."""
    rules = report["rules"]
    violated = [
        (r["layer"], r["rule"], r["action"], r["rows"], r["violated"], len(r["violated_by_game"]))
        for r in rules
        if r["violated"]
    ]
    if not violated:
        output.say(f"rules: all {len(rules)} hold")
        return
    output.table("rules that were violated", ("layer", "rule", "action", "rows", "violated", words.entities), violated)
    output.say(
        f"rows kept out of silver by rules: dropped {report['dropped']:,}, in quarantine {report['quarantined_by_rules']:,}"
    )


if __name__ == "__main__":  # `make setup`
    share_dagster_home(load_settings())
