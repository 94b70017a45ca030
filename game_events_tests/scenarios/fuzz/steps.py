"""The steps of a world: what users, other engines, crashes and rivals do, each with a number that decides everything in it.

So a step is the same whatever steps are around it, and a sequence that fails can be made shorter.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.lakehouse.table_properties import KEEP_LOG
from game_events.lakehouse.tables import UNIFIED, Table, game_of_silver
from game_events.pipeline.context import Pipeline
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import redecode
from game_events.pipeline.runs.refresh import refresh, refresh_downstream, replay_and_refresh, selection_of
from game_events.plugins.governance.commits import remove_old_files
from game_events.plugins.governance.run import erase as erase_people
from game_events_tests.scenarios.fuzz.declared import (
    ADMIN,
    EXTENSIONS,
    GAMES,
    GOLDS,
    NO_GAMES,
    PLAYERS,
    RULES,
    drawn,
    sent_again,
)
from game_events_tests.scenarios.fuzz.look import Look
from game_events_tests.scenarios.fuzz.world import Action, World
from game_events_tests.support.everywhere import Everywhere
from game_events_tests.support.iceberg import caught_up

#: How many failpoints a run comes to, about: with little to do, and with much.
FEW, SOME, MANY = 6, 18, 45
LOOPS = ("A", "B")
#: How often an erasure is tried again, and a run before a look.
ATTEMPTS = 3


class DifferenceError(Exception):
    """The tables are not what they must be."""


@dataclass(frozen=True)
class Step:
    """A name of `STEPS`, and the number from which everything in it is drawn."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Step:
        """The inverse of `str`."""
        name, _, number = text.partition(":")
        return cls(name, int(number))

    def do(self, world: World) -> None:
        """Do it; DifferenceError if a look finds something."""
        world.say(str(self))
        STEPS[self.name][1](world, Random(str(self)))  # noqa: S311 - a test


def sequence(seed: int, count: int) -> list[Step]:
    """A seed's steps, with a look after every few of them and at the end."""
    draw = Random(seed)  # noqa: S311 - a test
    names = [name for name in STEPS if name not in ("begin", "look")]
    weights = [STEPS[name][0] for name in names]
    found = [Step("begin", draw.randrange(10**6)), Step("produce", draw.randrange(10**6))]
    until_look = draw.randint(2, 6)
    while len(found) < count - 2:
        until_look -= 1
        name = draw.choices(names, weights)[0] if until_look else "look"
        until_look = until_look or draw.randint(3, 7)
        found.append(Step(name, draw.randrange(10**6)))
    return [*found, Step("look", draw.randrange(10**6)), Step("read", draw.randrange(10**6))]


# --- what comes


def begin(world: World, draw: Random) -> None:
    """Choose whether rows that are sent twice are left out, and which types have tables of their own."""
    named = [name for name in world.feed.types.values() if name is not None]
    deduplicates, types = draw.random() < 0.5, draw.choice((None, (), (draw.choice(named),)))
    world.say(f"   events sent twice: {deduplicates}, tables of types: {types}")
    world.begin(deduplicates=deduplicates, types=types)


def produce(world: World, draw: Random) -> None:
    """Records of one kind; few or many, of one game or of all."""
    count, kind = draw.choice((1, 3, 10, 45, 90)), draw.choice(world.feed.kinds)
    games = GAMES[:1] if draw.random() < 0.3 else (*GAMES, *NO_GAMES)
    extra = world.columns if kind in world.feed.grows else []
    first, damageable = len(world.truth.fates), kind in (world.feed.kinds[0], "json")
    form = kind, world.feed.forms[kind]
    events = [drawn(draw, first + n, form, games, extra, damaged=damageable and draw.random() < 0.05) for n in range(count)]
    if world.deduplicates:
        events = [sent_again(draw, event) for event in events]
    world.feed.write(events, draw)
    world.truth.sent(events, extra)
    world.say(f"   {count} {kind}")


def schema(world: World, _: Random) -> None:
    """The schema gets one more column; processes are started again."""
    columns = [*world.columns, f"extra_{len(world.columns)}"]
    world.feed.grow(columns)
    world.declare(columns=columns)


# --- runs


def _full_run(pipeline: Pipeline, report: RunReport, **chosen: Any) -> None:
    refresh(pipeline, report, selection_of(pipeline, **chosen))


def _place(draw: Random) -> int:
    """Number of a failpoint."""
    return draw.randint(1, draw.choice((FEW, SOME, MANY)))


