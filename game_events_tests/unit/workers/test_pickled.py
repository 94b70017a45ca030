"""What is pickled is where one looks for it: in `game_events.workers`, a source's reader, or a plug-in's worker module."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import game_events
from game_events.sources.source import Reading
from game_events.workers.decode import RecordFilter
from game_events.workers.job import WorkerJob

#: Modules of classes that workers run.
RUN_THERE = re.compile(r"game_events\.(workers\.\w+|(sources|plugins)\.\w+\.\w*(reader|worker)\w*)")

#: Modules of what only the driver has: neither a pickled object nor a part of it.
DRIVER = ("game_events.cli", "game_events.jvm", "game_events.orchestration", "game_events.pipeline", "game_events.spark")

#: How a function gets to the workers.
SENDS = re.compile(r"\.(mapInArrow|mapInPandas|applyInArrow|applyInPandas|foreachPartition|mapPartitions)\(")


def subclasses(of: type) -> Iterator[type]:
    for found in of.__subclasses__():
        yield found
        yield from subclasses(found)


def pickled() -> list[type]:
    for module in pkgutil.walk_packages(game_events.__path__, "game_events."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
    found = (one for base in (WorkerJob, Reading, RecordFilter) for one in subclasses(base))
    return sorted({one for one in found if one.__module__.startswith("game_events.")}, key=str)


def parts(hint: object) -> Iterator[type]:
    """The classes that a type is made of."""
    if isinstance(hint, type):
        yield hint
    for inner in typing.get_args(hint):
        yield from parts(inner)


def reached(roots: list[type]) -> set[type]:
    """Classes of the project that objects of these classes may hold."""
    found, waiting = set[type](), list(roots)
    while waiting:
        kind = waiting.pop()
        if kind in found or not kind.__module__.startswith("game_events."):
            continue
        found.add(kind)
        if dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            waiting += [part for field in dataclasses.fields(kind) for part in parts(hints[field.name])]
    return found


def test_what_workers_run_is_in_their_modules():
    kinds = pickled()
    assert len(kinds) >= 10
    assert [str(kind) for kind in kinds if not inspect.isabstract(kind) and not RUN_THERE.match(kind.__module__)] == []


def test_nothing_of_the_driver_is_pickled_with_it():
    assert sorted(str(kind) for kind in reached(pickled()) if kind.__module__.startswith(DRIVER)) == []


def test_functions_are_sent_to_workers_by_these_modules_only():
    root = Path(game_events.__file__).parent
    sending = {str(path.relative_to(root)) for path in root.rglob("*.py") if SENDS.search(path.read_text())}
    assert {path for path in sending if not path.startswith("workers/")} == set()
