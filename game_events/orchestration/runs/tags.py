"""Tags of runs: what a run does by itself, why it was started, what sends its alerts (its process: `dead_runs.py`)."""

from itertools import chain, count

from dagster import DagsterInstance, RunsFilter

#: The run brings every layer up to date by itself: automation has nothing to add to what it logs.
CARRIES_ALL = {"game_events/carries": "all"}
#: A run that replaces rows of tables: continuous mode waits for it.
ROW_CHANGING_TAG = "game_events/changes_rows"
#: A continuous run that was stopped by the user or its time limit: the sensor must not start it again.
ENDED_BY_ITSELF = "game_events/ended_by_itself"
#: A continuous run that ended because it had lasted long enough: the next one takes its place.
HANDED_OVER = "game_events/handed_over"
#: Why the run was started.
REASON = "game_events/reason"
#: The run's own process sends its alerts (the command line, where no daemon may be running).
OWN_ALERTS = "game_events/own_alerts"

RUN_KEY_TAG = "dagster/run_key"


def unused_run_key(instance: DagsterInstance, wanted: str) -> str:
    """The wanted key, or the first of `wanted~2`, `wanted~3`, ... that no run has.

    After a registry or topic was recreated, or a sensor's cursor cleared, the same keys are asked for again.
    """
    keys = chain([wanted], (f"{wanted}~{number}" for number in count(2)))
    return next(key for key in keys if not instance.get_runs_count(RunsFilter(tags={RUN_KEY_TAG: key})))
