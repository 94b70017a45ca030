"""The runs of one lakehouse in a Dagster instance, which others may share: which they are, their processes, tags, errors, end.

Dagster itself only notices a dead worker while the code server that started it lives: a run of the command line that was
killed, or one that was killed with `game-events up`, would stay "started" and keep its pool's slot for ever (1.13:
`run_monitoring` asks the launcher, and the default one does not know the state of a started run's worker). So a tag says which
process a run has, and runs without one are marked as failed.

Runs that ended long ago are deleted from Dagster's storage: what they did stays in the table `event_log`. A run stays as long
as it has the newest event of an asset or of one of its partitions: without it Dagster would take them for never materialized,
and automation would make them again.
"""

import logging
import os
import random
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Self

import dagster as dg
import psutil
from dagster import (
    AssetCheckKey,
    AssetKey,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunRecord,
    RunsFilter,
)
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from game_events.config.logging import PROGRESS_LOGGER
from game_events.config.masking import mask, masked_traceback
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, GameEventsError, TransientError, stop_of
from game_events.lakehouse.tables import Lakehouse
from game_events.orchestration.keys import AssetCheckExecutionsTable, SqlEventLogStorage, SqliteEventLogStorage, plan_process
from game_events.spark.connect import is_session_lost, lost
from game_events.spark.failures import crash, is_crash, storage_named

log = logging.getLogger(__name__)

#: Tag of every run: the lakehouse that it works on, as its root and the prefix of its tables. Jobs have it from the beginning;
#: what is materialized by hand, from when its process has begun.
LAKEHOUSE_TAG = "game_events/lakehouse"
#: Dagster's own tag of the repository and code location that a run was started from.
REPOSITORY_TAG = ".dagster/repository"


def lakehouse_of(settings: Settings) -> Lakehouse | None:
    """The lakehouse; None where it cannot be one: the project loads all the same, and each run says what is wrong."""
    try:
        return Lakehouse.of(settings)
    except ConfigurationError:
        return None


def lakehouse_tag(settings: Settings) -> dict[str, str]:
    """The tag of a lakehouse's runs."""
    lakehouse = lakehouse_of(settings)
    root = settings.lakehouse if lakehouse is None else lakehouse.root
    return {LAKEHOUSE_TAG: f"{root}/{settings.names.prefix}*"}


def repository_of(run: DagsterRun) -> str | None:
    """Repository and code location that a run was started from; None: from none (the command line)."""
    return run.tags_for_storage().get(REPOSITORY_TAG)


@dataclass(frozen=True)
class OwnRuns:
    """Which runs of an instance belong to a lakehouse.

    Attributes:
        lakehouse: value of their tag.
        repository: `{repository}@{code location}` of the code that asks; its runs without a tag are own ones, too. None: not
            known (the command line), so that only tagged runs are.
    """

    lakehouse: str
    repository: str | None = None

    @classmethod
    def of(cls, settings: Settings, repository: str | None = None) -> Self:
        """The runs of the settings' lakehouse."""
        return cls(lakehouse_tag(settings)[LAKEHOUSE_TAG], repository)

    def records(self, instance: DagsterInstance, limit: int, *, by_update: bool = False, **wanted: Any) -> list[RunRecord]:  # noqa: ANN401
        """Runs that a filter finds (`wanted`: what `RunsFilter` takes, but for tags): the newest, newest first.

        `by_update`: those whose last update is the oldest, in its order.
        """
        order = {"order_by": "update_timestamp", "ascending": True} if by_update else {}
        tags = [{LAKEHOUSE_TAG: self.lakehouse}] + ([{REPOSITORY_TAG: self.repository}] if self.repository else [])
        by_id = {
            record.storage_id: record
            for tag in tags
            for record in instance.get_run_records(RunsFilter(tags=tag, **wanted), limit, **order)  # type: ignore[arg-type]
            # A run of this code location may work on another lakehouse.
            if record.dagster_run.tags.get(LAKEHOUSE_TAG, self.lakehouse) == self.lakehouse
        }
        if by_update:
            return sorted(by_id.values(), key=lambda record: record.update_timestamp)[:limit]
        return [by_id[number] for number in sorted(by_id, reverse=True)][:limit]

    def runs(self, instance: DagsterInstance, limit: int, **wanted: Any) -> list[DagsterRun]:  # noqa: ANN401 - of RunsFilter
        """The newest runs that a filter finds, as `records`."""
        return [record.dagster_run for record in self.records(instance, limit, **wanted)]

    def tagged(self, **wanted: Any) -> RunsFilter:  # noqa: ANN401 - of RunsFilter
        """A filter for the runs with the tag."""
        return RunsFilter(tags={LAKEHOUSE_TAG: self.lakehouse}, **wanted)


