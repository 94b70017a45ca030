"""Continuous mode: the cycle of `refresh`, repeated until it is stopped; and whether there is anything to do.

Guarantee: the same as of a triggered run. Commits are compare-and-set, so a loop that is stopped or killed leaves consistent
tables, and the next run continues from them. An idle loop starts no Spark job and commits nothing.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tenacity import RetryCallState, Retrying, sleep_using_event, stop_when_event_set, wait_exponential

from game_events.config.logging import PROGRESS_LOGGER
from game_events.config.masking import without_secrets
from game_events.config.settings import Settings
from game_events.config.sources.several import settings_or_each
from game_events.errors import ReadOnlyError, TransientError, first_line
from game_events.lakehouse.tables import Layer, is_gold
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import SUCCEEDED
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.maintenance import IncrementalMaintenance
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import Histogram
from game_events.pipeline.runs.pending import find_lost_tables
from game_events.pipeline.runs.preflight import newest_run
from game_events.pipeline.runs.refresh import TriggeredRun, cycle
from game_events.sources.factory import class_of
from game_events.sources.source import Offsets, SourceSnapshot
from game_events.spark.connect import close_session, is_session_lost
from game_events.spark.failures import WorkerCrashError, storage_named

log = logging.getLogger(__name__)
_progress = logging.getLogger(PROGRESS_LOGGER)
#: States of the loop.
STARTING, RUNNING, IDLE, PAUSED, WAITING, STOPPED = "starting", "running", "idle", "paused", "waiting", "stopped"
#: Cycles in the mean time that is shown as the latest.
RECENT_CYCLES = 30
#: Pauses between attempts (`Loop.first_pause_s`).
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
#: A failed Spark job may be such an outage, or a permanent fault: so many failures in a row end the loop.
JOB_ATTEMPTS = 10
#: Interval of a full cycle in an idle loop: failed games, new schemas, commits of other runs.
LOOK_AROUND_S = 30.0
#: Interval of the search for deleted or restored tables: about a second for 2,000 tables.
LOOK_AT_TABLES_S = 600.0
#: Intervals of memory samples and of log lines.
SAMPLE_S, LINE_S = 10.0, 60.0
#: Tag of the loop's Spark jobs: `abandon` cancels jobs with this tag only.
TAG = "game_events_loop"
#: Errors of Spark jobs and of reading tables: an outage, or a permanent fault.
FAULTS = (PySparkException, Py4JError, DeltaError, OSError)
#: Spark's JVM has ended: a retry in this process cannot succeed.
JVM_GONE = (Py4JNetworkError, ConnectionRefusedError)
MIB = 1024 * 1024
#: Every version of gold stays for `EVERY_VERSION_H`, and each refresh replaces files: it waits until those of that time would
#: not take more than so many times the bytes of the tables, or so many bytes, which nobody minds.
REPLACED_TIMES, REPLACED_BYTES = 50, 1024 * MIB


@dataclass
class LoopReport:
    """One continuous run.

    Attributes:
        state: starting, running, idle, paused (other work first), waiting (for a broker, registry or storage), stopped.
        why: what it is paused or waiting for.
        cycles: cycles that committed something.
        looks: polls of the topic that found no records.
        retries: attempts that failed and were repeated.
        memory: MiB by part.
        handed_over: it ended at its time limit, and another run continues.
        gold_interval_s: seconds between refreshes of gold, where its size makes them more than the setting.
    """

    total: RunReport = field(default_factory=RunReport)
    state: str = STARTING
    why: str = ""
    cycles: int = 0
    looks: int = 0
    retries: int = 0
    cycle_s: Histogram = field(default_factory=Histogram)
    memory: dict[str, float] = field(default_factory=dict)
    handed_over: bool = False
    gold_interval_s: float | None = None
    began_s: float = field(default_factory=time.time)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_CYCLES), repr=False)

    def add_cycle(self, report: RunReport, seconds: float) -> None:
        """Add a cycle; it counts if it committed something."""
        self.total.add(report)
        if report.tables:
            self.cycles += 1
            self.cycle_s.add(seconds)
            self._recent.append(seconds)

    @property
    def recent_cycle_s(self) -> float | None:
        """Mean time of the latest cycles."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def loop_dict(self) -> dict[str, object]:
        """The loop's own figures: plain types only."""
        cycles = self.cycle_s.to_dict()
        recent = self.recent_cycle_s
        return {
            "state": self.state,
            "why": self.why,
            "seconds": round(time.time() - self.began_s, 1),
            "cycles": self.cycles,
            "looks": self.looks,
            "retries": self.retries,
            "cycle_s": {"p50": cycles["p50_s"], "p95": cycles["p95_s"], "latest": None if recent is None else round(recent, 2)},
            "memory_mib": self.memory,
            "handed_over": self.handed_over,
            **({} if self.gold_interval_s is None else {"gold_interval_s": round(self.gold_interval_s, 1)}),
        }

    def to_dict(self) -> dict[str, object]:
        """The result of all cycles, with the loop's own figures under `continuous`."""
        return self.total.to_dict() | {"continuous": self.loop_dict()}

    def summary(self) -> str:
        """One line."""
        parts = [f"{self.total.rows('bronze'):,} rows in {self.cycles:,} cycles", f"lag {sum(self.total.lag.values()):,}"]
        parts += [f"source {name} left out ({why})" for name, why in (self.total.left_out or {}).items()]
        for layer in ("silver", "gold"):
            times = self.total.latency.get(layer)
            if times is not None and times.total:
                parts.append(f"produce to {layer} p50 {times.percentile(0.5):.1f} s, p95 {times.percentile(0.95):.1f} s")
        if self.gold_interval_s is not None:
            parts.append(f"gold is refreshed each {self.gold_interval_s:,.0f} s, as its replaced files are large")
        state = f"{self.state}: {self.why}" if self.why else self.state
        return f"{state}; " + ", ".join(parts)


