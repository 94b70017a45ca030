"""Orphaned-run reaper: runs without a process are marked as failed, and their pool slots freed.

Dagster itself only notices a dead worker while the code server that started it lives: a run of the command line that was
killed, or one that was killed with `game-events up`, would stay "started" and keep its pool's slot for ever (1.13:
`run_monitoring` asks the launcher, and the default one does not know the state of a started run's worker).
"""

import logging

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from game_events.orchestration.runs.own_runs import LAKEHOUSE_TAG, OwnRuns
from game_events.orchestration.runs.process_tag import PROCESS_TAG, worker_is_gone
from game_events.orchestration.runs.tags import OWN_ALERTS

log = logging.getLogger(__name__)
#: A run in one of these has (or had) a process that works on it.
WORKING = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
#: Those, and runs that wait for one.
UNFINISHED = [*WORKING, DagsterRunStatus.QUEUED]
#: Unfinished runs read: a tick has to stay short.
LIMIT = 200


def end_dead_runs(instance: DagsterInstance, own: OwnRuns) -> list[DagsterRun]:
    """Mark own runs of this machine without a living process as failed (those being canceled: as canceled).

    Returns:
        the runs, as they were before.
    """
    # An earlier version of this project tagged its runs with their process alone.
    untagged = [run for run in instance.get_runs(RunsFilter(statuses=WORKING), limit=LIMIT) if LAKEHOUSE_TAG not in run.tags]
    working = {run.run_id: run for run in (*own.runs(instance, LIMIT, statuses=WORKING), *untagged)}.values()
    dead = [run for run in working if worker_is_gone(instance, run)]
    for run in dead:
        now = instance.get_run_by_id(run.run_id)
        if now is None or now.is_finished:
            continue  # it has ended meanwhile
        why = f"its process ({run.tags[PROCESS_TAG]}) is gone: killed, or the machine restarted; the next run finishes its work"
        # It cannot send its own alerts any more.
        instance.add_run_tags(run.run_id, {OWN_ALERTS: "false"})
        if run.status == DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, f"The run was being canceled; {why}")
        else:
            instance.report_run_failed(run, f"The run cannot go on: {why}")
        free_slots(instance, run.run_id)
        log.warning("run_id=%s job=%s dead=true process=%s", run.run_id, run.job_name, run.tags[PROCESS_TAG])
    return dead


def free_slots(instance: DagsterInstance, run_id: str) -> None:
    """Give back the pool slots of a run that has ended; the daemon would do so half a minute later."""
    storage = instance.event_log_storage
    if storage.supports_global_concurrency_limits:
        storage.free_concurrency_slots_for_run(run_id)


def unfinished_runs(instance: DagsterInstance, own: OwnRuns) -> list[DagsterRun]:
    """Own runs that wait or work, newest first; ends dead ones first."""
    end_dead_runs(instance, own)
    return own.runs(instance, LIMIT, statuses=UNFINISHED)