#: Tag of a run: host, process id, the second in which the process was started (process ids are used again), and in which boot
#: of the machine and which namespace of process ids.
PROCESS_TAG = "game_events/process"
#: An earlier version wrote no boot and no namespace.
_TAG = re.compile(r"(?P<host>[^:]*):(?P<pid>[0-9]{1,9}):(?P<started>[0-9]{1,12})(?::(?P<boot>[^:/]*)/(?P<namespace>[^:/]*))?")
#: Two processes may see a third one's start a second apart: it is computed from the time of the machine's start.
SLACK_S = 3
#: A run in one of these has (or had) a process that works on it.
WORKING = [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
#: Those, and runs that wait for one.
UNFINISHED = [*WORKING, DagsterRunStatus.QUEUED]
#: Unfinished runs read: a tick has to stay short.
RUNS_READ = 200


def end_dead_runs(instance: DagsterInstance, own: OwnRuns) -> list[DagsterRun]:
    """Mark own runs of this machine without a living process as failed (those being canceled: as canceled).

    Returns:
        the runs, as they were before.
    """
    dead = [run for run in own.runs(instance, RUNS_READ, statuses=WORKING) if worker_is_gone(instance, run)]
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
        storage = instance.event_log_storage
        if storage.supports_global_concurrency_limits:  # the daemon would do so half a minute later
            storage.free_concurrency_slots_for_run(run.run_id)
        log.warning("run_id=%s job=%s dead=true process=%s", run.run_id, run.job_name, run.tags[PROCESS_TAG])
    return dead


def this_process() -> str:
    """The tag's value for this process."""
    return process_tag(os.getpid())


def process_tag(pid: int) -> str:
    """The tag's value for a process of this machine."""
    return f"{socket.gethostname()}:{pid}:{int(psutil.Process(pid).create_time())}:{_boot()}/{_namespace()}"


def mark_process(context: dg.InitResourceContext) -> None:
    """Tag a run with the process that executes its plan, which is not the process of each step with every executor.

    A run whose steps are executed elsewhere (Kubernetes, Docker) gets no tag, and is never judged.
    """
    pid = plan_process()
    if context.instance is not None and context.run is not None and pid is not None:
        context.instance.add_run_tags(context.run.run_id, {PROCESS_TAG: process_tag(pid)})


def worker_is_gone(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Whether the process that works on a run has certainly ended.

    A run that is executed again from the UI comes with the tags of the run it repeats: until its own process has
    set its tag, False.
    """
    tag = run.tags.get(PROCESS_TAG)
    if not is_gone(tag):
        return False
    if run.parent_run_id is None:
        return True
    parent = instance.get_run_by_id(run.parent_run_id)
    return parent is not None and parent.tags.get(PROCESS_TAG) != tag


def is_gone(tag: str | None) -> bool:
    """Whether the process of a tag has certainly ended.

    False for a process of another machine, and of another container of this one, which this process cannot see.
    """
    process = _TAG.fullmatch(tag or "")
    if process is None or process["host"] != socket.gethostname():
        return False
    if process["boot"] and _boot() and process["boot"] != _boot():
        return True  # the machine was restarted since
    if process["namespace"] and process["namespace"] != _namespace():
        return False
    return _has_ended(int(process["pid"]), int(process["started"]))


def _has_ended(pid: int, started: int) -> bool:
    """Whether the process of this machine with this id is none, or another one that began at another time."""
    try:
        there = psutil.Process(pid)
        return there.status() == psutil.STATUS_ZOMBIE or abs(there.create_time() - started) > SLACK_S
    except psutil.NoSuchProcess:
        return True


@cache
def _boot() -> str:
    """The boot of this machine; empty where the system has no such id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return ""


@cache
def _namespace() -> str:
    """The namespace of this process's id: containers of one host name may have different ones; empty on other systems."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")  # noqa: PTH115 - no file
    except OSError:
        return ""


#: Runs deleted at a time: a sensor's tick has to stay short.
AT_ONCE = 25
#: Runs asked for in one query.
PAGE = 250
#: Storage ids asked for in one query.
IDS_AT_ONCE = 500
#: Seconds between two searches, which read the newest event of every asset and partition, where all old runs are needed.
SEARCH_EVERY_S = 3_600.0
#: Key of the time of a lakehouse's last search in Dagster's storage; the command line and the sensor share it.
SEARCHED_AT = "game_events/old_runs_looked_at:{}"
ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


def drop_old_runs(
    instance: DagsterInstance,
    own: OwnRuns,
    keep_h: float,
    checks: Collection[AssetCheckKey] = (),
    *,
    at_once: int = AT_ONCE,
    page: int = PAGE,
    clock: Callable[[], float] = time.time,
) -> int:
    """Delete own runs that ended more than `keep_h` hours ago (0: none), their events and their output, the oldest first.

    Guarantee: no run of another lakehouse, code location or team is deleted; the newest materialization of each asset and
    partition stays, the newest evaluation of each check (of `checks`), and the newest run of each job. Once no old run was
    found that could be deleted, the next search is an hour later (by `clock`, in seconds since 1970).

    Returns:
        how many were deleted, `at_once` at most; they are searched a `page` at a time.
    """
    if not keep_h:
        return 0
    before = datetime.fromtimestamp(clock(), UTC) - timedelta(hours=keep_h)
    dropped = list(islice(_unneeded_runs(instance, own, _old_runs(instance, own, before, page), checks, clock()), at_once))
    _delete_evaluations(instance, dropped)
    for run_id in dropped:
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        instance.delete_run(run_id)
        if isinstance(instance.event_log_storage, SqliteEventLogStorage):
            # Each run has a file of its own, which Dagster empties and does not delete.
            for suffix in ("", "-wal", "-shm"):
                Path(instance.event_log_storage.path_for_shard(run_id) + suffix).unlink(missing_ok=True)
    if dropped:
        log.info("old_runs_deleted=%d before=%s", len(dropped), before.isoformat(timespec="seconds"))
    return len(dropped)


def _unneeded_runs(
    instance: DagsterInstance,
    own: OwnRuns,
    pages: Iterable[Sequence[DagsterRun]],
    checks: Collection[AssetCheckKey],
    now: float,
) -> Iterator[str]:
    """Ids of the old runs that nothing is read from; none, if all were searched within the hour."""
    key = SEARCHED_AT.format(own.lakehouse)
    at = instance.daemon_cursor_storage.get_cursor_values({key}).get(key)
    if at is not None and 0 <= now - float(at) < SEARCH_EVERY_S:
        return
    needed: set[str] = set()
    # Of thousands of games each may need an old run of its own: these must not hide the runs behind them.
    for runs in pages:
        needed = needed or _with_newest_events(instance, checks)
        needed |= _newest_of_jobs(instance, own, {run.job_name for run in runs})
        yield from [run.run_id for run in runs if run.run_id not in needed]
    if needed:
        instance.daemon_cursor_storage.set_cursor_values({key: str(now)})


def _newest_of_jobs(instance: DagsterInstance, own: OwnRuns, jobs: Iterable[str]) -> set[str]:
    """Id of each job's newest run: whether continuous mode is on, for one, is read from it."""
    return {run.run_id for job in jobs for run in instance.get_runs(own.tagged(job_name=job), limit=1)}


def _old_runs(instance: DagsterInstance, own: OwnRuns, before: datetime, page: int) -> Iterator[Sequence[DagsterRun]]:
    """Runs that ended before then, the oldest first, a page at a time."""
    wanted = own.tagged(statuses=ENDED, updated_before=before)
    runs = instance.get_runs(wanted, limit=page, ascending=True)
    while runs:
        yield runs
        runs = instance.get_runs(wanted, cursor=runs[-1].run_id, limit=page, ascending=True)


def _with_newest_events(instance: DagsterInstance, checks: Collection[AssetCheckKey]) -> set[str]:
    """Runs with the newest materialization of an asset or a partition, or evaluation of a check."""
    storage = instance.event_log_storage
    run_ids = {record.run_id for record in storage.get_latest_asset_check_execution_by_key(list(checks)).values()}
    for record in instance.get_asset_records():
        newest = record.asset_entry.last_materialization_record
        if newest is not None:
            run_ids.add(newest.run_id)
        key = record.asset_entry.asset_key
        ids = list(storage.get_latest_storage_id_by_partition(key, DagsterEventType.ASSET_MATERIALIZATION).values())
        for start in range(0, len(ids), IDS_AT_ONCE):
            wanted = AssetRecordsFilter(key, storage_ids=ids[start : start + IDS_AT_ONCE])
            run_ids.update(r.run_id for r in instance.fetch_materializations(wanted, limit=IDS_AT_ONCE).records)
    return run_ids


def _delete_evaluations(instance: DagsterInstance, run_ids: Collection[str]) -> None:
    """Delete the runs' evaluations of checks, but each check's newest; Dagster 1.13 deletes a run's events without them."""
    storage = instance.event_log_storage
    table = AssetCheckExecutionsTable
    if not run_ids or not isinstance(storage, SqlEventLogStorage):
        return
    columns = table.c.id, table.c.asset_key, table.c.check_name
    with storage.index_connection() as connection:
        rows = connection.execute(table.select().with_only_columns(*columns).where(table.c.run_id.in_(run_ids))).all()
    keys = {(asset, name) for _, asset, name in rows}
    check_keys = [AssetCheckKey(key, name) for asset, name in keys if (key := AssetKey.from_db_string(asset)) is not None]
    newest = {record.id for record in storage.get_latest_asset_check_execution_by_key(check_keys).values()}
    with storage.index_connection() as connection:
        connection.execute(table.delete().where(table.c.id.in_([number for number, _, _ in rows if number not in newest])))


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
        with storage_named(settings.lakehouse):
            yield
    except Exception as error:
        # Whatever came of a stop is raised as the stop.
        if stop_of(error) is not None:
            raise dg.DagsterExecutionInterruptedError from None
        decided = None if isinstance(error, dg.Failure | dg.RetryRequested) else _decided(error, context, settings)
        if decided is None:
            raise
        raise decided from None


def _decided(error: Exception, context: StepContext, settings: Settings) -> BaseException | None:
    """What to raise in place of an error; None: the error itself."""
    if isinstance(error, TransientError):
        return _again(context, settings, mask(str(error), settings))
    if isinstance(error, GameEventsError):
        return dg.Failure(mask(str(error), settings), allow_retries=False)
    if isinstance(error, ConnectionRefusedError | Py4JError):
        # Refused is the first call after the one that broke: nothing else here is called in this way.
        if _is_being_canceled(context) or _is_broken_off(error):
            return dg.DagsterExecutionInterruptedError()
        if isinstance(error, ConnectionRefusedError | Py4JNetworkError):
            return dg.Failure(JVM_ENDED, allow_retries=False)
    if isinstance(error, PySparkException | Py4JJavaError):
        # The second is a failed job with a reason that pyspark has no class for.
        why = _may_pass_next_time(error, settings)
        if why is not None:
            return _again(context, settings, why)
    said = masked_traceback(error, settings)
    masked = mask(f"{type(error).__name__}: {error}", settings)
    return None if said is None else dg.Failure(masked, metadata={"traceback": dg.MetadataValue.text(said)})


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


def _is_broken_off(error: Exception) -> bool:
    """Whether an error only says that a call into the JVM was broken off by the signal that cancels a run.

    Spark's own handler of Ctrl-C cancels its jobs in the middle of the call that waits for them. What is left of that call is a
    bare `Py4JError` with nothing that Java said (tried).
    """
    return type(error) is Py4JError and str(error).startswith(BROKEN_OFF) and "\n" not in str(error)
