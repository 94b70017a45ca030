"""Error classes -> retry, or failure with the error's own text instead of a traceback."""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster import DagsterRunStatus
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from game_events.config.logging import PROGRESS_LOGGER
from game_events.config.masking import mask, masked_traceback
from game_events.config.settings import Settings
from game_events.errors import GameEventsError, TransientError, stop_of
from game_events.spark.connect import is_session_lost, lost
from game_events.spark.crashed_workers import crash, is_crash
from game_events.spark.storage_errors import storage_named

#: No wait between two attempts is longer.
MAX_DELAY_S = 300.0
#: What Spark's workers say when the broker goes away under them: their own consumer's errors, as text.
KAFKA_IS_AWAY = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.errors.NetworkException",
    "Cannot fetch record for offset",
)
#: Beginning of the message of a call into the JVM that got no answer.
BROKEN_OFF = "An error occurred while calling"
StepContext = dg.OpExecutionContext | dg.AssetExecutionContext | dg.AssetCheckExecutionContext
#: The session is lost with its JVM, and this process cannot make another one.
JVM_ENDED = (
    "Spark's JVM ended in the middle of the run: killed, or out of memory (GAME_EVENTS_SPARK_DRIVER_MEMORY; records of many "
    "megabytes: docs/operations.md, Bounds). What was committed stays, and the next run goes on from there"
)
_progress = logging.getLogger(PROGRESS_LOGGER)


def delay_s(settings: Settings, attempt: int) -> float:
    """Seconds before attempt `attempt + 1`: doubled each time, bounded, and spread so that runs do not come back together."""
    longest = min(settings.retry_delay_s * 2**attempt, MAX_DELAY_S)
    return float(longest * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret about a pause


@contextmanager
def errors_decide(context: StepContext, settings: Settings) -> Iterator[None]:
    """Errors inside end the step as their class says.

    A `TransientError` is tried again, `max_retries` times in production, never in development. Any other error of this project
    fails the step at once: a person has to change something first.

    Raises:
        RetryRequested: after a pause the step runs again; what it committed stays.
        Failure: with the error's own text, or with its masked traceback, as Dagster keeps both.
        DagsterExecutionInterruptedError: the run was canceled in the middle of a call into Spark.
    """
    try:
        with _by_class(context, settings), _stops_named():
            yield
    except (dg.Failure, dg.RetryRequested):
        raise
    except Exception as error:
        said = masked_traceback(error, settings)
        if said is None:
            raise
        masked = mask(f"{type(error).__name__}: {error}", settings)
        raise dg.Failure(masked, metadata={"traceback": dg.MetadataValue.text(said)}) from None


@contextmanager
def _stops_named() -> Iterator[None]:
    """Whatever came of a stop is raised as the stop."""
    try:
        yield
    except Exception as error:
        if stop_of(error) is not None:
            raise dg.DagsterExecutionInterruptedError from None
        raise


@contextmanager
def _by_class(context: StepContext, settings: Settings) -> Iterator[None]:
    try:
        with storage_named(settings.lakehouse):
            yield
    except TransientError as error:
        raise _again(context, settings, mask(str(error), settings)) from None
    except PySparkException as error:
        why = _may_pass_next_time(error, settings)
        if why is None:
            raise
        raise _again(context, settings, why) from None
    except GameEventsError as error:
        raise dg.Failure(mask(str(error), settings), allow_retries=False) from None
    except ConnectionRefusedError:  # of the first call after the one that broke: nothing else here is called in this way
        if _is_being_canceled(context):
            raise dg.DagsterExecutionInterruptedError from None
        raise dg.Failure(JVM_ENDED, allow_retries=False) from None
    except Py4JError as error:
        if _is_broken_off(error) or _is_being_canceled(context):
            raise dg.DagsterExecutionInterruptedError from None
        if isinstance(error, Py4JNetworkError):
            raise dg.Failure(JVM_ENDED, allow_retries=False) from None
        # A failed job with a reason that pyspark has no class for.
        why = _may_pass_next_time(error, settings) if isinstance(error, Py4JJavaError) else None
        if why is None:
            raise
        raise _again(context, settings, why) from None


def _may_pass_next_time(error: PySparkException | Py4JJavaError, settings: Settings) -> str | None:
    """Why a Spark job failed that may succeed when it is run again; None of any other."""
    if isinstance(error, PySparkException) and is_session_lost(error):
        return str(lost(settings))
    if is_crash(error):
        return mask(str(crash(error, "")), settings)
    if any(mark in str(error) for mark in KAFKA_IS_AWAY):
        return f"Kafka at {settings.kafka_bootstrap_servers} stopped answering while Spark read from it: is it up?"
    return None


def _again(context: StepContext, settings: Settings, why: str) -> dg.RetryRequested | dg.Failure:
    """The next attempt, or the failure if there is none left."""
    if settings.mode == "development" or context.retry_number >= settings.max_retries:
        tried = f" (tried {context.retry_number + 1} times)" if context.retry_number else ""
        return dg.Failure(f"{why}{tried}", allow_retries=False)
    wait = delay_s(settings, context.retry_number)
    _progress.warning("trying again in %.1f s: %s", wait, why)
    return dg.RetryRequested(settings.max_retries, wait)


def _is_being_canceled(context: StepContext) -> bool:
    """Whether a user has canceled the run: the UI notes that before it sends the signal."""
    now = context.instance.get_run_by_id(context.run.run_id)
    return now is not None and now.status == DagsterRunStatus.CANCELING


def _is_broken_off(error: Py4JError) -> bool:
    """Whether an error only says that a call into the JVM was broken off by the signal that cancels a run.

    Spark's own handler of Ctrl-C cancels its jobs in the middle of the call that waits for them. What is left of that call is a
    bare `Py4JError` with nothing that Java said (tried).
    """
    return type(error) is Py4JError and str(error).startswith(BROKEN_OFF) and "\n" not in str(error)