def run(world: World, _: Random) -> None:
    """A triggered run."""
    world.attempt(_full_run)


def outage(world: World, _: Random) -> None:
    """A run while no registry answers."""
    world.attempt(_full_run, pipeline=world.pipeline(schema_registry_url="http://127.0.0.1:9"))


def kill(world: World, draw: Random) -> None:
    """One that is killed at a failpoint."""
    world.attempt(_full_run, _place(draw))


def rival(world: World, draw: Random) -> None:
    """One that meets other work at a failpoint."""
    produce(world, draw)
    world.attempt(_full_run, _place(draw), _other(world, draw))


def _other(world: World, draw: Random) -> Action:
    """What happens in the middle of a run."""
    gold, again = draw.random() < 0.7, Random(draw.random())  # noqa: S311 - a test
    work: dict[str, Action] = {
        "another run": lambda: world.attempt(_full_run),
        "a cycle": lambda: world.cycle(again.choice(LOOPS), gold),
        "new records and a cycle": lambda: _with_records(world, again, gold=gold),
        "maintenance": lambda: world.attempt(maintain),
        "a redecode": lambda: world.attempt(redecode),
        "another engine": lambda: foreign(world, again, ("compact", "checkpoint", "z-order")),
    }
    name = draw.choice(list(work))

    def other() -> None:
        world.say(f"   {name}")
        work[name]()

    return other


def _with_records(world: World, draw: Random, *, gold: bool) -> None:
    produce(world, draw)
    world.cycle(draw.choice(LOOPS), gold)


def cycle(world: World, draw: Random) -> None:
    """A cycle of a process that lives on; perhaps killed, perhaps with other work at a failpoint."""
    loop, gold, how = draw.choice(LOOPS), draw.random() < 0.7, draw.random()
    if draw.random() < 0.7:
        produce(world, draw)
    at = _place(draw)
    if how < 0.5:
        world.cycle(loop, gold)
    elif how < 0.6:
        world.cycle(loop, gold, at)
    else:
        world.cycle(loop, gold, at, _other(world, draw))


def select(world: World, draw: Random) -> None:
    """A run over some layers, or some games."""
    chosen: dict[str, Any] = {"select": draw.sample(("bronze", "silver", "gold", "unified"), draw.randint(1, 3))}
    if draw.random() < 0.5:
        chosen = {"games": draw.sample(GAMES, draw.randint(1, 3))}
    world.say(f"   {chosen}")
    world.attempt(partial(_full_run, **chosen))


def full(world: World, draw: Random) -> None:
    """A full refresh; perhaps killed."""
    what = draw.choice(("silver", "gold", "unified", "all", "bronze"))
    chosen: dict[str, Any] = {"full_refresh": [what]}
    games = GAMES if not world.games else world.games
    if what in ("silver", "gold") and draw.random() < 0.6:
        chosen["games"] = games = (draw.choice(GAMES),)
    world.say(f"   {chosen}")
    report = world.attempt(partial(_full_run, **chosen), _place(draw) if draw.random() < 0.4 else 0)
    if what in ("silver", "all", "bronze"):
        # With a failing rule a game stays as it was.
        surely = report is not None and report.success
        world.truth.decided_again(games, world.config, surely=surely)
        if what in ("all", "bronze") and surely and world.games:
            world.truth.decided_again(GAMES, world.config, surely=False)


#: Where a process of its own is killed.
PLACES = (
    "bronze_staged",
    "bronze_committed",
    "quarantine_committed",
    "silver_staged",
    "rejections_decided",
    "silver_committed",
    "gold_staged",
    "gold_committed",
    "unified_staged",
    "unified_committed",
    "progress_moved",
)


def sigkill(world: World, draw: Random) -> None:
    """A run in a process of its own, which SIGKILL ends at a failpoint, if it comes there."""
    produce(world, draw)
    place = draw.choice(PLACES)
    code = world.own_process(place)
    world.say(f"   at {place}: {'killed' if code == -signal.SIGKILL else code}")
    assert code in (0, 1, -signal.SIGKILL), world.process_said()


# --- what is declared


def declare(world: World, draw: Random) -> None:
    """Other rules, columns of gold, a user's module or an allow list."""
    what = draw.choice(("rules", "rules", "gold", "extension", "games"))
    if what == "games":
        world.declare(games=() if world.games else tuple(draw.sample(GAMES, 3)))
    else:
        world.declare(**{what: draw.randrange({"rules": len(RULES), "gold": len(GOLDS), "extension": len(EXTENSIONS)}[what])})


