"""A run of a Dagster job in this process, on the same Dagster instance that the UI shows."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus, ExecuteInProcessResult

from game_events.cli.summary import JobResult
from game_events.config.logging import PROGRESS_LOGGER
from game_events.config.settings import Settings
from game_events.definitions import build_defs
from game_events.errors import STOPS
from game_events.orchestration.alerts import send_own_alerts
from game_events.orchestration.jobs import allow_here
from game_events.orchestration.keys import Keys, execute_here, report_in
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

#: Said of a run that a signal has ended.
STOPPED = "it was stopped by a signal (Ctrl-C, SIGTERM). What was committed stays, and the next run goes on from there"
_progress = logging.getLogger(PROGRESS_LOGGER)


def execute(settings: Settings, home: Path, name: str, config: Mapping[str, object], place: str | None) -> JobResult:
    """Execute a job (`run_job`); `home`: Dagster's folder."""
    if place is not None:
        allow_here(place)
    own, definitions = OwnRuns.of(settings), build_defs(settings)
    job = definitions.resolve_job_def(Keys.of(settings).named(name))
    op = job.nodes_in_topological_order[0]
    with DagsterInstance.from_config(str(home)) as instance:
        # A run that was killed would keep its pool's slot, and this one would wait for it for ever.
        end_dead_runs(instance, own)
        # Where no daemon runs the command line alone keeps the history short.
        drop_old_runs(instance, own, settings.run_history_h, definitions.resolve_asset_graph().asset_check_keys)
        _log_running_runs(instance, own)
        result = execute_here(
            job,
            instance,
            {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}, "ops": {op.name: {"config": dict(config)}}},
            tags={**lakehouse_tag(settings), REASON: "command line", PROCESS_TAG: this_process(), OWN_ALERTS: "true"},
        )
        send_own_alerts(instance, settings, result.run_id)
    return _result(result)


def _result(result: ExecuteInProcessResult) -> JobResult:
    """The last report and error of a run."""
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
                error = STOPPED if cause.cls_name in STOPS else cause.message.strip()
    return JobResult(result.run_id, result.success, report, error)


def _log_running_runs(instance: DagsterInstance, own: OwnRuns) -> None:
    """Log the runs under way: with pools, this run may have to wait for them."""
    for run in own.runs(instance, 20, statuses=[DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]):
        _progress.info(
            "run %s of %s is under way; this one waits where both write the same table", run.run_id[:8], run.job_name
        )
