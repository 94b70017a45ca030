"""A chaos run from its first kill to its account."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from game_events.pipeline.context import Pipeline
from game_events_tests.scenarios.chaos import invariants
from game_events_tests.scenarios.chaos.account import Account
from game_events_tests.scenarios.chaos.arena import HANGS_S, SECRET, Arena
from game_events_tests.scenarios.chaos.declared import CHANGED
from game_events_tests.scenarios.chaos.processes import Driver
from game_events_tests.scenarios.chaos.topic_truth import read_truth
from game_events_tests.scenarios.chaos.watching import Watcher

#: A loop comes to these by itself, again and again.
LOOP_POINTS = (
    "file_open:progress",
    "schemas_archived",
    "bronze_staged",
    "quarantine_committed",
    "bronze_committed",
    "silver_staged",
    "rejections_decided",
    "game_committed:1",
    "silver_committed",
    "gold_staged",
    "gold_game_committed:2",
    "gold_committed",
    "unified_staged",
    "unified_committed",
    "progress_moved",
)
#: Commands beside the loop, and where each is killed (None: anywhere).
COMMANDS: tuple[tuple[tuple[str, ...], str | None], ...] = (
    (("run",), None),
    (("run",), "bronze_staged"),
    (("run",), "silver_replanned"),
    (("run", "--full-refresh", "silver"), "silver_replanned"),
    (("run", "--full-refresh", "bronze"), "reset_staged"),
    (("run", "--full-refresh", "bronze"), None),
    (("redecode",), "redecode_staged"),
    (("quarantine", "replay"), "replay_staged"),
    (("quarantine", "replay"), None),
    (("maintain",), "file_open:bronze_events"),
    (("maintain",), None),
)
#: Where the command is killed that makes all rows again by other definitions.
REDEFINITION_POINTS = (
    "redecode_staged",
    "redecode_committed",
    "silver_replanned",
    "game_committed:2",
    "silver_committed",
    "gold_staged",
    "unified_staged",
)
REDECODE = ("redecode", "--downstream")
#: Of twenty kills so many are of this kind; the rest are at failpoints.
SHARES = {"worker": 5, "broker": 2, "registry": 1, "producer": 1, "jvm": 2, "driver": 2, "command": 2, "point": 5}
#: Of a full run: seconds that everything runs undisturbed between two kills, at most.
CALM_S = 4.0
#: A third of the kills come while the one before is still felt.
AT_ONCE = 0.33


def plan(arena: Arena, kills: int) -> list[str]:
    """Kinds of kills in the order in which they come: the shares of a full run, drawn by the seed.

    In their middle other definitions come.
    """
    kinds: list[str] = []
    while len(kinds) < kills:
        bag = [kind for kind, share in SHARES.items() for _ in range(share)]
        arena.draw.shuffle(bag)
        kinds += bag
    return [*kinds[: kills // 2], "redefinition", *kinds[kills // 2 + 1 : kills]]


def chaos(
    folder: Path,
    *,
    seed: int,
    kinds: list[str] | int,
    rate: float = 1_500.0,
    calm_s: float = CALM_S,
    drain: Callable[[Arena], None] | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> Account:
    """Kill, wait for the end, count.

    Args:
        folder: for everything: stack, tables, logs.
        seed: every choice follows from it.
        kinds: what to kill, in order; or how many kills.
        rate: records per second of a wave that is no burst.
        calm_s: seconds that everything runs undisturbed between two kills, at most.
        drain: brings all tables up to the topic; None: the command line does.
        say: told what happens.
    """
    arena = Arena(folder, seed, rate, say)
    watcher = Watcher(arena.settings())
    try:
        arena.start_producer()
        arena.start_loop()
        arena.wait_for(lambda: arena.bronze_version() > 0, "the first rows")
        watcher.start()
        order = plan(arena, kinds) if isinstance(kinds, int) else kinds
        wanted = len(order)
        while len(arena.account.kills) < wanted and order:
            _strike(arena, order.pop(0), calm_s)
            if len(arena.account.kills) < wanted and not order:
                order.append("worker")  # one of them found its victim gone
        arena.stop_producer()
        (drain or drained)(arena)
        watcher.stop()
        _count(arena, watcher)
    finally:
        watcher.stop()
        arena.close()
    return arena.account


def _strike(arena: Arena, kind: str, calm_s: float) -> None:
    kills = arena.account.kills
    before = len(kills)
    if before and arena.draw.random() > AT_ONCE:
        kills[-1].back_s = round(arena.progress(f"a commit of bronze after {kills[-1]}"), 1)
        time.sleep(arena.draw.uniform(0, calm_s))
    elif arena.loop is not None and not arena.loop.alive:
        arena.start_loop()
    if kind == "point":
        arena.kill_at(f"{arena.draw.choice(LOOP_POINTS)}@{arena.draw.randint(1, 4)}")
    elif kind == "command":
        arguments, point = arena.draw.choice(COMMANDS)
        arena.kill_command(arguments, point)
    elif kind == "redefinition":
        redefine(arena)
    elif kind == "beside":
        arena.beside(arena.draw.choice(COMMANDS)[0])
    else:
        getattr(arena, f"kill_{kind}")()


def stop_loop(arena: Arena) -> None:
    """The loop's own end, with exit code 0."""
    if arena.loop is None or not arena.loop.alive:
        arena.start_loop()
    loop = arena.loop
    assert loop is not None
    # Before Spark is there it is still importing, and Ctrl-C ends it as it ends any program.
    arena.wait_for(lambda: loop.jvm() or not loop.alive, "a JVM")
    loop.process.send_signal(signal.SIGINT)
    loop.process.wait(HANGS_S)
    arena.account.note_exit(f"loop stopped: {loop.process.returncode}")


