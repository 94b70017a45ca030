"""`game-events run --continuous`: the loop in this process, until Ctrl-C."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import ExitStack

from dagster import DagsterInstance, DagsterRun

from game_events.cli.dagster_run import JobResult, dagster_home, run_job, show_run
from game_events.cli.output import Output
from game_events.config.network import begin_call
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse
from game_events.orchestration.continuous import run_under_way, stop_loops_of_this_process
from game_events.orchestration.keys import JOB
from game_events.orchestration.runs import HANDED_OVER, PROCESS_TAG, this_process

#: Seconds between two looks at the runs of continuous mode, and at Ctrl-C.
LOOK_S = 0.2


def run_continuously(
    output: Output, settings: Settings, duration_s: float | None, execute: Callable[..., JobResult] = run_job
) -> JobResult:
    """Run the loop until Ctrl-C, SIGTERM or its time is over; then show its report. `execute`: makes one run (as `run_job`).

    A second Ctrl-C ends the process at once; what is committed is whole.

    Raises:
        ConfigurationError: a continuous run is under way already.
    """
    other = _run_under_way(settings)
    if other is not None:
        raise ConfigurationError(
            f"continuous mode is on already: run {other.run_id} ({other.tags.get(PROCESS_TAG, 'its process is not known')}); "
            "terminate it in the Dagster UI, or press Ctrl-C where it was started"
        )
    pressed: list[int] = []
    with ExitStack() as handlers, output.working("continuous (Ctrl-C stops)"):
        for number in (signal.SIGINT, signal.SIGTERM):
            handlers.callback(signal.signal, number, signal.signal(number, lambda number, _: pressed.append(number)))
        # In a thread, as Dagster in the main thread makes Ctrl-C a cancelled run without a report.
        runs = begin_call(lambda: _runs(output, settings, duration_s, pressed, execute), "dagster")
        warned = False
        while not wait([runs], LOOK_S).done:
            if len(pressed) > 1:
                _end_at_once(output, settings)
            if pressed:
                if not warned:
                    output.say("stopping after the step under way; Ctrl-C again ends at once")
                warned = True
                stop_loops_of_this_process()
    result = runs.result()
    if result.report:
        _show_loop(output, settings, result)
    if result.error:
        output.say(f"continuous mode failed: {result.error}")
    return result


def _runs(
    output: Output, settings: Settings, left_s: float | None, pressed: Sequence[int], execute: Callable[..., JobResult]
) -> JobResult:
    """Continuous runs, one after the other; the result of the last one."""
    while True:
        began = time.monotonic()
        result = execute(settings, JOB, {"duration_s": left_s})
        if not result.report.get("continuous", {}).get("handed_over"):
            return result
        if pressed:
            # Ctrl-C came while the run made room for the next one: no sensor is to start that either.
            with DagsterInstance.from_config(str(dagster_home(settings))) as instance:
                instance.add_run_tags(result.run_id, {HANDED_OVER: "false"})
            return result
        output.say(f"run {result.run_id} has lasted CONTINUOUS_RUN_H; a new one continues")
        if left_s is not None:
            left_s = max(LOOK_S, left_s - (time.monotonic() - began))


def _end_at_once(output: Output, settings: Settings) -> None:
    """Who presses Ctrl-C twice wants it off: the run is noted as terminated, so that no sensor starts it again."""
    output.say("ended at once")
    try:
        run = _run_under_way(settings)
        if run is not None and run.tags.get(PROCESS_TAG) == this_process():
            with DagsterInstance.from_config(str(dagster_home(settings))) as instance:
                instance.report_run_canceled(run, "ended at once by a second Ctrl-C")
    except Exception as error:  # noqa: BLE001 - it ends at once, whatever Dagster's storage answers
        output.say(f"the run could not be noted as terminated, so a sensor may start it again: {error}")
    os._exit(128 + signal.SIGINT)  # a shell's exit code for a program that Ctrl-C ended


def _run_under_way(settings: Settings) -> DagsterRun | None:
    with DagsterInstance.from_config(str(dagster_home(settings))) as instance:
        return run_under_way(instance, settings)


def _show_loop(output: Output, settings: Settings, result: JobResult) -> None:
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
