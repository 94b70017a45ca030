"""`game-events run --continuous`: the loop in this process, until Ctrl-C."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from dagster import DagsterInstance

from game_events.cli.dagster_run import JobResult, dagster_home, run_job, show_run
from game_events.cli.output import Output
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse
from game_events.orchestration.continuous import run_under_way, stop_loops_of_this_process
from game_events.orchestration.keys import JOB
from game_events.orchestration.runs import HANDED_OVER, PROCESS_TAG, this_process

LOOK_S = 0.2


class CtrlC:
    """Counts Ctrl-C and SIGTERM."""

    count = 0

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        """The handler."""
        self.count += 1

    @contextmanager
    def installed(self) -> Iterator[Self]:
        """For the time of a block."""
        before = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_continuously(
    output: Output, settings: Settings, duration_s: float | None, execute: Callable[..., JobResult] = run_job
) -> JobResult:
    """Run the loop until Ctrl-C, SIGTERM or its time is over; then show its report. `execute`: makes one run (as `run_job`).

    A second Ctrl-C ends the process at once; what is committed is whole.

    Raises:
        ConfigurationError: a continuous run is under way already.
    """
    home = str(dagster_home(settings))
    with DagsterInstance.from_config(home) as instance:
        other = run_under_way(instance, settings)
    if other is not None:
        raise ConfigurationError(
            f"continuous mode is on already: run {other.run_id} ({other.tags.get(PROCESS_TAG, 'its process is not known')}); "
            "terminate it in the Dagster UI, or press Ctrl-C where it was started"
        )
    pressed = CtrlC()
    runs = _Runs(output, settings, duration_s, pressed, execute)
    with pressed.installed(), output.working("continuous (Ctrl-C stops)"):
        runs.start()
        _wait(runs, output, settings, home, pressed)
    if runs.error is not None:
        raise runs.error
    result = runs.results[-1]
    if result.report:
        _show(output, settings, result)
    if result.error:
        output.say(f"continuous mode failed: {result.error}")
    return result


class _Runs(threading.Thread):
    """Continuous runs, one after the other.

    In a thread, as Dagster in the main thread makes Ctrl-C a cancelled run without a report.
    """

    def __init__(
        self,
        output: Output,
        settings: Settings,
        duration_s: float | None,
        pressed: CtrlC,
        execute: Callable[..., JobResult],
    ) -> None:
        super().__init__(name="dagster", daemon=True)
        self._output, self._settings, self._left, self._pressed = output, settings, duration_s, pressed
        self._execute = execute
        self.results: list[JobResult] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self._next():
                pass
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            self.error = error

    def _next(self) -> bool:
        """Whether another run follows the one that this method executes."""
        began = time.monotonic()
        result = self._execute(self._settings, JOB, {"duration_s": self._left})
        self.results.append(result)
        if not result.report.get("continuous", {}).get("handed_over"):
            return False
        if self._pressed.count:
            # Ctrl-C came while the run made room for the next one: no sensor is to start that either.
            with DagsterInstance.from_config(str(dagster_home(self._settings))) as instance:
                instance.add_run_tags(result.run_id, {HANDED_OVER: "false"})
            return False
        self._output.say(f"run {result.run_id} has lasted CONTINUOUS_RUN_H; a new one continues")
        if self._left is not None:
            self._left = max(LOOK_S, self._left - (time.monotonic() - began))
        return True


def _wait(runs: _Runs, output: Output, settings: Settings, home: str, pressed: CtrlC) -> None:
    """Wait for the end of the runs; ends the process at the second Ctrl-C."""
    warned = False
    while runs.is_alive():
        runs.join(LOOK_S)
        if pressed.count > 1:
            output.say("ended at once")
            try:
                _switch_off(home, settings)
            except Exception as error:  # noqa: BLE001 - it ends at once, whatever Dagster's storage answers
                output.say(f"the run could not be noted as terminated, so a sensor may start it again: {error}")
            os._exit(128 + signal.SIGINT)  # a shell's exit code for a program that Ctrl-C ended
        if pressed.count:
            if not warned:
                output.say("stopping after the step under way; Ctrl-C again ends at once")
            warned = True
            stop_loops_of_this_process()


def _switch_off(home: str, settings: Settings) -> None:
    """Who presses Ctrl-C twice wants it off: the run is noted as terminated, so that no sensor starts it again."""
    with DagsterInstance.from_config(home) as instance:
        run = run_under_way(instance, settings)
        if run is not None and run.tags.get(PROCESS_TAG) == this_process():
            instance.report_run_canceled(run, "ended at once by a second Ctrl-C")


def _show(output: Output, settings: Settings, result: JobResult) -> None:
    show_run(output, result.report, settings.names)
    loop = result.report["continuous"]
    latency = result.report["latency"]
    if latency:
        rows = [(layer, times["rows"], times["p50_s"], times["p95_s"]) for layer, times in latency.items()]
        output.table("from produce to visible (s)", ("layer", "rows", "p50", "p95"), rows)
    cycles = loop["cycle_s"]
    output.say(
        f"{loop['cycles']:,} cycles in {loop['seconds']:,.0f} s (p50 {cycles['p50'] or 0} s, p95 {cycles['p95'] or 0} s), "
        f"{loop['looks']:,} looks at an idle topic, {loop['retries']:,} retries"
    )
    output.say(f"tables: {Lakehouse.of(settings).root}")