def administrate(world: World, draw: Random) -> None:
    """Another layout of files, statistics or features of tables, or limits of ages; then what is older may be gone."""
    name = draw.choice(list(ADMIN))
    value = draw.choice(ADMIN[name])
    world.declare(admin={**world.admin, name: value})
    if name == "retention_days":
        world.truth.expiring |= {key.partition(":")[2] for key in value}


# --- maintenance, and other hands


def tidy(world: World, draw: Random) -> None:
    """Maintenance, perhaps with no retention, so that replaced files are deleted; perhaps killed."""
    more = (
        dict.fromkeys(("every_version_h", "replaced_files_h", "derived_replaced_files_h"), 1e-4) if draw.random() < 0.5 else {}
    )
    work = partial(maintain, layout=draw.random() < 0.3)
    world.attempt(work, _place(draw) if draw.random() < 0.3 else 0, pipeline=world.pipeline(**more))


def iceberg(world: World, draw: Random) -> None:
    """Iceberg follows, perhaps as after an erasure; perhaps killed, or beside other work."""
    forget, at = draw.random() < 0.2, draw.choice((0, draw.randint(1, FEW)))

    def work(pipeline: Pipeline, _: RunReport) -> None:
        failed = caught_up(pipeline, forget=forget).failed
        world.say(f"   left: {dict(failed)}" if failed else "   all are there")

    world.attempt(work, at, None if draw.random() < 0.6 else _other(world, draw))


def other_engine(world: World, draw: Random) -> None:
    """Another engine maintains a table."""
    foreign(world, draw, ("compact", "checkpoint", "z-order", "vacuum", "cleanup", "spark"))


def foreign(world: World, draw: Random, ways: tuple[str, ...]) -> None:
    """One of these ways on one table. Its vacuum knows nothing of files that a full refresh has listed in quarantine."""
    table, how = _table(world, draw, lambda key: key != "progress"), draw.choice(ways)
    if table is None:
        return
    world.say(f"   {how} of {table.name}")
    handle = DeltaTable(table.uri)
    with suppress(DeltaError, OSError):  # of a table that is being written to
        if how == "compact":
            handle.optimize.compact(post_commithook_properties=KEEP_LOG)
        elif how == "z-order" and table.key != UNIFIED and handle.file_uris():
            handle.optimize.z_order(["gamer_id" if table.key.startswith(("gold_", "silver_")) else "_batch"])
        elif how == "checkpoint":
            handle.create_checkpoint()
        elif how == "vacuum" and table.key != "quarantine_events":
            handle.vacuum(0, dry_run=False, enforce_retention_duration=False)
        elif how == "cleanup":
            handle.create_checkpoint()
            handle.cleanup_metadata()
        elif how == "spark":
            world.spark.sql(f"OPTIMIZE delta.`{table.uri}`")


def restore(world: World, draw: Random) -> None:
    """A user restores a table of silver or gold to an older version."""
    table = _table(world, draw, _is_derived)
    handle = table.open() if table is not None else None
    if table is None or handle is None or not handle.version():
        return
    version = draw.randrange(handle.version())
    world.say(f"   {table.name} to {version}")
    try:
        DeltaTable(table.uri).restore(version)
    except (DeltaError, OSError) as error:
        world.say(f"   {str(error)[:100]}")
    _break(world, table)


def restore_bronze(world: World, draw: Random) -> None:
    """A user restores bronze or quarantine: a run stops, or what was restored has all rows; then it is undone."""
    table = _table(world, draw, lambda key: key in ("bronze_events", "quarantine_events"))
    handle = table.open() if table is not None else None
    if table is None or handle is None or not handle.version():
        return
    newest, version = handle.version(), draw.randrange(handle.version())
    world.say(f"   {table.name} to {version}")
    try:
        DeltaTable(table.uri).restore(version)
    except (DeltaError, OSError) as error:
        world.say(f"   {str(error)[:100]}")
        return
    report = world.attempt(_full_run)
    if report is None:
        world.say(f"   {table.name} back to {newest}")
        DeltaTable(table.uri).restore(newest)


def delete(world: World, draw: Random) -> None:
    """A user deletes a table of silver or gold; or the notes about progress."""
    table = _table(world, draw, lambda key: _is_derived(key) or key == "progress")
    if table is not None:
        world.say(f"   {table.name}")
        shutil.rmtree(table.uri)
        _break(world, table)


def _break(world: World, table: Table) -> None:
    game = game_of_silver(table.key)
    world.truth.broken |= {game} if game else set()


