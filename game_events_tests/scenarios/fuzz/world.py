"""A world of the fuzz: a source, its lakehouse, what is declared now, and runs that are killed or meet others on their way."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from game_events.config.settings import Settings, load_settings
from game_events.errors import GameEventsError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits import group
from game_events.lakehouse.table_properties import Sizes
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline import fanout, maintenance
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.gold import execute
from game_events.pipeline.maintenance import IncrementalMaintenance
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import cycle
from game_events.pipeline.silver import stage
from game_events_tests.scenarios.fuzz.declared import ADMIN, DEDUPLICATE, EXTENSIONS, FAILING, GOLDS, RULES
from game_events_tests.scenarios.fuzz.feeds import Feed
from game_events_tests.scenarios.fuzz.truth import Config, Truth
from game_events_tests.support.servers.attached_driver import start_driver

Action = Callable[[], object]
Work = Callable[[Pipeline, RunReport], object]
#: A process of its own needs some seconds.
DRIVER_S = 300
ALLOWED = {"allow_bronze_full_refresh": True, "allow_refresh_without_expired": True}
KEY = "0123456789abcdef0123456789abcdef"
#: A few rows go the ways of millions.
TINY = Sizes(read_rows=5, read_whole_bytes=7_000, row_group_rows=6, sent_rows=7, sorted_rows=11)
#: The same for what only the driver decides.
TINY_IN_DRIVER: tuple[tuple[object, str, float], ...] = (
    (fanout, "TASK_ROWS", 20),
    (stage, "TASK_ROWS", 20),
    (fanout, "MOST_TASK_ROWS", 40),
    (fanout, "FILE_ROWS", 4),
    (fanout, "MAX_FILES_UNSHUFFLED", 12),
    (fanout, "MIN_ROWS_UNSHUFFLED", 2),
    (fanout, "MOST_OF_ONE_GAME", 2.0),
    (execute, "TASK_ROWS", 15),
    (execute, "TASK_ROWS", 15),
    (execute, "ROW_S", 4e-4),
    (execute, "BOTH_S", 1e-9),
    (execute, "SMALL_FILE_ROWS", 5),
    (execute, "TASK_OLD_ROWS", 12),
    (execute, "SMALL_GAME_ROWS", 3),
    # One after another, so that a seed is the same each time.
    (group, "MOST_THREADS", 1),
    (maintenance, "TABLES_AT_ONCE", 1),
)


class KilledError(BaseException):
    """The end of a process at a failpoint: no code of the project catches it."""


@contextmanager
def tiny() -> Iterator[None]:
    """While this block is executed, the driver divides its work by tiny numbers of rows."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in TINY_IN_DRIVER:
            patch.setattr(module, name, value)
        yield


