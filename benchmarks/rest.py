"""HTTP export: the table of the documents behind this project, repeated, and how far concurrent calls take it on few cores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import psutil
from pydantic import SecretStr
from pyspark.sql import SparkSession

from benchmarks.arena import Arena, make_spark, settings_for
from benchmarks.figures import Figure, Step, Target
from game_events.config.settings import Settings
from game_events.lakehouse.tables import EXPORT_TABLES
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.export.run import Export, export_rows
from game_events_tests.support.commands import GAME_EVENTS

GAMES = 10
ROWS = 21_932
#: Rows of a part, for one call at a time in each task: what such a rate is does not depend on how many rows there are.
PART_ROWS = 2_400
#: Rows per call -> how long the receiver takes for a call, in ms.
LATENCY_MS = {1: 34.0, 10: 95.0}
#: (rows per call, tasks) -> rows a second that the documents report, on 16 cores.
THEIRS = {(1, 4): 122, (1, 8): 249, (1, 16): 447, (10, 4): 456, (10, 8): 877, (10, 16): 1_687}
CALLS_AT_ONCE = 32
TASKS = 16
AHEAD = 5
TIMEOUT_S = 3600


def rest(arena: Arena) -> list[Figure]:
    """Every cell of the table, with one call at a time in each task and with several; in a process with 16 task slots."""
    topics = {rows: arena.topic(GAMES, rows) for rows in (ROWS, PART_ROWS)}
    arena.say(f"exporting {ROWS:,} rows to a receiver of this machine, in a process with {TASKS} task slots")
    with arena.lakehouse() as root:
        command = [sys.executable, "-m", "benchmarks.rest", str(arena.folder), str(root), json.dumps(topics)]
        child = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if child.returncode != 0:
        raise RuntimeError(f"the export ended with {child.returncode}: {child.stderr[-2000:]}")
    measured = json.loads(child.stdout.splitlines()[-1])
    for cell in measured:
        name = f"rest, {cell['rows_per_call']} rows/call, {cell['tasks']} tasks x {cell['calls']} calls"
        arena.add(Step(name, GAMES, 0, cell["rows"], cell["seconds"], 0.0, cell["cpu_s"], _said(cell)))
    return figures(measured)


def figures(measured: list[dict[str, float]]) -> list[Figure]:
    """Lines of the table; cells with one call at a time have no target: 4 tasks x 1 call / 34 ms are 118 rows/s at most."""
    lines = []
    for cell in measured:
        theirs = THEIRS[int(cell["rows_per_call"]), int(cell["tasks"])]
        name = f"REST, {cell['rows_per_call']:.0f} rows/call, {cell['tasks']:.0f} tasks x {cell['calls']:.0f} calls at once"
        target = Target(">=", theirs) if cell["calls"] > 1 else None
        if cell["calls"] > 1 and (cell["rows_per_call"], cell["tasks"]) == (10, TASKS):
            target = Target(">=", AHEAD * theirs)
        alone = next(c for c in measured if c["rows_per_call"] == cell["rows_per_call"] and c["calls"] == cell["calls"])
        scaling = cell["rows_per_s"] / alone["rows_per_s"]
        note = f"theirs {theirs:,} on 16 cores; {_said(cell)}; {scaling:.2f}x of {alone['tasks']:.0f} tasks"
        lines.append(Figure(name, "rows/s", [cell["rows_per_s"]], target, note))
    return lines


def _said(cell: dict[str, float]) -> str:
    return (
        f"{cell['calls_per_s']:,.0f} calls/s, median {cell['p50_ms']:.0f} ms, {cell['at_once']:.0f} tasks at once, "
        f"{cell['cpu_s']:.1f} s of processor time"
    )


@contextmanager
def receiver(latency_ms: float) -> Iterator[str]:
    """The mock API in a process of its own."""
    command = [*GAME_EVENTS, "mock-api", "--port", "0", "--latency-ms", str(latency_ms), "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=30)


def main(folder: Path, root: Path, topics: dict[str, str]) -> None:
    """The child: silver of both topics, then every cell; prints them."""
    os.environ["GAME_EVENTS_MODE"] = "development"
    lakes = {}
    for count, topic in topics.items():
        settings = settings_for(folder, topic, root / topic)
        lakes[int(count)] = settings.model_copy(update={"spark_master": f"local[{TASKS}]"})
    session = make_spark(lakes[ROWS])
    for rows, settings in lakes.items():
        report = refresh(Pipeline(settings, lambda: session))
        assert report.rows("silver") == rows, report.to_dict()
    print(json.dumps(cells(lakes, session)))


def cells(lakes: dict[int, Settings], session: SparkSession) -> list[dict[str, float]]:
    """Every cell of the table."""
    with receiver(1.0) as url:  # workers that have imported everything, as a second export finds them
        _cell(
            lakes[PART_ROWS],
            session,
            PART_ROWS,
            10,
            rest_url=SecretStr(url),
            rest_tasks=TASKS,
            rest_calls_per_task=CALLS_AT_ONCE,
        )
    measured = []
    for rows_per_call, latency_ms in LATENCY_MS.items():
        for calls in (1, CALLS_AT_ONCE):
            for tasks in (4, 8, TASKS):
                with receiver(latency_ms) as url:
                    rows = ROWS if calls > 1 else PART_ROWS
                    more = {"rest_url": SecretStr(url), "rest_tasks": tasks, "rest_calls_per_task": calls}
                    measured.append(_cell(lakes[rows], session, rows, rows_per_call, **more))
    return measured


def _cell(settings: Settings, session: SparkSession, rows: int, rows_per_call: int, **more: Any) -> dict[str, float]:  # noqa: ANN401 - settings
    """One export of all rows, from nothing."""
    for name in EXPORT_TABLES:
        rmtree(Path(settings.lakehouse) / name, ignore_errors=True)
    chosen = settings.model_copy(update={**more, "rest_rows_per_call": rows_per_call})
    report = RunReport()
    began = time.monotonic()
    cpu = _cpu_s()
    export_rows(Pipeline(chosen, lambda: session), report)
    done = report.part(Export)
    assert done is not None
    assert done.delivered_rows == rows, report.to_dict()
    return {
        "rows_per_call": rows_per_call,
        "tasks": more["rest_tasks"],
        "calls": more["rest_calls_per_task"],
        "rows": rows,
        "seconds": time.monotonic() - began,
        "rows_per_s": done.delivered_rows / done.seconds,
        "calls_per_s": done.calls / done.seconds,
        "p50_ms": (done.latency_s or (0, 0))[0] * 1000,
        "at_once": done.at_once,
        "cpu_s": _cpu_s() - cpu,
    }


def _cpu_s() -> float:
    """Processor time of this process and everything below it, by now."""
    me = psutil.Process()
    return sum(sum(p.cpu_times()[:2]) for p in (me, *me.children(recursive=True)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
