"""The job `continuous`: one long run of the loop, with its events in Dagster as they happen; and whether it is on.

The loop works in a thread of its own. The main thread yields events and waits; Dagster interrupts it there when somebody
presses "Terminate", never in the middle of a call into Spark's JVM.

A table has one event a minute at most; of many games each has one at longer intervals, so that a day's events stay below
100 MB: Dagster's storage and its automation work event by event.

Continuous mode is on or off: derived from the runs of the job, so there is no second truth to keep. Off: there never was a run;
or the newest one was terminated by a user, or ended by itself or by the command line's Ctrl-C. On: it is under way; or it
failed, or its process has vanished: then it is started again. A run that was ended by a signal and not in Dagster (a shutdown
of the machine, of `game-events up`) counts as failed, as in Dagster itself. One that has lasted `CONTINUOUS_RUN_H` hands over:
it ends, and a new one is started.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import dagster as dg
from dagster import DagsterExecutionInterruptedError, DagsterRunStatus
from py4j.protocol import Py4JError
from pydantic import Field
from pyspark.errors import PySparkException

from game_events.config.network import begin_call
from game_events.config.settings import Settings
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.tables import BRONZE
from game_events.orchestration.checks import changes, last_known, outcome
from game_events.orchestration.events import EVENTS, latency_metadata, latency_table
from game_events.orchestration.keys import DEFAULT, JOB, REPORT, Keys, OpEvent
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import (
    CARRIES_ALL,
    ENDED_BY_ITSELF,
    HANDED_OVER,
    PROCESS_TAG,
    ROW_CHANGING_TAG,
    UNFINISHED,
    OwnRuns,
    end_dead_runs,
    repository_of,
    this_process,
    worker_is_gone,
)
from game_events.pipeline.checks.table_checks import check_after_run
from game_events.pipeline.event_log import RunLog
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult, TableReport
from game_events.pipeline.runs.loop import PAUSED, WAITING, Loop, LoopReport

log = logging.getLogger(__name__)

#: Seconds between two events of one table, and, of many games' tables, by their number.
EVENT_S, EVENT_S_BY_GAME = 60.0, 7.0


class EventThrottle:
    """Collects the cycles' reports and hands out what is due, `at_once` events at a time; used by two threads.

    Guarantee: every row is in one event, the next one of its table.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, at_once: int = EVENTS) -> None:
        self._clock = clock
        self._at_once = at_once
        self._lock = threading.Lock()
        self._pending = RunResult()
        self._reported_at: dict[str, float] = {}

    def add(self, report: RunResult) -> None:
        """Note a cycle."""
        with self._lock:
            self._pending = self._pending.merge(report)

    def due(self, *, everything: bool = False) -> RunResult | None:
        """What is due now (or everything) as one report; None if there is nothing.

        What belongs to no single table (offsets, reasons, latencies) is in the report that has bronze's event.
        """
        now = self._clock()
        with self._lock:
            waiting = sorted(self._pending.tables, key=self._last_event)
            ready = waiting if everything else self._due(waiting, now)
            if not ready:
                return None
            names = {entry.table for entry in ready}
            due = [entry for entry in waiting if entry.table in names]
            rest = [entry for entry in waiting if entry.table not in names]
            groups = set(map(_group, due))
            self._reported_at |= dict.fromkeys(groups, now)
            if BRONZE in groups:
                report = replace(self._pending, tables=due)
                self._pending = RunResult(tables=rest)
            else:
                # What belongs to no single table waits for bronze's event.
                report = RunResult(tables=due, seconds=self._pending.seconds)
                self._pending = replace(self._pending, tables=rest)
            return report

    def give_back(self, report: RunResult) -> None:
        """Take back what was handed out and could not be reported."""
        with self._lock:
            self._pending = report.merge(self._pending)

    def _due(self, waiting: Sequence[TableReport], now: float) -> list[TableReport]:
        """Tables whose last event is long enough ago, no more than may have one at once."""
        of_game = max(EVENT_S, EVENT_S_BY_GAME * len(self._reported_at.keys() - {BRONZE}))
        due = [e for e in waiting if now - self._last_event(e) >= (EVENT_S if e.game is None else of_game)]
        return due[: self._at_once]

    def _last_event(self, entry: TableReport) -> float:
        return self._reported_at.get(_group(entry), float("-inf"))


