"""The sensor that ends runs whose process is gone."""

import dagster as dg

from game_events.assets.run_hygiene import end_dead_runs


@dg.sensor(
    name="dead_runs",
    description="Runs of this machine whose process was killed are marked as failed, and their pool slots given back.",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Look at the unfinished runs; it never starts one."""
    ended = end_dead_runs(context.instance)
    if not ended:
        return dg.SkipReason("every unfinished run has its process")
    return dg.SkipReason(f"ended {len(ended)} runs whose process is gone: {', '.join(run.run_id[:8] for run in ended)}")