def _is_derived(key: str) -> bool:
    return key.startswith(("silver_", "gold_"))


def _table(world: World, draw: Random, wanted: Callable[[str], bool]) -> Table | None:
    keys = [key for key in sorted(world.lakehouse.names()) if wanted(key)]
    return world.lakehouse.table(draw.choice(keys)) if keys else None


# --- persons, and rows that are decided about again


def erase(world: World, draw: Random) -> None:
    """A person is erased; perhaps killed, with other work before it goes on."""
    who = draw.choice([player for player in PLAYERS if player])
    world.say(f"   {who!r}")
    done, vacuum = [], draw.random() < 0.5

    def work(pipeline: Pipeline, report: RunReport) -> None:
        subjects = erase_people(pipeline, report, frozenset({who}))
        if report.parts["erasure"] is not None and report.parts["erasure"].finished:
            if vacuum:
                remove_old_files(pipeline, report.parts["erasure"], subjects)
            done.append(who)

    at = _place(draw) if draw.random() < 0.4 else 0
    world.attempt(work, at, None if draw.random() < 0.5 else _other(world, draw))
    for _ in range(ATTEMPTS):
        if not done:
            world.attempt(work)
    if not done:
        raise DifferenceError(f"the erasure of {who} does not finish")
    world.truth.forgotten(who)


def decode_again(world: World, draw: Random) -> None:
    """A redecode, perhaps with silver and gold after it; perhaps killed."""
    further = draw.random() < 0.5

    def work(pipeline: Pipeline, report: RunReport) -> None:
        redecode(pipeline, report)
        if further:
            refresh_downstream(pipeline, report, full=True)

    report = world.attempt(work, _place(draw) if draw.random() < 0.3 else 0)
    if further:
        surely = report is not None and report.success
        world.truth.decided_again(world.games or GAMES, world.config, surely=surely)
        if surely and not world.games:
            world.truth.redecoded(world.columns, world.feed.decoded_again)


def replay(world: World, draw: Random) -> None:
    """Rows of quarantine are tried again, and what rules kept out is judged again; perhaps killed."""

    def work(pipeline: Pipeline, report: RunReport) -> None:
        replay_and_refresh(pipeline, report, ReplaySelection())

    report = world.attempt(work, _place(draw) if draw.random() < 0.3 else 0)
    world.truth.replayed(world.config, surely=report is not None and report.success and not world.games)


# --- looks


def look(world: World, draw: Random) -> None:
    """Every game is allowed, and a run brings all up to date: then every row is in its place."""
    if world.games or world.is_failing:
        world.declare(games=(), rules=0 if world.is_failing else world.rules)
    said: list[str] = []
    for _ in range(ATTEMPTS):
        report = world.attempt(_full_run)
        if report is not None and report.success:
            break
        said = [str(error) for error in report.errors] if report is not None else ["it raised"]
    else:
        raise DifferenceError(f"no run succeeds: {said}")
    found = Look(world).differences(all_checks=draw.random() < 0.15)
    if found:
        raise DifferenceError("\n".join(found))
    world.say("   all is right")


def read(world: World, draw: Random) -> None:
    """All readers of Delta's tables and of Iceberg's give the same rows, however far a run has come."""
    began = time.monotonic()
    world.readings += 1
    readers = Everywhere(world.pipeline(), world.spark, draw)
    found = readers.compare(world.folder / f"reading_{world.readings}")
    shares = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in readers.seconds.items())
    world.say(f"   {readers.rows} rows, {readers.queries} queries, {time.monotonic() - began:.0f} s ({shares})")
    if found:
        raise DifferenceError("\n".join(found))


#: Name -> how often, and what.
STEPS: dict[str, tuple[int, Callable[[World, Random], None]]] = {
    "begin": (0, begin),
    "produce": (24, produce),
    "run": (10, run),
    "outage": (1, outage),
    "kill": (14, kill),
    "rival": (10, rival),
    "cycle": (14, cycle),
    "select": (4, select),
    "full": (7, full),
    "sigkill": (2, sigkill),
    "declare": (10, declare),
    "administrate": (5, administrate),
    "tidy": (8, tidy),
    "iceberg": (3, iceberg),
    "other_engine": (7, other_engine),
    "restore": (4, restore),
    "restore_bronze": (2, restore_bronze),
    "delete": (4, delete),
    "erase": (3, erase),
    "decode_again": (3, decode_again),
    "replay": (4, replay),
    "schema": (2, schema),
    "look": (0, look),
    "read": (1, read),
}
