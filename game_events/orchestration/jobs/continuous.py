"""The job `continuous`: one long run of the loop, with its events in Dagster as they happen.

The loop works in a thread of its own. The main thread yields events and waits; Dagster interrupts it there when somebody
presses "Terminate", never in the middle of a call into Spark's JVM.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import dagster as dg
from dagster import DagsterExecutionInterruptedError, DagsterRunStatus
from py4j.protocol import Py4JError
from pydantic import Field
from pyspark.errors import PySparkException

from game_events.config.settings import Settings
from game_events.lakehouse.kept_handles import KeptHandles
from game_events.orchestration.checks.last_known import last_known
from game_events.orchestration.checks.whole_run import changes, outcome
from game_events.orchestration.events.metadata import latency_metadata, latency_table
from game_events.orchestration.graph import Graph
from game_events.orchestration.jobs.event_throttle import EventThrottle
from game_events.orchestration.keys import DEFAULT, JOB, REPORT, Keys, OpEvent
from game_events.orchestration.runs.dead_runs import PROCESS_TAG, this_process, worker_is_gone
from game_events.orchestration.runs.own_runs import OwnRuns, repository_of
from game_events.orchestration.runs.tags import CARRIES_ALL, ENDED_BY_ITSELF, HANDED_OVER, ROW_CHANGING_TAG
from game_events.pipeline.checks.registry import check_after_run
from game_events.pipeline.continuous.loop import PAUSED, WAITING, Loop, LoopReport
from game_events.pipeline.observability.event_log import RunLog
from game_events.pipeline.reporting.report import RunReport

log = logging.getLogger(__name__)

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


class LoopThread(threading.Thread):
    """The loop at work, and what ended it.

    Wait for `done`, never with `join`: an exception that a signal raises in `join` makes Python 3.11 take a thread that still
    works for one that has ended.
    """

    def __init__(self, loop: Loop, grace_s: float = GRACE_S) -> None:
        super().__init__(name="continuous", daemon=True)
        self.loop, self._grace_s = loop, grace_s
        self.done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """The thread's body."""
        try:
            self.loop.run()
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            self.error = error
        finally:
            self.done.set()

    def end(self) -> bool:
        """Stop within seconds; whether it did."""
        self.loop.stop.set()
        if not self.done.wait(self._grace_s):
            with suppress(PySparkException, Py4JError, OSError):
                self.loop.abandon()
            self.done.wait(ABANDON_S)
        return self.done.is_set()


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
    pipeline = replace(pipeline, quiet=True, handles=KeptHandles(summaries=False))
    keys, own = graph.keys, OwnRuns.of(pipeline.settings, repository_of(context.run))
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
    worker = LoopThread(loop)
    interrupted: BaseException | None = None
    by_itself = False
    _switches.add(loop.stop)
    worker.start()
    try:
        yield from _events_while(context, worker, throttle, keys)
        by_itself = worker.error is None
        if by_itself:
            tags = {ENDED_BY_ITSELF: "true"} | ({HANDED_OVER: "true"} if loop.report.handed_over else {})
            instance.add_run_tags(context.run_id, tags)
    except (DagsterExecutionInterruptedError, KeyboardInterrupt) as interrupt:
        interrupted = interrupt
    finally:
        # Also when Dagster closes this generator, which may then yield nothing more.
        _switches.discard(loop.stop)
        ended = worker.end()
        if by_itself:
            check_after_run(pipeline, loop.report.total)
            run_log.add(RunReport(checks=loop.report.total.checks))
        if ended:
            run_log.close(worker.error or interrupted)
            loop.report.total.add(run_log.extra)
    yield from _due_events(context, throttle, keys, everything=True)
    context.log.info(f"continuous: {loop.report.summary()}")
    if not ended:
        context.log.warning("continuous=abandoned: a step did not end in time; nothing of it is committed half")
    if interrupted is not None:
        yield _observation(loop.report, keys)
        raise interrupted
    yield from _result(context, loop, worker)


def _events_while(
    context: dg.OpExecutionContext, worker: LoopThread, throttle: EventThrottle, keys: Keys = DEFAULT
) -> Iterator[OpEvent]:
    """What becomes due while the loop works; and its state, while that keeps it from working."""
    report, reported_at = worker.loop.report, float("-inf")
    while not worker.done.wait(POLL_S):
        events = list(_due_events(context, throttle, keys))
        yield from events
        if events:
            yield from last_known(context, worker.loop.pipeline)
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


def _result(context: dg.OpExecutionContext, loop: Loop, worker: LoopThread) -> Iterator[OpEvent]:
    """The check results and the whole report of a loop that ended by itself or by the command line's Ctrl-C."""
    report = loop.report
    whole: dict[str, Any] = {
        REPORT: dg.MetadataValue.json(report.to_dict()),
        "latency": dg.MetadataValue.md(latency_table(report.total.latency)),
        **latency_metadata(report.total.latency),
    }
    if worker.error is not None:
        raise dg.Failure(f"{type(worker.error).__name__}: {loop.why(worker.error)}", metadata=whole) from worker.error
    yield from outcome(context, report.total, whole, loop.pipeline)