def _group(entry: TableReport) -> str:
    """Group of tables with one event time: quarantine and bronze; every other table alone."""
    return BRONZE if entry.layer in ("bronze", "quarantine") else entry.table


OP = "run_continuously"
#: Seconds between two checks of the main thread for due events.
POLL_S = 0.5
#: After "stop": seconds for the step under way to end by itself, then for its Spark job to be ended.
GRACE_S, ABANDON_S = 8.0, 10.0
#: Seconds between two events of a state that keeps the loop from working.
STATE_S = 60.0
#: Jobs that change rows of tables, which a live writer would make fail again and again: they go first. A run of any other
#: job goes first too if it has this tag.
ROW_CHANGING_JOBS = frozenset({"replay", "redecode"})
UNDER_WAY = [DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]
#: Switches of the loops of this process, for the command line's Ctrl-C.
_switches: set[threading.Event] = set()


def stop_loops_of_this_process() -> None:
    """End them as a success; to be called again until they have ended, as one may be about to begin."""
    for switch in list(_switches):
        switch.set()


def run_under_way(instance: dg.DagsterInstance, settings: Settings) -> dg.DagsterRun | None:
    """The lakehouse's continuous run that is under way and has a living process, or None."""
    runs = OwnRuns.of(settings).runs(instance, 10, job_name=Keys.of(settings).named(JOB), statuses=UNDER_WAY)
    return next((run for run in runs if not worker_is_gone(instance, run)), None)


class ContinuousConfig(dg.Config):
    """Options of a continuous run."""

    duration_s: float | None = Field(default=None, gt=0, description="End by itself after so many seconds; empty: never.")


def row_changing_run(instance: dg.DagsterInstance, own: OwnRuns, keys: Keys = DEFAULT) -> str | None:
    """A queued or running own run that changes rows, as a text; one that was killed does not count."""
    jobs = set(map(keys.named, ROW_CHANGING_JOBS))
    for run in own.runs(instance, 100, statuses=UNDER_WAY):
        changes_rows = run.job_name in jobs or run.tags.get(ROW_CHANGING_TAG) == "true"
        if changes_rows and not worker_is_gone(instance, run):
            return f"run {run.run_id} of {run.job_name} goes first"
    return None


def has_ended(work: Future[LoopReport], within_s: float) -> bool:
    """Whether the loop at work ends within seconds.

    Not by `concurrent.futures.wait`: an exception that a signal raises in there may leave the future locked.
    """
    try:
        work.exception(within_s)
    except TimeoutError:
        return False
    return True


def end_loop(loop: Loop, work: Future[LoopReport], grace_s: float = GRACE_S) -> bool:
    """Stop a loop at work within seconds; whether it did."""
    loop.stop.set()
    if has_ended(work, grace_s):
        return True
    with suppress(PySparkException, Py4JError, OSError):
        loop.abandon()
    return has_ended(work, ABANDON_S)


def build_continuous(graph: Graph) -> dg.JobDefinition:
    """The job `continuous`.

    The sensor starts it again, with pauses that grow; Dagster's own retries would start a second one. And it brings every
    layer up to date by itself: automation has nothing to add to what it logs.
    """

    @graph.op(OP, "Reads the topic, brings silver up to it, and gold at its own interval, until it is terminated.", JOB)
    def run_continuously(context: dg.OpExecutionContext, config: ContinuousConfig) -> Iterator[OpEvent]:
        yield from _run(context, config, graph)

    return graph.job(
        JOB,
        "Continuous mode: one long run that keeps every table up to the topic. Terminate it to switch continuous mode "
        "off; if it dies, the sensor `continuous_mode` starts it again.",
        run_continuously,
        tags={"dagster/max_retries": "0", **CARRIES_ALL},
    )


