"""What errors decide: retries, pauses and the words of a failure. No Spark."""

from types import SimpleNamespace

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, ConflictError, DataError, TransientError
from game_events.orchestration.runs import KAFKA_IS_AWAY, MAX_DELAY_S, delay_s, errors_decide


def settings(**changes):
    return load_settings(**({"mode": "production", "max_retries": 2, "retry_delay_s": 0.01} | changes))


def run(error, times=99, **changes):
    """A job whose op meets an error so many times; (result, number of attempts)."""
    attempts = []

    @dg.op
    def work(context: dg.OpExecutionContext) -> None:
        with errors_decide(context, settings(**changes)):
            attempts.append(1)
            if len(attempts) <= times:
                raise error

    @dg.job(executor_def=dg.in_process_executor)
    def some_job() -> None:
        work()

    return some_job.execute_in_process(raise_on_error=False), len(attempts)


def words(result):
    (event,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    return event.step_failure_data.user_failure_data.description


@pytest.mark.parametrize("error", [TransientError("the broker is away"), ConflictError("a rival won")])
def test_what_may_pass_by_itself_is_tried_again_and_then_succeeds(error):
    result, attempts = run(error, times=2)
    assert result.success
    assert attempts == 3


def test_what_does_not_pass_fails_after_so_many_retries_in_its_own_words():
    result, attempts = run(TransientError("the broker is away"))
    assert attempts == 3
    assert words(result) == "the broker is away (tried 3 times)"


@pytest.mark.parametrize("error", [ConfigurationError("set this"), DataError("the topic was truncated")])
def test_what_a_person_has_to_change_is_not_tried_again(error):
    result, attempts = run(error)
    assert attempts == 1
    assert words(result) == str(error)


def test_development_fails_at_the_first_error():
    result, attempts = run(TransientError("the broker is away"), mode="development")
    assert attempts == 1
    assert words(result) == "the broker is away"


def test_no_retries_means_one_attempt():
    assert run(TransientError("away"), max_retries=0)[1] == 1


def test_an_error_of_somebody_else_is_left_as_it_is():
    result, attempts = run(ZeroDivisionError("seven by zero"))
    assert attempts == 1
    (event,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    assert event.step_failure_data.user_failure_data is None
    assert "ZeroDivisionError" in event.step_failure_data.error.cause.cls_name


def test_pauses_are_doubled_spread_and_bounded():
    chosen = settings(retry_delay_s=2.0)
    for attempt in range(20):
        longest = min(2.0 * 2**attempt, MAX_DELAY_S)
        pauses = {delay_s(chosen, attempt) for _ in range(20)}
        assert all(longest / 2 <= pause <= longest for pause in pauses)
        assert len(pauses) > 1


def chain(signal):
    """As py4j's `get_return_value` raises while a signal's exception is handled."""
    try:
        try:
            raise signal
        except BaseException:  # noqa: BLE001
            raise Py4JError("An error occurred while calling o67.count")  # noqa: B904 - as py4j does
    except Py4JError as error:
        return error


def decided(error, during=None, status=DagsterRunStatus.STARTED):
    """What comes out when an error goes in, raised while another one was handled."""
    run = SimpleNamespace(run_id="one", status=status)
    context = SimpleNamespace(retry_number=0, run=run, instance=SimpleNamespace(get_run_by_id=lambda _: run))
    with pytest.raises(BaseException) as raised, errors_decide(context, settings()):
        try:
            raise during or KeyError
        except BaseException:  # noqa: BLE001
            raise error  # noqa: B904 - as py4j does
    return raised.value


def test_a_cancel_in_the_middle_of_a_call_into_spark_is_a_cancel():
    for signal in (KeyboardInterrupt(), dg.DagsterExecutionInterruptedError()):
        assert isinstance(decided(Py4JError("answer from Java side is empty"), signal), dg.DagsterExecutionInterruptedError)
        # The next call takes the rest of the broken one's answer for its own.
        assert isinstance(decided(KeyError("p"), chain(signal)), dg.DagsterExecutionInterruptedError)
        assert isinstance(decided(DataError("cannot be read"), chain(signal)), dg.DagsterExecutionInterruptedError)
    # As it comes from Spark after Ctrl-C, and while the UI's "Terminate" is under way.
    broken_off = Py4JError("An error occurred while calling o67.collectToPython")
    assert isinstance(decided(broken_off), dg.DagsterExecutionInterruptedError)
    other = Py4JError("An error occurred while calling o67.collectToPython. Trace:\npy4j.Py4JException: no such method")
    assert decided(other) is other
    assert isinstance(decided(other, status=DagsterRunStatus.CANCELING), dg.DagsterExecutionInterruptedError)


@pytest.mark.parametrize(
    "error",
    [Py4JNetworkError("answer from Java side is empty"), ConnectionRefusedError(111, "Connection refused")],
    ids=["the call it died in", "the call behind it"],
)
def test_a_jvm_that_died_is_named_and_not_tried_again_in_the_same_process(error):
    failure = decided(error)
    assert isinstance(failure, dg.Failure)
    assert failure.allow_retries is False
    assert "GAME_EVENTS_SPARK_DRIVER_MEMORY" in failure.description


class JobAbortedError(Py4JJavaError):
    """A failed job, as pyspark raises it if it has no class for the reason: `SparkException` has none."""

    def __init__(self, text):
        Exception.__init__(self, text)
        self.text = text

    def __str__(self):
        return f"An error occurred while calling o67.collectToPython.\n: org.apache.spark.SparkException: {self.text}"


@pytest.mark.parametrize("kind", [PySparkException, JobAbortedError])
@pytest.mark.parametrize("mark", KAFKA_IS_AWAY)
def test_a_broker_that_goes_away_under_spark_is_tried_again(mark, kind):
    error = kind(f"Job aborted due to stage failure: ... Caused by: {mark} ...")
    result, attempts = run(error, times=1)
    assert result.success
    assert attempts == 2
    result, _ = run(error)
    assert "stopped answering while Spark read from it: is it up? (tried 3 times)" in words(result)


@pytest.mark.parametrize("kind", [PySparkException, JobAbortedError])
def test_a_worker_that_died_is_told_in_a_sentence_and_its_job_is_tried_again(kind):
    error = kind("... SparkException: Python worker exited unexpectedly (crashed)\n\tat org.apache.spark.api.python.Base...")
    result, attempts = run(error, times=1)
    assert result.success
    assert attempts == 2
    result, _ = run(error)
    said = words(result)
    assert said.startswith("a Python worker of Spark crashed: it was killed (is there enough memory?), or code")
    assert said.endswith("stays (tried 3 times)")
    assert "\n" not in said


def test_any_other_error_of_spark_is_left_as_it_is():
    for error in (PySparkException("UNRESOLVED_COLUMN"), JobAbortedError("Malformed class name")):
        assert decided(error) is error


def test_a_full_disk_under_spark_is_tried_again_and_one_that_cannot_be_written_is_not():
    result, attempts = run(JobAbortedError("No space left on device"), times=1)
    assert result.success
    assert attempts == 2
    result, attempts = run(OSError(30, "Read-only file system", "part-1.parquet"))
    assert (result.success, attempts) == (False, 1)
    assert "cannot be read or written: [Errno 30] Read-only file system" in words(result)


def test_any_other_error_of_py4j_stays_what_it_is():
    error = Py4JError("no such method")
    assert decided(error) is error
