"""Continuous mode: the cycle of `refresh`, again and again, until somebody stops it.

Guarantee: the same as of any run, since a cycle is one: every commit is compare-and-set, so a loop that is stopped, killed or
cut off anywhere leaves whole tables, and whoever runs next goes on from them. An idle loop starts no Spark job and commits
nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from tenacity import RetryCallState, Retrying, sleep_using_event, stop_when_event_set, wait_exponential

from game_events.config.logging import PROGRESS_LOGGER
from game_events.config.masking import without_secrets
from game_events.errors import TransientError
from game_events.lakehouse.storage.errors import storage_named
from game_events.pipeline.context import Pipeline
from game_events.pipeline.continuous.loop_report import IDLE, PAUSED, RUNNING, STOPPED, WAITING, LoopReport
from game_events.pipeline.maintenance.incremental import IncrementalMaintenance
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.lost_tables import find_lost_tables
from game_events.pipeline.runs.refresh import cycle
from game_events.sources.core.source import Offsets, SourceSnapshot
from game_events.spark.connect import close_session, is_session_lost
from game_events.spark.crashed_workers import WorkerCrashError

log = logging.getLogger(__name__)
_progress = logging.getLogger(PROGRESS_LOGGER)

#: Pauses between attempts while a broker, a registry or storage is away: doubled up to this.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
#: A failed Spark job may be such an outage too, or a fault that no repetition cures: so many in a row end the loop.
JOB_ATTEMPTS = 10
#: An idle loop looks at all layers that often: failed games, schemas that became known, rows that others committed.
LOOK_AROUND_S = 30.0
#: It looks that often whether tables were deleted or restored: about a second for 2,000 of them.
LOOK_AT_TABLES_S = 600.0
#: Memory is sampled, and one line is logged, that often.
SAMPLE_S, LINE_S = 10.0, 60.0
#: Spark jobs of the loop carry it, so that `abandon` ends them and no others.
TAG = "game_events_loop"


#: What an outage looks like where no code of this project stands between (a Spark job, a look at a table); or a fault.
FAULTS = (PySparkException, Py4JError, DeltaError, OSError)
#: Spark's JVM has ended: no repetition in this process helps.
JVM_GONE = (Py4JNetworkError, ConnectionRefusedError)

MIB = 1024 * 1024


def nothing_urgent() -> str | None:
    """Nobody has anything that goes first."""
    return None


@dataclass
class Loop:
    """One continuous run.

    Attributes:
        pipeline: the parts.
        stop: the switch; the loop ends when the step under way has ended.
        wait_for: asked before each cycle: what goes first (work that changes rows), in words, or None.
        on_cycle: given the report of each cycle that committed something, in the loop's thread.
        duration_s: ends by itself after so long, with gold brought up to silver.
        hand_over_s: the same, but another run is to go on (`report.handed_over`).
        report: what was done so far.
    """

    pipeline: Pipeline
    stop: threading.Event = field(default_factory=threading.Event)
    wait_for: Callable[[], str | None] = nothing_urgent
    on_cycle: Callable[[RunReport], None] = lambda _report: None
    duration_s: float | None = None
    hand_over_s: float | None = None
    report: LoopReport = field(default_factory=LoopReport)
    upkeep: IncrementalMaintenance = field(init=False)
    #: The topic's ends when bronze had everything up to them; None: it may lack something.
    _read: Offsets | None = None
    #: Silver has rows that gold may lack.
    _gold_owed: bool = True
    _gold_at: float = float("-inf")
    _around_at: float = float("-inf")
    _tables_at: float = float("-inf")
    _sampled_at: float = float("-inf")
    _line_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.upkeep = IncrementalMaintenance(self.pipeline.lakehouse, self.pipeline.retention)

    def run(self) -> LoopReport:
        """Cycle until stopped.

        Raises:
            ConfigurationError, DataError: only a person can help; what was committed stays.
            PySparkException, Py4JError, DeltaError, OSError: a fault that repetition did not cure, or Spark's JVM is gone.
        """
        began = time.monotonic()
        try:
            self.pipeline.spark.addTag(TAG)
            while not self.stop.is_set() and not self._over(time.monotonic() - began):
                started = time.monotonic()
                self._retrying(self._turn)
                self.stop.wait(max(0.0, self.pipeline.settings.poll_interval_s - (time.monotonic() - started)))
            if not self.stop.is_set() and self._gold_owed:
                self._retrying(lambda: self._cycle(self.pipeline.source.snapshot(), gold=True))
        except (TransientError, *FAULTS) as error:
            if not self.stop.is_set():
                raise
            log.info(
                "continuous=stopped abandoned=%r", without_secrets(first_line(error), self.pipeline.settings)
            )  # nothing of that step is committed
        finally:
            self._set(STOPPED)
        return self.report

    def _over(self, lasted_s: float) -> bool:
        """Whether its time is over, and for whom."""
        if self.duration_s is not None and lasted_s >= self.duration_s:
            return True
        self.report.handed_over = self.hand_over_s is not None and lasted_s >= self.hand_over_s
        return self.report.handed_over

    def abandon(self) -> None:
        """Stop, and end the Spark job under way; called from another thread. The job's files are never committed."""
        self.stop.set()
        self.pipeline.spark.interruptTag(TAG)

    def _turn(self) -> None:
        """Look, and do a cycle if there is something to do."""
        clock = time.monotonic()
        if clock - self._sampled_at >= SAMPLE_S:
            self._sampled_at = clock
            self.report.memory = memory_mib()
        urgent = self.wait_for()
        if urgent is not None:
            self._set(PAUSED, urgent)
            return
        now = self.pipeline.source.snapshot()
        around = clock - self._around_at >= LOOK_AROUND_S
        gold = clock - self._gold_at >= self.pipeline.settings.gold_interval_s
        if self._read == now.latest and not around and not (gold and self._gold_owed):
            self.report.looks += 1
            self.report.total.add_upkeep(self.upkeep.work())
            self._set(IDLE)
            return
        self._around_at = clock if around else self._around_at
        self._cycle(now, gold=gold)

    def _cycle(self, now: SourceSnapshot, *, gold: bool) -> None:
        """One cycle; what it did is noted even if it fails half-way."""
        clock = time.monotonic()
        if self.report.state != RUNNING:
            self._set(RUNNING)
        report = RunReport(waiting=self.report.total.waiting)
        # Until the cycle has come to its end: it may fail behind silver's commits.
        self._read, owed, self._gold_owed = None, self._gold_owed, True
        if gold:
            self._gold_at = clock
        try:
            # A session that was lost with its server has a successor, which does not know of the tag.
            self.pipeline.spark.addTag(TAG)
            with storage_named(self.pipeline.settings.lakehouse):
                if clock - self._tables_at >= LOOK_AT_TABLES_S:
                    find_lost_tables(self.pipeline, report)
                    self._tables_at = clock
                cycle(self.pipeline, report, until=now, slices=1, gold=gold, go_on=lambda: not self.stop.is_set())
            self._read = None if any(report.lag.values()) else now.latest
            # An aggregate with an interval of its own may be owed long after the last record has come.
            self._gold_owed = bool(report.postponed) if gold else owed or bool(report.of("silver"))
            self.upkeep.note(entry.table for entry in report.tables if entry.error is None)
            report.add_upkeep(self.upkeep.work())
        finally:
            self.report.add_cycle(report, time.monotonic() - clock)
            if report.tables:
                self.on_cycle(report)
                self._line()

    def _line(self) -> None:
        if time.monotonic() - self._line_at >= LINE_S:
            self._line_at = time.monotonic()
            _progress.info("continuous: %s", self.report.summary())

    def _set(self, state: str, why: str = "") -> None:
        if (state, why) != (self.report.state, self.report.why) and {state, self.report.state} - {RUNNING, IDLE}:
            log.info("continuous=%s%s", state, f" why={why!r}" if why else "")
        self.report.state, self.report.why = state, why

    def _retrying(self, step: Callable[[], None]) -> None:
        """Do a step, again after growing pauses while what it needs is away."""
        Retrying(
            retry=self._again,
            wait=wait_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
            sleep=sleep_using_event(self.stop),
            stop=stop_when_event_set(self.stop),
            before_sleep=self._note_failure,
            reraise=True,
        )(step)

    @staticmethod
    def _again(attempt: RetryCallState) -> bool:
        error = attempt.outcome.exception() if attempt.outcome is not None else None
        if isinstance(error, JVM_GONE):
            return False
        if isinstance(error, (*FAULTS, WorkerCrashError)):
            return attempt.attempt_number < JOB_ATTEMPTS
        return isinstance(error, TransientError)

    def _note_failure(self, attempt: RetryCallState) -> None:
        error = attempt.outcome.exception() if attempt.outcome is not None else None
        self.report.retries += 1
        if is_session_lost(error):
            close_session(self.pipeline.spark)
        why = without_secrets(first_line(error), self.pipeline.settings)
        self.report.state, self.report.why = WAITING, why
        pause = attempt.next_action.sleep if attempt.next_action is not None else 0.0
        log.warning("continuous=waiting attempt=%d again_in_s=%.1f why=%r", attempt.attempt_number, pause, why)


def first_line(error: BaseException | None) -> str:
    """The first line of an error that says something; a job's failure has pages of stack behind it.

    Of a failed job py4j says first that a call failed ("An error occurred while calling o67.collectToPython."), then why.
    """
    first, _, rest = str(error).strip().partition("\n")
    if isinstance(error, Py4JError) and rest.strip():
        first = rest.strip().removeprefix(":").strip().partition("\n")[0]
    return first[:500]


def memory_mib() -> dict[str, float]:
    """Resident MiB of `driver`, `jvm` and `workers` now.

    Pages that forked workers share count once for each, so `workers` is an upper bound. With Spark Connect there is no JVM
    below this process, and only `driver` is told.
    """
    held = {"driver": psutil.Process(os.getpid()).memory_info().rss / MIB}
    for jvm in psutil.Process(os.getpid()).children():
        with suppress(psutil.Error):
            if any("org.apache.spark" in part for part in jvm.cmdline()):
                held["jvm"] = held.get("jvm", 0.0) + jvm.memory_info().rss / MIB
                held["workers"] = held.get("workers", 0.0) + sum(map(_rss, jvm.children(recursive=True))) / MIB
    return {name: round(mib, 1) for name, mib in held.items()}


def _rss(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