class World:
    """One seed's.

    Attributes:
        truth: what tables must hold.
        rules, gold, extension, games: what is declared now: numbers, and the allow list.
        admin: setting -> its value: what an admin says about files and tables.
        columns: of the schema, besides those that it began with.
        deduplicates: rows that are sent twice are left out; chosen once, as the tables of message types are (`begin`).
        loops: name -> a pipeline that lives on, with its handles, and its maintenance.
        readings: how often all readers were compared.
        log: what has happened.
        killed, met: failpoint -> how often a run was killed there, or met other work.
    """

    def __init__(self, folder: Path, spark: SparkSession, feed: Feed, say: Callable[[str], None]) -> None:
        self.folder, self.spark, self.feed = folder, spark, feed
        self.truth = Truth()
        self.rules = self.gold = self.extension = 0
        self.games: tuple[str, ...] = ()
        self.admin = {name: values[0] for name, values in ADMIN.items()}
        self.columns: list[str] = []
        self.loops: dict[str, tuple[Pipeline, IncrementalMaintenance]] = {}
        self.log: list[str] = []
        self.killed = Counter[str]()
        self.met = Counter[str]()
        self._say = say
        for number, extension in enumerate(EXTENSIONS):
            (folder / f"own_{number}.py").write_text(extension.text)
        self._given = {**feed.settings(), "erasure_key": KEY, "orphan_retention_h": 1} | ALLOWED
        self._driver_log = folder / "driver.log"
        self.deduplicates = False
        self.readings = 0
        self.begin()

    def begin(self, *, deduplicates: bool = False, types: Sequence[str] | None = None) -> None:
        """Choose what stays as it is from the first run on; `types`: those with tables of their own, empty: all, None: none."""
        self.deduplicates = deduplicates
        if deduplicates:
            self._given["deduplicate"] = DEDUPLICATE
        if types is not None:
            self._given |= {"silver_per": "entity_and_type", "silver_types": tuple(types)}
        places = {"lakehouse": str(self.folder / "lakehouse"), "state_dir": self.folder / "state"}
        self._settings = load_settings(**self._given, **places, spark_master="local[2]")
        self.lakehouse = Lakehouse.of(self._settings)

    def has_table(self, message_type: str | None) -> bool:
        """Whether rows of a type are in tables of their own."""
        tables = self._settings.type_tables
        return tables is not None and tables.name(message_type) is not None

    def say(self, line: str) -> None:
        """Note what happens."""
        self.log.append(line)
        self._say(line)

    def close(self) -> None:
        """Nothing of it stays."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- what is declared

    @property
    def config(self) -> Config:
        """What decides about rows of silver now."""
        return Config(self.rules, self.extension)

    def declare(self, **values: Any) -> None:
        """Change it: loops are started again, as a user would."""
        for name, value in values.items():
            setattr(self, name, value)
        self.loops.clear()
        self.say(f"   now: {', '.join(f'{name} = {value}' for name, value in values.items())}")

    def declared(self) -> dict[str, Any]:
        """Settings."""
        own = EXTENSIONS[self.extension].text
        return {
            "rules": tuple(rule for rule, _ in RULES[self.rules]),
            "gold_columns": GOLDS[self.gold][0],
            "games": self.games,
            **self.admin,
            "extensions": (str(self.folder / f"own_{self.extension}.py"),) if own else (),
        }

    def settings(self, **more: Any) -> Settings:
        """Those in force."""
        return self._settings.model_copy(update=self.declared() | more)

    def pipeline(self, **more: Any) -> Pipeline:
        """As a new process has it."""
        made = Pipeline(self.settings(**more), lambda: self.spark)
        made.lakehouse.sizes = TINY
        return made

    # --- runs

    def attempt(
        self, work: Work, at: int = 0, action: Action | None = None, pipeline: Pipeline | None = None
    ) -> RunReport | None:
        """Work of a run; None: it was killed, or ended with an error.

        `at`: number of the failpoint at which the action happens in the middle of it, without one of these in turn; None: it is
        killed there. `pipeline`: a living one.
        """
        report, seen = RunReport(), 0

        def reached(_name: str, _detail: object) -> None:
            nonlocal seen
            seen += 1
            if at and seen == at and action is not None:
                failpoints.handler = _nothing
                self.met[_name] += 1
                self.say(f"   at {_name}:")
                action()
                failpoints.handler = reached
            elif at and seen >= at and action is None:
                raise KilledError(_name)

        before, failpoints.handler = failpoints.handler, reached
        try:
            work(pipeline or self.pipeline(), report)
        except KilledError as place:
            self.killed[str(place)] += 1
            self.say(f"   killed at {place}")
            return None
        except GameEventsError as error:
            self.say(f"   {type(error).__name__}: {str(error)[:200]}")
            return None
        else:
            return report
        finally:
            failpoints.handler = before
            self.truth.run(self.config)

    def cycle(self, loop: str, gold: bool, at: int = 0, action: Action | None = None) -> RunReport | None:
        """One cycle of continuous mode by a process that lives on, until it is killed."""
        if loop not in self.loops:
            made = self.pipeline()
            self.loops[loop] = made, IncrementalMaintenance(made.lakehouse)
        living, tables = self.loops[loop]

        def work(pipeline: Pipeline, report: RunReport) -> None:
            cycle(pipeline, report, until=pipeline.source.snapshot(), gold=gold, go_on=lambda: True, one_pass=OnePass())
            tables.note(entry.table for entry in report.tables if entry.error is None)
            tables.work()

        report = self.attempt(work, at, action, living)
        if report is None:
            self.loops.pop(loop, None)
        return report

    def own_process(self, crash_at: str) -> int:
        """A run in a process of its own, which SIGKILL ends at a failpoint if it comes there; its exit code."""
        given = self._given | {k: v for k, v in self.declared().items() if v}
        given["rules"] = [rule.model_dump(mode="json") for rule, _ in RULES[self.rules]]
        more = {name: _as_variable(value) for name, value in given.items()}
        code = start_driver(self._settings, self.spark, self._driver_log, crash_at, **more).wait(DRIVER_S)
        self.truth.run(self.config)
        return code

    def process_said(self) -> str:
        """The end of that process's output."""
        return self._driver_log.read_text(errors="replace")[-3_000:]

    @property
    def is_failing(self) -> bool:
        """Whether a rule that fails games is in force."""
        return self.rules == FAILING


def _as_variable(value: object) -> str:
    """A setting's value as its environment variable has it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def _nothing(_name: str, _detail: object) -> None:
    """A failpoint at which nothing happens."""
