"""What this project uses of Dagster's private interfaces works in the version that is installed."""

import os

import dagster as dg
import pytest

from game_events.orchestration.keys import plan_process
from game_events.orchestration.runs import PROCESS_TAG, OwnRuns, end_dead_runs, mark_process, process_tag
from game_events_tests.support.fixtures.dagster import PROJECT

ANY = {"game_events/lakehouse": "/lake/*"}


@dg.resource
def marking(context: dg.InitResourceContext) -> None:
    """Tags the run as the pipeline's resource does."""
    mark_process(context)


@dg.op(required_resource_keys={"marking"})
def one() -> int:
    return os.getpid()


@dg.op(required_resource_keys={"marking"})
def two(context: dg.OpExecutionContext, before: int) -> None:
    # The process of the step before has ended.
    ended = end_dead_runs(context.instance, OwnRuns(ANY["game_events/lakehouse"]))
    assert not ended, "a healthy run was ended"
    assert before != os.getpid() or context.get_tag("executor") == "in_process"


@dg.job(executor_def=dg.multiprocess_executor, resource_defs={"marking": marking}, tags=ANY)
def in_processes() -> None:
    """A job with a process for each step."""
    two(before=one())


@dg.job(executor_def=dg.in_process_executor, resource_defs={"marking": marking}, tags={**ANY, "executor": "in_process"})
def in_one_process() -> None:
    """The same in one process."""
    two(before=one())


@pytest.mark.parametrize("job", [in_one_process, in_processes])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_is_tagged_with_the_process_that_executes_its_plan_not_with_that_of_a_step(instance_on_disk, job, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    with dg.execute_job(dg.reconstructable(job), instance_on_disk) as result:
        assert result.success
        run = instance_on_disk.get_run_by_id(result.run_id)
    assert run.tags[PROCESS_TAG] == process_tag(os.getpid())


def test_outside_of_a_run_there_is_no_such_process():
    assert plan_process() is None