def _run(context: dg.OpExecutionContext, config: ContinuousConfig, graph: Graph) -> Iterator[OpEvent]:
    """The loop in a thread, its events as they become due; each table's rows are in one event."""
    instance = context.instance
    instance.add_run_tags(context.run_id, {PROCESS_TAG: this_process(), ENDED_BY_ITSELF: "false", HANDED_OVER: "false"})
    throttle = EventThrottle()
    pipeline = graph.lakehouse(context).pipeline(context.run_id)
    pipeline = replace(pipeline, quiet=True, tables=TablePool(summaries=False))
    keys = graph.keys
    own = OwnRuns.of(pipeline.settings, repository_of(context.run))
    run_log = RunLog(pipeline, JOB, context.retry_number)

    def add(report: RunReport) -> None:
        throttle.add(report)
        run_log.add(report)

    loop = Loop(
        pipeline,
        wait_for=lambda: row_changing_run(instance, own, keys),
        on_cycle=add,
        duration_s=config.duration_s,
        # Dagster keeps a run's events as long as the run is there, so a run that never ends would fill its storage.
        hand_over_s=3600 * pipeline.settings.continuous_run_h,
    )
    interrupted: BaseException | None = None
    by_itself = False
    _switches.add(loop.stop)
    work = begin_call(loop.run, JOB)
    try:
        yield from _events_while(context, loop, work, throttle, keys)
        by_itself = work.exception() is None
        if by_itself:
            tags = {ENDED_BY_ITSELF: "true"} | ({HANDED_OVER: "true"} if loop.report.handed_over else {})
            instance.add_run_tags(context.run_id, tags)
    except (DagsterExecutionInterruptedError, KeyboardInterrupt) as interrupt:
        interrupted = interrupt
    finally:
        # Also when Dagster closes this generator, which may then yield nothing more.
        _switches.discard(loop.stop)
        ended = end_loop(loop, work)
        if by_itself:
            check_after_run(pipeline, loop.report.total)
            run_log.add(RunReport(checks=loop.report.total.checks))
        if ended:
            run_log.close(work.exception() or interrupted)
            loop.report.total.add(run_log.extra)
    yield from _due_events(context, throttle, keys, everything=True)
    context.log.info(f"continuous: {loop.report.summary()}")
    if not ended:
        context.log.warning("continuous=abandoned: a step did not end in time; nothing of it is committed half")
    if interrupted is not None:
        yield _observation(loop.report, keys)
        raise interrupted
    yield from _result(context, loop, work.exception())


def _events_while(
    context: dg.OpExecutionContext, loop: Loop, work: Future[LoopReport], throttle: EventThrottle, keys: Keys
) -> Iterator[OpEvent]:
    """What becomes due while the loop works; and its state, while that keeps it from working."""
    report = loop.report
    reported_at = float("-inf")
    while not has_ended(work, POLL_S):
        events = list(_due_events(context, throttle, keys))
        yield from events
        if events:
            yield from last_known(context, loop.pipeline)
        stuck = report.state in (PAUSED, WAITING) and time.monotonic() - reported_at >= STATE_S
        has_bronze = any(isinstance(event, dg.AssetMaterialization) and event.asset_key == keys.bronze for event in events)
        if stuck or has_bronze:
            reported_at = time.monotonic()
            yield _observation(report, keys)


def _due_events(
    context: dg.OpExecutionContext, throttle: EventThrottle, keys: Keys, *, everything: bool = False
) -> Iterator[OpEvent]:
    report = throttle.due(everything=everything)
    if report is None:
        return
    try:
        events = list(changes(context, report, keys, every=True))
    except BaseException:  # an interrupt among others: it is in the run's last events
        throttle.give_back(report)
        raise
    yield from events


def _observation(report: LoopReport, keys: Keys) -> dg.AssetObservation:
    """The loop's state, on bronze's page."""
    metadata: dict[str, Any] = {
        "continuous": dg.MetadataValue.json(report.loop_dict()),
        "state": f"{report.state}: {report.why}" if report.why else report.state,
        "latency": dg.MetadataValue.md(latency_table(report.total.latency)),
        "lag": sum(report.total.lag.values()),
        **latency_metadata(report.total.latency),
    }
    if report.recent_cycle_s is not None:
        metadata["cycle_s"] = round(report.recent_cycle_s, 2)
    metadata |= {f"{part}_mib": mib for part, mib in report.memory.items()}
    return dg.AssetObservation(keys.bronze, metadata=metadata)


