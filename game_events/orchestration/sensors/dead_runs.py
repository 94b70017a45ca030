"""The sensor that ends runs without a process, and deletes those that ended long ago."""

import dagster as dg

from game_events.config.settings import load_settings
from game_events.errors import GameEventsError
from game_events.orchestration.runs.dead_runs import end_dead_runs
from game_events.orchestration.runs.retention import drop_old_runs
from game_events.orchestration.sensors.ticks import masked


@dg.sensor(
    name="dead_runs",
    description="Runs of this machine with a killed process are marked as failed, and their pool slots given back; runs "
    "that ended more than `RUN_HISTORY_H` ago are deleted from Dagster's storage.",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
@masked
def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """End dead runs and delete old ones; never starts one."""
    ended = end_dead_runs(context.instance)
    try:
        dropped = drop_old_runs(context.instance, load_settings().run_history_h)
        said = f"; deleted {dropped} that ended long ago" if dropped else ""
    except GameEventsError as error:  # dead runs are ended whatever the settings are
        said = f"; those that ended long ago stay: {error}"
    if not ended:
        return dg.SkipReason(f"every unfinished run has its process{said}")
    return dg.SkipReason(f"ended {len(ended)} runs without a process: {', '.join(run.run_id[:8] for run in ended)}{said}")
