"""Starts: how long commands take that have little or nothing to do, each in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from benchmarks.arena import Arena, settings_for
from benchmarks.cold import command_environment
from benchmarks.figures import Figure, Step, Target
from benchmarks.memory import tree_cpu_s
from game_events.config.settings import Settings
from game_events.plugins.local.producer.produce import produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation
from game_events.plugins.local.up import WarmSpark
from game_events_tests.support.commands import GAME_EVENTS

TOPIC, RECORDS, GAMES = "bench_starts", 1_000, 7
COLD, WARM, IDLE = (
    f"cold run of {RECORDS:,} records",
    f"run of {RECORDS:,} records beside the warm server",
    "run, nothing to do",
)
#: Name -> arguments, and the seconds that it may take on an idle machine.
COMMANDS: Mapping[str, tuple[tuple[str, ...], float]] = {
    IDLE: (("run",), 1.0),
    "--help": (("--help",), 0.2),
    "tables": (("tables",), 0.5),
    "sql": (("sql", "SELECT count(*) FROM gold_unified_player_agg"), 0.8),
    "log": (("log",), 0.6),
    "doctor": (("doctor",), 1.2),
}
#: Seconds between two looks at the processor time of a command's processes: each look takes some of it.
LOOK_S = 0.25
TARGETS = {COLD: 15.0, WARM: 7.0} | {name: seconds for name, (_, seconds) in COMMANDS.items()}


def starts(arena: Arena) -> list[Figure]:
    """Wall time of each command from the start of its process; beside it the processor time, for busy machines."""
    with arena.lakehouse() as lakehouse:
        settings = settings_for(arena.folder, TOPIC, lakehouse)
        environment = command_environment(settings)
        # Makes topic, tables and Dagster's instance.
        _produce(settings, seed=0)
        _call(arena, "first run", -1, environment, "run")
        for pair in range(arena.pairs):
            _produce(settings, seed=1 + pair)
            _call(arena, COLD, pair, environment, "run")
            for name, (arguments, _) in COMMANDS.items():
                _call(arena, name, pair, environment, *arguments)
        with _warm(settings):
            for pair in range(-1, arena.pairs):
                _produce(settings, seed=100 + pair)
                _call(arena, WARM if pair >= 0 else "the server's first run", pair, environment, "run")
    warm, cold = (arena.measured.of(name, 0) for name in (WARM, COLD))
    ratios = [beside.seconds / alone.seconds for beside, alone in zip(warm, cold, strict=True)]
    return [_figure(arena, name, seconds) for name, seconds in TARGETS.items()] + [
        Figure("beside the warm server / cold", "x", ratios)
    ]


def _figure(arena: Arena, name: str, seconds: float) -> Figure:
    steps = arena.measured.of(name, 0)
    processor = sorted(step.cpu_s for step in steps)[len(steps) // 2]
    # The server's processor time is not the command's.
    note = "" if name == WARM else f"{processor:.1f} s of processor time"
    return Figure(name, "s", [step.seconds for step in steps], Target("<=", seconds), note)


def _produce(settings: Settings, seed: int) -> None:
    """No event of another call is sent again."""
    produce_bulk(settings, BulkSimulation(records=RECORDS, games=GAMES, seed=seed, pool_per_version=RECORDS), partitions=4)


def _call(arena: Arena, name: str, pair: int, environment: Mapping[str, str], *arguments: str) -> None:
    """A command from its start to its end; `pair` -1: not measured."""
    json_too = () if arguments[0].startswith("-") else ("--json",)
    began = time.monotonic()
    process = subprocess.Popen(
        [*GAME_EVENTS, *arguments, *json_too],
        env=dict(environment),
        cwd=arena.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    before, spent = _of_children_s(), 0.0
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
            break
        spent = max(spent, tree_cpu_s(process.pid))
    seconds, (printed, _) = time.monotonic() - began, process.communicate()
    spent = max(spent, _of_children_s() - before)
    assert process.returncode == 0, f"{name}: {printed[-1000:]}"
    if arguments == ("run",):
        found = json.loads(printed.splitlines()[-1])["rows"]["silver"]
        assert found == (0 if name == IDLE else RECORDS), f"{name}: silver has {found} new rows"
    arena.add(Step(name, 0, pair, RECORDS, seconds, 0.0, spent))


def _of_children_s() -> float:
    """Processor time of the processes that have ended, without those (a JVM) that they have left to end by themselves."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def _warm(settings: Settings) -> Iterator[None]:
    """What `game-events up` has ready for the commands of other terminals."""
    server = WarmSpark(settings, print)
    server.start()
    try:
        yield
    finally:
        server.end()
