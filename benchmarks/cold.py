"""Cold commands: from the start of a process to its end, as a user runs them, of this project and its peers in turns."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arena import Arena, settings_for
from benchmarks.figures import Figure, Step, Target, ratio
from benchmarks.lakes import require
from benchmarks.memory import peak_of
from benchmarks.peers.process import own_environment
from benchmarks.peers.running import OURS, PEERS, PY_GAMES, SPARK_ONE, TABLES, command_of, request_of
from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.config.settings import Settings
from game_events_tests.support.commands import GAME_EVENTS

GAMES, RECORDS = 10, 1_000
TOPIC = "bench_cold"
NAMES = (OURS, PY_GAMES, SPARK_ONE)
TIMEOUT_S = 600
FIRST, INCREMENT = "first load", f"{RECORDS:,} records"


@dataclass(frozen=True)
class Command:
    """What is started, what it gets on its input, and its environment."""

    arguments: list[str]
    input: str
    environment: Mapping[str, str]


def cold(arena: Arena) -> list[Figure]:
    """A first load and an increment by each, on a new lakehouse for each pair."""
    events = arena.events // 2
    total = events
    arena.produce(TOPIC, events, GAMES)
    for pair in range(arena.pairs):
        names = NAMES if pair % 2 == 0 else NAMES[::-1]
        with arena.lakehouse() as made:
            made.mkdir()
            for name in names:
                _run(arena, name, FIRST, pair, made / _folder(name), total)
            arena.produce(TOPIC, RECORDS, GAMES, seed=1_000 + pair)
            total += RECORDS
            for name in names:
                _run(arena, name, INCREMENT, pair, made / _folder(name), RECORDS)
                require(made / _folder(name) / "lake", total, name, unified=PEERS[name].layout == TABLES)
    return _figures(arena, events)


def _folder(name: str) -> str:
    return PEERS[name].program


def _run(arena: Arena, name: str, what: str, pair: int, folder: Path, new: int) -> None:
    """One command, from its start to its end."""
    (folder / "lake").mkdir(parents=True, exist_ok=True)
    command = _command(arena, name, folder, new)
    began = time.monotonic()
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            command.arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=dict(command.environment),
            cwd=folder,
        )
        with peak_of(process.pid) as peak:
            process.communicate(command.input, timeout=TIMEOUT_S)
    seconds = time.monotonic() - began
    if process.returncode != 0:
        raise RuntimeError(f"{name} ended with {process.returncode}: {(folder / 'errors').read_text()[-2000:]}")
    arena.add(Step(f"cold {what}, {name}", GAMES, pair, new, seconds, peak.mib, peak.cpu_s))


def _command(arena: Arena, name: str, folder: Path, new: int) -> Command:
    kind = PEERS[name]
    settings = settings_for(arena.folder, TOPIC, folder / "lake")
    if name == OURS:
        return Command([*GAME_EVENTS, "run", "--json"], "", command_environment(settings))
    arguments = command_of(kind.program, arena)
    assert arguments is not None
    own = {"topic": TOPIC, "root": settings.lakehouse, "layout": kind.layout, "new": new}
    return Command(arguments, json.dumps(request_of(arena) | own) + "\n", own_environment())


def command_environment(settings: Settings) -> dict[str, str]:
    """For a command of this project: where things are; everything else as it is by default."""
    places = ("state_dir", "lakehouse", "kafka_topic", "kafka_bootstrap_servers", "schema_registry_url")
    return os.environ | {f"{ENV_PREFIX}{name.upper()}": str(getattr(settings, name)) for name in places}


def _figures(arena: Arena, events: int) -> list[Figure]:
    figures = list[Figure]()
    goals = {FIRST: None, INCREMENT: Target("<=", 2.5)}
    for what, goal in goals.items():
        table = f"{what} of {events:,} events" if what == FIRST else what
        for name in NAMES:
            steps = arena.measured.of(f"cold {what}, {name}", GAMES)
            columns = {"s": [s.seconds for s in steps], "processor time (s)": [s.cpu_s for s in steps]}
            columns["peak memory (MiB)"] = [s.peak_mib for s in steps]
            for unit, samples in columns.items():
                own = goal if name == OURS and unit == "s" else None
                figures.append(Figure(f"cold, {table} | {name} | {unit}", unit, samples, own))
        ours, *others = (arena.measured.seconds([f"cold {what}, {name}"], GAMES) for name in NAMES)
        for name, theirs in zip(NAMES[1:], others, strict=True):
            figures.append(ratio(f"cold {what}: this project's time / {name}", ours, theirs))
    return figures