@dataclass
class GoldBytes:
    """Bytes of gold tables and the unified table, by the refreshes of one loop."""

    _live: dict[tuple[str, str | None], int] = field(default_factory=dict)

    def interval_s(self, report: RunReport, kept_s: float) -> float:
        """Seconds between refreshes like this one, so that what they replace within a time is bounded."""
        made = [t for t in report.tables if t.error is None and (is_gold(t.layer) or t.layer == Layer.UNIFIED)]
        self._live.update({(t.table, t.game): t.table_bytes for t in made})
        # Of the unified table only the files of these games.
        replaced = sum(t.table_bytes * t.rows / max(1, t.table_rows) for t in made)
        return kept_s * replaced / max(REPLACED_BYTES, REPLACED_TIMES * sum(self._live.values()))


@dataclass
class Loop:
    """One continuous run.

    Attributes:
        stop: ends the loop after the current step.
        wait_for: called before each cycle: other work that goes first, as text, or None.
        on_cycle: called in the loop's thread with the report of each cycle that committed something.
        duration_s: time limit; gold is refreshed at the end.
        hand_over_s: time limit after which another run continues (`report.handed_over`).
        first_pause_s, longest_pause_s: pauses between attempts during an outage, each twice the one before.
        cycle: one refresh of all layers, which the loop repeats.
        one_pass: what its steps hold for later ones.
    """

    pipeline: Pipeline
    stop: threading.Event = field(default_factory=threading.Event)
    wait_for: Callable[[], str | None] = lambda: None
    on_cycle: Callable[[RunReport], None] = lambda _report: None
    duration_s: float | None = None
    hand_over_s: float | None = None
    first_pause_s: float = FIRST_PAUSE_S
    longest_pause_s: float = LONGEST_PAUSE_S
    cycle: Callable[..., None] = cycle
    one_pass: OnePass = field(default_factory=OnePass)
    report: LoopReport = field(default_factory=LoopReport)
    maintenance: IncrementalMaintenance = field(init=False)
    #: Latest offsets of the source when bronze had all records before them; None: not known.
    _read: Offsets | None = None
    #: Silver may have rows that gold lacks.
    _gold_owed: bool = True
    _gold_bytes: GoldBytes = field(default_factory=GoldBytes)
    _turn_at: float = float("-inf")
    _gold_at: float = float("-inf")
    _around_at: float = float("-inf")
    _tables_at: float = float("-inf")
    _sampled_at: float = float("-inf")
    _line_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.maintenance = IncrementalMaintenance(self.pipeline.lakehouse)

    def run(self) -> LoopReport:
        """Cycle until stopped.

        Raises:
            ConfigurationError, DataError: the user has to act; what was committed stays.
            PySparkException, Py4JError, DeltaError, OSError: retries did not help, or Spark's JVM has ended.
        """
        began = time.monotonic()
        try:
            self.pipeline.spark.addTag(TAG)
            while not self.stop.is_set() and not self._over(time.monotonic() - began):
                self._retrying(self._turn)
                self.stop.wait(max(0.0, self.pipeline.settings.poll_interval_s - (time.monotonic() - self._turn_at)))
            if not self.stop.is_set() and self._gold_owed:
                self._retrying(lambda: self._cycle(self.pipeline.source.snapshot(), gold=True))
        except (TransientError, *FAULTS) as error:
            if not self.stop.is_set():
                raise
            log.info("continuous=stopped abandoned=%r", self.why(error))  # nothing of that step is committed
        finally:
            self.one_pass.drop()
            self._set(STOPPED)
        return self.report

    def _over(self, lasted_s: float) -> bool:
        """Whether a time limit has passed."""
        if self.duration_s is not None and lasted_s >= self.duration_s:
            return True
        self.report.handed_over = self.hand_over_s is not None and lasted_s >= self.hand_over_s
        return self.report.handed_over

    def abandon(self) -> None:
        """Stop, and cancel the running Spark job; its files are never committed. Called from another thread."""
        self.stop.set()
        self.pipeline.spark.interruptTag(TAG)

    def _turn(self) -> None:
        """Poll the source, and run a cycle if there is work."""
        # Intervals of polls and of gold count from the same moment: if both are the same, each cycle refreshes gold.
        clock = self._turn_at = time.monotonic()
        if clock - self._sampled_at >= SAMPLE_S:
            self._sampled_at = clock
            self.report.memory = memory_mib()
        urgent = self.wait_for()
        if urgent is not None:
            self._set(PAUSED, urgent)
            return
        now = self.pipeline.source.snapshot()
        around = clock - self._around_at >= LOOK_AROUND_S
        gold = clock - self._gold_at >= (self.report.gold_interval_s or self.pipeline.settings.gold_interval_s)
        if self._read == now.latest and not around and not (gold and self._gold_owed):
            self.report.looks += 1
            self.report.total.add_maintenance(self.maintenance.work())
            self._set(IDLE)
            return
        self._around_at = clock if around else self._around_at
        self._gold_at = clock if gold else self._gold_at
        self._cycle(now, gold=gold)

    def _cycle(self, now: SourceSnapshot, *, gold: bool) -> None:
        """Run one cycle; its results are reported even if it fails half-way."""
        clock = time.monotonic()
        if self.report.state != RUNNING:
            self._set(RUNNING)
        report = RunReport(waiting=self.report.total.waiting)
        # Until the end of the cycle: it may fail after silver's commits.
        self._read = None
        owed = self._gold_owed
        self._gold_owed = True
        try:
            # A new session, after the loss of a server, does not have the tag.
            self.pipeline.spark.addTag(TAG)
            with storage_named(self.pipeline.settings.lakehouse):
                if clock - self._tables_at >= LOOK_AT_TABLES_S:
                    find_lost_tables(self.pipeline, report)
                    self._tables_at = clock
                self.cycle(
                    self.pipeline,
                    report,
                    until=now,
                    gold=gold,
                    go_on=lambda: not self.stop.is_set(),
                    one_pass=self.one_pass,
                )
            self._read = None if any(report.lag.values()) else now.latest
            # An aggregate with an interval may be due long after the last record.
            self._gold_owed = bool(report.postponed) if gold else owed or bool(report.of("silver"))
            if gold:
                self._stretch(report)
            self.maintenance.note(entry.table for entry in report.tables if entry.error is None)
            report.add_maintenance(self.maintenance.work())
        finally:
            self.report.add_cycle(report, time.monotonic() - clock)
            if report.tables:
                self.on_cycle(report)
                if time.monotonic() - self._line_at >= LINE_S:
                    self._line_at = time.monotonic()
                    _progress.info("continuous: %s", self.report.summary())

    def _stretch(self, report: RunReport) -> None:
        """Refresh gold less often if its replaced files would take too much room."""
        settings = self.pipeline.settings
        needed_s = self._gold_bytes.interval_s(report, settings.every_version_h * 3600)
        self.report.gold_interval_s = needed_s if needed_s > settings.gold_interval_s else None

    def _set(self, state: str, why: str = "") -> None:
        if (state, why) != (self.report.state, self.report.why) and {state, self.report.state} - {RUNNING, IDLE}:
            log.info("continuous=%s%s", state, f" why={why!r}" if why else "")
        self.report.state = state
        self.report.why = why

    def _retrying(self, step: Callable[[], None]) -> None:
        """Run a step; retry it with growing pauses during an outage."""
        Retrying(
            retry=self._again,
            wait=wait_exponential(multiplier=self.first_pause_s, max=self.longest_pause_s),
            sleep=sleep_using_event(self.stop),
            stop=stop_when_event_set(self.stop),
            before_sleep=self._note_failure,
            reraise=True,
        )(step)

    @staticmethod
    def _again(attempt: RetryCallState) -> bool:
        error = _error_of(attempt)
        if isinstance(error, JVM_GONE):
            return False
        if isinstance(error, (*FAULTS, WorkerCrashError)):
            return attempt.attempt_number < JOB_ATTEMPTS
        return isinstance(error, TransientError)

    def _note_failure(self, attempt: RetryCallState) -> None:
        error = _error_of(attempt)
        self.report.retries += 1
        if is_session_lost(error):
            close_session(self.pipeline.spark)
        self.report.state = WAITING
        self.report.why = self.why(error)
        again = attempt.attempt_number, attempt.upcoming_sleep
        log.warning("continuous=waiting attempt=%d again_in_s=%.1f why=%r", *again, self.report.why)

    def why(self, error: BaseException | None) -> str:
        """The first line of an error's text with the cause, without secrets."""
        return "" if error is None else without_secrets(first_line(error), self.pipeline.settings, most=500)


