"""What a command says of the run that it has executed."""

import dagster as dg
import pytest

from game_events.cli.dagster_run import STOPPED, _result


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (dg.DagsterExecutionInterruptedError(), STOPPED),
        (KeyError("p"), "KeyError: 'p'"),
        (dg.Failure("the broker is away"), "the broker is away"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_run_that_was_stopped_is_called_stopped_and_any_other_by_its_error(raised, said):
    @dg.op
    def step():
        raise raised

    @dg.job
    def job():
        step()

    result = _result(job.execute_in_process(raise_on_error=False))
    assert (result.success, result.error) == (False, said)