def _result(context: dg.OpExecutionContext, loop: Loop, error: BaseException | None) -> Iterator[OpEvent]:
    """The check results and the whole report of a loop that ended by itself or by the command line's Ctrl-C."""
    report = loop.report
    whole: dict[str, Any] = {
        REPORT: dg.MetadataValue.json(report.to_dict()),
        "latency": dg.MetadataValue.md(latency_table(report.total.latency)),
        **latency_metadata(report.total.latency),
    }
    if error is not None:
        raise dg.Failure(f"{type(error).__name__}: {loop.why(error)}", metadata=whole) from error
    yield from outcome(context, report.total, whole, loop.pipeline)


#: Seconds to wait after a failure, doubled with each further one, up to the greatest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10, 600
#: A run that lasted so long was a good one: pauses are short again.
HEALTHY_S = 600
#: Seconds in which the command line, if it was its run, has begun the next one by itself.
HAND_OVER_S = 15
#: Runs that are read: past so many failures the pause is the longest anyway.
RUNS_SEEN = 10


@dataclass(frozen=True)
class PastRun:
    """What the decision needs of a run; times are seconds since 1970."""

    run_id: str
    status: DagsterRunStatus
    began_s: float
    ended_s: float
    handed_over: bool = False


class Decision(NamedTuple):
    """Whether a sensor asks for a run: why, or why not; the run's key (None: no run)."""

    why: str
    run_key: str | None = None


def decide(runs: Sequence[PastRun], now_s: float, job: str = JOB) -> Decision:
    """Decide from the newest runs, newest first."""
    if not runs:
        return Decision(f"continuous mode was never started: start the job `{job}` once, or `run --continuous`")
    newest = runs[0]
    # Each run hands over once, or fails, so no key is ever used twice.
    next_key = f"continuous-after-{newest.run_id}"
    if newest.status in UNFINISHED:
        return Decision(f"on: run {newest.run_id} is {newest.status.value.lower()}")
    if newest.handed_over:
        left = newest.ended_s + HAND_OVER_S - now_s
        why = f"on: run {newest.run_id} has lasted long enough"
        return Decision(f"{why}; the next one in {left:.0f} s") if left > 0 else Decision(why, next_key)
    if newest.status != DagsterRunStatus.FAILURE:
        how = "was terminated" if newest.status == DagsterRunStatus.CANCELED else "ended by itself"
        return Decision(f"off: run {newest.run_id} {how}; start the job `{job}` to switch it on")
    failures = _failures_in_a_row(runs)
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (failures - 1))
    left = newest.ended_s + pause - now_s
    if left > 0:
        return Decision(f"on: run {newest.run_id} failed ({failures} in a row); started again in {left:.0f} s")
    return Decision(f"run {newest.run_id} failed ({failures} in a row)", next_key)


def _failures_in_a_row(runs: Sequence[PastRun]) -> int:
    """The newest failures, back to one that was healthy for long enough."""
    failures = 0
    for run in runs:
        if run.status != DagsterRunStatus.FAILURE:
            break
        failures += 1
        if run.ended_s - run.began_s >= HEALTHY_S:
            break
    return failures


def past_runs(instance: dg.DagsterInstance, own: OwnRuns, job: str = JOB) -> list[PastRun]:
    """The newest own runs of the job; dead ones are reported as failed first, which frees their pool's slot."""
    end_dead_runs(instance, own)
    runs = []
    for record in own.records(instance, RUNS_SEEN, job_name=job):
        began = record.start_time or record.create_timestamp.timestamp()
        run = record.dagster_run
        # With tables that failed it is a failed run; but its user, or its time, has ended it.
        ended = run.status == DagsterRunStatus.FAILURE and run.tags.get(ENDED_BY_ITSELF) == "true"
        status = DagsterRunStatus.SUCCESS if ended else run.status
        handed_over = status == DagsterRunStatus.SUCCESS and run.tags.get(HANDED_OVER) == "true"
        runs.append(PastRun(run.run_id, status, began, record.end_time or began, handed_over))
    return runs
