"""A job run by a command, and Dagster's folder. Dagster itself is imported when a job runs."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from game_events.cli.common.output import Output
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.jvm.private_folders import private_folder


@dataclass(frozen=True)
class JobResult:
    """How a run ended; `report`: `RunReport.to_dict`, empty if the run failed before there was one."""

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
    output.result({**result.report, "success": result.success, "run_id": result.run_id, "error": result.error})
    if not result.success:
        raise typer.Exit(1)
