"""Keys of requested runs: Dagster drops a request whose key it has seen, without a word."""

from __future__ import annotations

from itertools import count

from dagster import DagsterInstance, RunsFilter

RUN_KEY_TAG = "dagster/run_key"


def unused_run_key(instance: DagsterInstance, wanted: str) -> str:
    """The wanted key, or the first of `wanted~2`, `wanted~3`, ... that no run has.

    A registry or topic that was made anew, a sensor whose cursor was cleared: each gives things seen before their old keys.
    """
    for number in count(1):
        key = wanted if number == 1 else f"{wanted}~{number}"
        if not instance.get_runs_count(RunsFilter(tags={RUN_KEY_TAG: key})):
            return key
    raise AssertionError("unreachable")
