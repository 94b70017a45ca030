"""What these tests share: small waves of records, whole runs in a process of their own, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from game_events.config.settings import Settings
from game_events.lakehouse.commits import group as game_commits
from game_events.lakehouse.commits.commit import Commit, Landed, commit
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.context import Pipeline
from game_events.plugins.local.producer.produce import Manifest, produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support.commands import GAME_EVENTS
from game_events_tests.support.faults import handle_failpoints
from game_events_tests.support.killing.sitecustomize import killed_at
from game_events_tests.support.processes import running
from game_events_tests.support.reconciliation import gold, rows
from game_events_tests.support.servers.attached_driver import Driver, start_driver
from game_events_tests.support.servers.small_jvm import JAVA_OPTIONS

GAMES = ("rummy", "spades", "uno")
COMMAND = [*GAME_EVENTS, "run", "--json"]
#: A JVM whose Python is gone ends by itself within 3 s on an idle machine.
ORPHAN_S = 30.0
#: Several processes at once, on a machine that may be busy.
RIVALS_S = 600.0
_seeds = itertools.count(1)


def send(
    settings: Settings, version: int = 1, games: tuple[str, ...] = GAMES, records: int = 6, poison: float = 0.25
) -> Manifest:
    """A small wave of its own values: `records` of each game, written with one schema version, and some poison."""
    return produce(
        settings,
        Simulation(
            games=games,
            records_per_game_and_version=records,
            versions=(version,),
            seed=next(_seeds),
            gamers_per_game=4,
            poison_share=poison,
        ),
        partitions=2,
    )


def versions(settings: Settings) -> dict[str, int]:
    """Table -> Delta version, for every table of the lakehouse."""
    lakehouse = Lakehouse.of(settings)
    return {name: DeltaTable(lakehouse.table(name).uri).version() for name in lakehouse.names()}


def start_run(settings: Settings, home: Path, crash_at: str | None = None, *arguments: str) -> subprocess.Popen[str]:
    """`game-events run` in a process of its own, as a user starts it."""
    home.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "DAGSTER_HOME": str(home),
        "GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "GAME_EVENTS_SCHEMA_REGISTRY_URL": settings.schema_registry_url,
        "GAME_EVENTS_KAFKA_TOPIC": settings.kafka_topic,
        "GAME_EVENTS_LAKEHOUSE": settings.lakehouse,
        "GAME_EVENTS_STATE_DIR": str(settings.state_dir),
        "GAME_EVENTS_MAX_RECORDS_PER_BATCH": str(settings.max_records_per_batch),
        "GAME_EVENTS_SPARK_MASTER": settings.spark_master,
        "GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH": str(settings.allow_bronze_full_refresh),
    }
    # Its JVM and what that costs are not the point.
    environment["JAVA_TOOL_OPTIONS"] = JAVA_OPTIONS
    if crash_at is not None:
        environment |= killed_at(crash_at)
    # Into files: nobody reads a pipe of a run that others wait for.
    with (home / "stdout").open("w") as out, (home / "stderr").open("w") as err:
        return subprocess.Popen([*COMMAND, *arguments], env=environment, cwd=home, stdout=out, stderr=err, text=True)


def orphans(settings: Settings) -> list[psutil.Process]:
    """Processes of killed runs: only those carry this test's topic in their environment."""
    found = []
    for process in running():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("GAME_EVENTS_KAFKA_TOPIC") == settings.kafka_topic:
                found.append(process)
    return found


def end_orphans(settings: Settings) -> None:
    """Wait for a killed run's JVM and workers to end by themselves; end what stays, each by its pid."""
    _, stayed = psutil.wait_procs(orphans(settings), ORPHAN_S)
    for process in stayed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stayed, ORPHAN_S)
    assert not orphans(settings)


class PowerCut(BaseException):
    """A crash within this process: no handler of the code under test catches it."""


def at_point(monkeypatch: pytest.MonkeyPatch, point: str, action: Callable[[], None]) -> list[str]:
    """Do something when a failpoint is reached for the first time; returns a list that then holds the point."""
    happened: list[str] = []

    def handle(name: str, detail: object) -> None:
        if not happened and point in (name, f"{name}:{detail}"):
            happened.append(point)
            action()

    handle_failpoints(monkeypatch, handle)
    return happened


@contextlib.contextmanager
def power_cut_at(point: str) -> Iterator[None]:
    """The block must be ended by a crash at this point."""

    def cut() -> None:
        raise PowerCut(point)

    with pytest.MonkeyPatch.context() as patch:
        happened = at_point(patch, point, cut)
        with pytest.raises(PowerCut):
            yield
    assert happened == [point]


def recomputed(settings: Settings, game: str) -> dict[str, tuple[object, ...]]:
    """A game's aggregate, recomputed from its silver table by DuckDB."""
    found = rows(
        settings,
        f"silver_{game}_events",
        "SELECT gamer_id, count(*), min(event_timestamp), max(event_timestamp) FROM t GROUP BY gamer_id",
    )
    return {row[0]: row[1:] for row in found}


def unified(settings: Settings, game: str) -> dict[str, tuple[object, ...]]:
    """A game's rows of the unified table."""
    columns = "gamer_id, session_count, min_timestamp, max_timestamp"
    found = rows(settings, "gold_unified_player_agg", f"SELECT {columns} FROM t WHERE game_name = '{game}'")
    assert len({r[0] for r in found}) == len(found), "a player of the game stands twice in the unified table"
    return {row[0]: row[1:] for row in found}


def assert_gold_follows_silver(settings: Settings, *games: str) -> None:
    """Gold equals a full recompute from silver, and the unified table equals gold."""
    for game in games:
        assert gold(settings, game) == recomputed(settings, game)
        assert unified(settings, game) == gold(settings, game)


def wait_all(runs: Sequence[Driver | subprocess.Popen[str]], timeout_s: float) -> list[int]:
    """Exit codes of processes; one that does not end is killed."""
    until = time.monotonic() + timeout_s
    try:
        return [run.wait(max(1.0, until - time.monotonic())) for run in runs]
    finally:
        for run in runs:
            run.kill()


def run_rivals(settings: Settings, rivals: Sequence[dict[str, str]], spark: SparkSession, folder: Path) -> None:
    """A run by each driver, with settings of its own; none commits before all have staged rows of bronze."""
    logs = [folder / f"log{n}" for n in range(len(rivals))]
    meet = f"{folder}:{len(rivals)}"
    drivers = [start_driver(settings, spark, log, meet=meet, **own) for own, log in zip(rivals, logs, strict=True)]
    assert wait_all(drivers, RIVALS_S) == [0] * len(rivals), [log.read_text() for log in logs]
    assert len(list(folder.glob("bronze_staged-*"))) == len(rivals), "they did not meet"


def silver_version(pipeline: Pipeline, game: str) -> int:
    """Delta version of a game's silver table."""
    handle = pipeline.lakehouse.silver(game).open()
    assert handle is not None
    return handle.version()


def fail_commits_of(patch: pytest.MonkeyPatch, table: str) -> None:
    """The storage refuses every commit to one table."""

    def refusing(plan: Commit) -> Landed:
        if plan.table.name == table:
            raise OSError(f"no space left for {table}")
        return commit(plan)

    patch.setattr(game_commits, "commit", refusing)