def redefine(arena: Arena) -> None:
    """Games and times have other definitions: a command makes all rows again, is killed and repeated; then the loop goes on."""
    stop_loop(arena)
    arena.definitions = CHANGED
    arena.kill_command(REDECODE, arena.draw.choice(REDEFINITION_POINTS))
    driver = arena.command(REDECODE)
    code = _end_of(driver, arena)
    assert code == 0, driver.said()
    arena.start_loop()


def drained(arena: Arena) -> None:
    """The loop ends; two runs follow, of which the second has nothing to do."""
    stop_loop(arena)
    for number in range(2):
        before = invariants.versions(arena.settings())
        driver = arena.command(["run", "--json"])
        code = _end_of(driver, arena)
        assert code == 0, driver.said()
        after = invariants.versions(arena.settings())
        if number:
            changed = {n for n in after if after[n] != before.get(n)} - {"event_log"}
            assert not changed, f"a run with nothing to do changed {changed}"


def _end_of(driver: Driver, arena: Arena) -> int:
    """The exit code of a driver that may take as long as it likes while tables move on: a busy machine has a long backlog."""
    newest = arena.newest_commit()
    while True:
        try:
            return driver.process.wait(HANGS_S)
        except subprocess.TimeoutExpired:
            before, newest = newest, arena.newest_commit()
            if newest == before:
                raise


def drained_by(make: Callable[..., Pipeline], refresh: Callable[[Pipeline], object]) -> Callable[[Arena], None]:
    """The same in this process, on a session that is warm."""

    def drain(arena: Arena) -> None:
        stop_loop(arena)
        for number in range(2):
            before = invariants.versions(arena.settings())
            report = refresh(make(arena.settings()))
            assert getattr(report, "success", True), report
            changed = {n for n, v in invariants.versions(arena.settings()).items() if v != before.get(n)}
            assert not (number and changed), f"a run with nothing to do changed {changed}"

    return drain


def _count(arena: Arena, watcher: Watcher) -> None:
    account, settings = arena.account, arena.settings()
    truth = read_truth(settings)
    books = invariants.Books(settings, truth, arena.definitions)
    account.records, account.games = truth.num_rows, len(books.games)
    account.rows = {t: books.count(f"SELECT count(*) FROM {t}") for t in ("bronze", "quarantine", "silver", "gold")}
    account.schema_versions = books.count("SELECT count(DISTINCT _schema_id) FROM bronze")
    account.commits = sum(invariants.versions(settings).values())
    account.broken = invariants.broken(books)
    account.broken["files that a log names and that are not there"] = len(invariants.missing_files(settings))
    account.broken["snapshots that a reader found not whole"] = len(watcher.faults)
    account.looks = watcher.looks
    account.notes += watcher.faults[:20]
    account.leaks = invariants.leaks(arena.folder, settings, SECRET)
    account.seconds = round(time.monotonic() - arena.began, 1)
