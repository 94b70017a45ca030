"""Runs a job in this process, on the same Dagster instance that the UI shows."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus, RunsFilter

from game_events.cli.common.output import Output
from game_events.config.logging import PROGRESS_LOGGER
from game_events.config.settings import Settings
from game_events.definitions import build_defs
from game_events.errors import ConfigurationError
from game_events.jvm.private_folders import private_folder
from game_events.orchestration.keys import report_in
from game_events.orchestration.runs.alerts import send_own_alerts
from game_events.orchestration.runs.dead_runs import end_dead_runs
from game_events.orchestration.runs.process_tag import PROCESS_TAG, this_process
from game_events.orchestration.runs.retention import drop_old_runs
from game_events.orchestration.runs.tags import OWN_ALERTS, REASON

_progress = logging.getLogger(PROGRESS_LOGGER)


@dataclass(frozen=True)
class JobResult:
    """How a run ended.

    Attributes:
        run_id: Dagster's id of the run.
        success: nothing failed.
        report: the run's report (`RunReport.to_dict`); empty if it failed before there was one.
        error: what went wrong, in the words of the error.
    """

    run_id: str
    success: bool
    report: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def dagster_home(settings: Settings) -> Path:
    """Dagster's folder: ``DAGSTER_HOME``, or `dagster` below the state folder.

    The one below the state folder gets a `dagster.yaml`: that of the folder where the command is run, if it has one; else that
    of this package. So does a ``DAGSTER_HOME`` that is new or empty; in any other one nothing is written.

    Raises:
        ConfigurationError: `DAGSTER_HOME` is no absolute path (Dagster asks for one), or the folder cannot be made or read.
    """
    named = os.environ.get("DAGSTER_HOME")
    home = Path(named) if named else (settings.state_dir / "dagster").resolve()
    if not home.is_absolute():
        raise ConfigurationError(
            f"DAGSTER_HOME: {named!r} is not an absolute path; unset it to use {settings.state_dir}/dagster"
        )
    if named:
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not any(home.iterdir()):
                # Without one Dagster warns at each start, sends its statistics, and knows of no pools.
                shutil.copyfile(dagster_file("dagster.yaml"), home / "dagster.yaml")
        except OSError as error:
            raise ConfigurationError(f"DAGSTER_HOME: the folder {home} cannot be made: {error.strerror}") from error
    else:
        private_folder(home)
        shutil.copyfile(dagster_file("dagster.yaml"), home / "dagster.yaml")
    return home


def dagster_file(name: str) -> Path:
    """`dagster.yaml` or `workspace.yaml`: the one of the current folder, or the one that comes with this package."""
    here = Path(name)
    return here.resolve() if here.is_file() else Path(__file__).parent / "instance" / name


def run_job(settings: Settings, name: str, op: str | None = None, config: Mapping[str, object] | None = None) -> JobResult:
    """Run a job; whatever happens to it is in the result and in Dagster's event log.

    Args:
        settings: the settings.
        name: the job.
        op: one of its ops that is configured.
        config: that op's configuration.
    """
    home = dagster_home(settings)
    job = build_defs(settings).resolve_job_def(name)
    with DagsterInstance.from_config(str(home)) as instance:
        # A run that was killed would keep its pool's slot, and this one would wait for it for ever.
        end_dead_runs(instance)
        # Where no daemon runs the command line alone keeps the history short.
        drop_old_runs(instance, settings.run_history_h)
        _log_running_runs(instance)
        result = job.execute_in_process(
            instance=instance,
            raise_on_error=False,
            run_config={
                "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
                "ops": {op: {"config": dict(config or {})}} if op else {},
            },
            tags={REASON: "command line", PROCESS_TAG: this_process(), OWN_ALERTS: "true"},
        )
        send_own_alerts(instance, settings, result.run_id)
    report: dict[str, Any] = {}
    error: str | None = None
    for event in result.all_events:
        if event.event_type == DagsterEventType.STEP_OUTPUT:
            report = report_in(event.step_output_data.metadata) or report
        elif event.event_type == DagsterEventType.STEP_FAILURE:
            data = event.step_failure_data
            if data.user_failure_data is not None:
                report = report_in(data.user_failure_data.metadata) or report
                error = data.user_failure_data.description
            elif data.error is not None:
                cause = data.error.cause or data.error
                error = cause.message.strip()
    return JobResult(result.run_id, result.success, report, error)


def finish(output: Output, result: JobResult, failed: str = "") -> None:
    """End a command with a run's result: the error after the text `failed`, the JSON object, exit code 1 after a failure."""
    if failed and result.error:
        output.say(f"{failed}: {result.error}")
    # The report's own `success` is about its tables: a run that broke off may have none that failed.
    output.result({**result.report, "success": result.success, "run_id": result.run_id, "error": result.error})
    if not result.success:
        raise typer.Exit(1)


def _log_running_runs(instance: DagsterInstance) -> None:
    """Log the runs under way: with pools, this run may have to wait for them."""
    for run in instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING])):
        _progress.info(
            "run %s of %s is under way; this one waits where both write the same table", run.run_id[:8], run.job_name
        )