def _error_of(attempt: RetryCallState) -> BaseException | None:
    return attempt.outcome.exception() if attempt.outcome is not None else None


def memory_mib() -> dict[str, float]:
    """Resident MiB of `driver`, `jvm` and `workers` now.

    Pages that forked workers share count once for each, so `workers` is an upper bound. With Spark Connect only `driver` is
    known.
    """
    driver = psutil.Process()
    held = {"driver": driver.memory_info().rss / MIB}
    for jvm in driver.children():
        with suppress(psutil.Error):
            if any("org.apache.spark" in part for part in jvm.cmdline()):
                held["jvm"] = held.get("jvm", 0.0) + jvm.memory_info().rss / MIB
                held["workers"] = held.get("workers", 0.0) + sum(map(_rss, jvm.children(recursive=True))) / MIB
    return {name: round(mib, 1) for name, mib in held.items()}


def _rss(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def idle_report(
    settings: Settings, *, ignore_intervals: bool = False, on_work: Callable[[], None] = lambda: None
) -> RunReport | None:
    """The report of a run that would find nothing to do or to say; None: it would, or that is not known.

    `on_work` is called once it is known that there is work.

    Guarantee: no table was changed, and no Spark session was made; offsets of a consumer group are committed, as by a run.
    What a run would do is not decided here: its steps are made, and the first one that needs Spark or would change a table
    ends the search. So does an error: the run reports it.

    A run after one that did not succeed is made in any case, as its success shows that the fault is over.
    With files as the source, or a catalog, there is always something: files are taken in, tables are registered.
    """
    if any(class_of(one).run_looks for one in settings_or_each(settings)) or settings.catalog is not None:
        return None
    met: list[str] = []

    def no_session() -> SparkSession:
        met.append("Spark")
        raise ReadOnlyError("a Spark session is needed")

    pipeline = Pipeline(settings, no_session, read_only=True, quiet=True)
    report = RunReport()
    try:
        for step in TriggeredRun(pipeline, report, ignore_intervals=ignore_intervals).steps.values():
            step()
        before = newest_run(pipeline.lakehouse)
    except ReadOnlyError:
        on_work()
        return None
    except Exception as error:  # noqa: BLE001 - whatever it is, the run meets it again, and reports it
        log.debug("error=%s", type(error).__name__)
        return None
    if met or not report.is_empty:
        on_work()
        return None
    return report if before is None or before["status"] == SUCCEEDED else None
