"""The world of the model: a topic in memory, real Delta tables of all layers, runs that something happens to, and the truth."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.config.settings import load_settings
from game_events.errors import GameEventsError, TransientError
from game_events.lakehouse.commits import group as game_commits
from game_events.lakehouse.commits.transactions import Txn, restored
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.laying_out import lay_out, not_laid_out
from game_events.lakehouse.maintenance import FULL_GOAL, OutdatedFile, first_groups, join_files, renew, small_files
from game_events.lakehouse.tables import TABLES, UNIFIED, Lakehouse, Table, paths
from game_events.pipeline.bronze.full_refresh import replace_bronze
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout import OnePass
from game_events.pipeline.gold import refresh as gold
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.quarantine import is_finished, is_noted
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing import replay_what_became_known
from game_events.pipeline.silver import admission
from game_events.pipeline.silver import commit as silver_commit
from game_events.pipeline.silver import refresh as silver
from game_events.pipeline.silver import stage as silver_source
from game_events.pipeline.silver.duplicates import ORDER
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.rules import Deduplicate
from game_events.sources.source import Partition
from game_events_tests.support.faults import Open, at_opening, handle_failpoints, wrap_writes
from game_events_tests.support.model import plans as arrow_plans
from game_events_tests.support.model.bronze import LANE, Reader, Topic, pipeline_of, without_services
from game_events_tests.support.model.plans import DROPS, REJECTS, UNLUCKY, is_kept_out
from game_events_tests.support.model.rewrites import without_spark
from game_events_tests.support.worker_jobs import Rows
from game_events_tests.support.worlds.waves import PowerCut

GAMES = ("rummy", "spades", "uno")
#: A name that is no game: its rows stay in bronze.
NOBODY = "NOT A GAME"
SCHEMAS = (1, 2)
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
#: Read once: that takes longer than a step.
DEFAULTS = cache(load_settings)
Action = Callable[[], None]
#: What a run replaces, before it goes on as usual.
BRONZE, SILVER = "bronze", "silver"
Event = tuple[str, str, int, int]
#: A record's topic, partition and offset: silver has no topic's id.
Place = tuple[Any, ...]
#: Rows of a game with one number are one event; their times are equal.
TWICE = Deduplicate(key=("n",), window_h=1)


def numbers(start: int, end: int, step: int, parts: int) -> Any:
    """For `range` of Spark's session."""
    assert parts >= 1
    return Rows([pa.record_batch({"id": range(start, end, step)})])


def place(row: dict[str, Any]) -> Place:
    """Where a row's record is."""
    return row["_kafka_topic"], row["_kafka_partition"], row["_kafka_offset"]


def place_in(lane: Partition, offset: int) -> Place:
    """Where a record of a lane is."""
    return lane.topic, lane.number, offset


class World:
    """A topic, its tables, and the rules that are in force.

    `plain`: there are none, and no row is unlucky: bronze's workers write silver's files, too, and files are by day. `taken`,
    `merged`: of silver's and gold's tables, how often these were used. `lanes`: of each source one. `deduplicates`: rows may be
    sent twice.
    """

    def __init__(
        self, layout: str = TABLES, *, plain: bool = False, lanes: Sequence[Partition] = (LANE,), deduplicates: bool = False
    ) -> None:
        self.plain, self.lanes, self.deduplicates = plain, lanes, deduplicates
        self.file_layout = {"silver": "day", "bronze": "day"} if plain else {}
        self.taken = self.merged = 0
        self.folder, self.layout = tempfile.mkdtemp(), layout
        self.strictness = 0
        own = {"game_name": pa.string(), "gamer_id": pa.string(), "n": pa.int64(), "event_timestamp": arrow_plans.TIME}
        self.topic = Topic(columns=own, records={lane: [] for lane in lanes})
        self.seen: dict[tuple[str, str | None, int], list[dict[str, Any]]] = {}
        #: What happens at each step of a run, and at the last moment before each of its commits; None: nothing.
        self.step: Callable[[str], None] | None = None
        self.late: Callable[[str], None] | None = None
        self.patch = pytest.MonkeyPatch()
        without_services(self.patch)
        without_spark(self.patch)
        self.patch.setattr(silver, "stage_games", arrow_plans.stage_games)
        self.patch.setattr(admission, "_new_names", arrow_plans.new_names)
        self.patch.setattr(gold, "execute", arrow_plans.execute)
        self.patch.setattr(silver_source, "require_valid", lambda *_: None)
        self.patch.setattr(silver_commit, "noted", arrow_plans.note)
        self.patch.setattr(game_commits, "MOST_THREADS", 1)  # one after another, and nothing more after a crash
        handle_failpoints(self.patch, lambda name, *_: self.stepped(name))
        wrap_writes(self.patch, self.after_a_step)

    def close(self) -> None:
        """Nothing of it stays."""
        self.patch.undo()
        shutil.rmtree(self.folder)

    def after_a_step(self, write: Callable[..., object]) -> Callable[..., object]:
        """The last moment before a commit is handed to the storage is a step, too."""

        def written(*arguments: Any, **options: Any) -> object:
            self.stepped()
            if self.late is not None:
                self.late(arguments[0].uri if isinstance(arguments[0], Table) else str(arguments[0]))
            return write(*arguments, **options)

        return written

    def stepped(self, name: str = "") -> None:
        """A run has come one step further, perhaps to a place that has a name."""
        if self.step is not None:
            self.step(name)

    # --- runs

    @property
    def lakehouse(self) -> Lakehouse:
        """All tables."""
        more = {"lakehouse": self.folder, "silver_layout": self.layout, "layout": self.file_layout}
        return Lakehouse.of(DEFAULTS().model_copy(update=more))

    def pipeline(
        self, knows: tuple[int, ...] = SCHEMAS, games: tuple[str, ...] = (), silent: int | None = None, **limits: int
    ) -> Pipeline:
        """As a new process has it, with the rules in force; `silent`: of several lanes the one that does not answer."""
        rules = () if self.plain else (DROPS, *(r for r in (REJECTS[self.strictness],) if r is not None))
        more = {
            "lakehouse": self.folder,
            "silver_layout": self.layout,
            "layout": self.file_layout,
            "rules": rules,
            "games": games,
            "allow_bronze_full_refresh": True,
            "deduplicate": (TWICE,) if self.deduplicates else (),
            **limits,
        }
        away = self.lanes[silent : silent + 1] if silent is not None and len(self.lanes) > 1 else ()
        made = pipeline_of(DEFAULTS().model_copy(update=more), Reader(self.topic, knows, silent=away))
        # Asked for by the rules' check, which is replaced above, and for the numbers of tasks.
        object.__setattr__(made, "get_spark", lambda: SimpleNamespace(range=numbers))
        return made

    def work(self, *, full: str = "", **how: Any) -> RunReport:
        """A run over all layers (`how`: as `pipeline`); what it cannot do is the next one's."""
        how |= {"silent": None} if full == BRONZE else {}  # it needs every source
        pipeline, report, held = self.pipeline(**how), RunReport(), OnePass()
        if full == BRONZE:
            replace_bronze(pipeline, report)
        load_bronze(pipeline, report, one_pass=held)
        replay_what_became_known(pipeline, report)
        some = frozenset(GAMES) if full == SILVER else None
        refresh_silver(pipeline, report, some, full=full == SILVER, one_pass=held)
        self.taken += held.taken
        refresh_gold(pipeline, report, one_pass=held)
        self.merged += held.merged
        refresh_unified(pipeline, report)
        return report

    def finish_full_refresh(self) -> None:
        """Of a bronze that had no quarantine then: the first run that finds one notes it there."""
        pipeline = self.pipeline()
        bronze, quarantine = pipeline.bronze.open(), pipeline.quarantine.open()
        if bronze is not None and quarantine is not None and not is_finished(bronze, quarantine):
            self.work()

    def records_come(self, events: list[Event], *, newer: bool = False) -> None:
        """Perhaps with a column that no table has yet."""
        if newer:
            self.topic.columns[f"col_{len(self.topic.columns)}"] = pa.string()
        for game, gamer, n, schema in events:
            lucky = n + 1 if self.plain and n == UNLUCKY else n
            row = {"game_name": game, "gamer_id": gamer, "n": lucky, "schema": schema}
            lane = self.lanes[sum(gamer.encode()) % len(self.lanes)]
            self.topic.records[lane].append(row | {"event_timestamp": EPOCH + timedelta(hours=5 * n)})

    def files_are_joined(self, uri: str) -> None:
        """Of that table, if it is one that maintenance joins; a rival may have been first."""
        lakehouse = self.lakehouse
        of_silver = [lakehouse.table("silver_events")] if lakehouse.is_partitioned else map(lakehouse.silver, GAMES)
        for table in (lakehouse.table("bronze_events"), lakehouse.table("quarantine_events"), *of_silver):
            handle = table.open() if table.uri.rstrip("/") in uri.rstrip("/") else None
            for files in not_laid_out(table, handle, few=True) if handle is not None else []:
                with suppress(GameEventsError):
                    lay_out(table, handle, files)
            handle = handle and table.open()
            for group in small_files(table, handle, FULL_GOAL) if handle is not None else []:
                with suppress(GameEventsError):
                    join_files(table, handle, group)

    def files_are_renewed(self) -> None:
        """All files of all tables, as if an earlier release had written them; a rival may have been first."""
        lakehouse = self.lakehouse
        for table in map(lakehouse.table, lakehouse.names()):
            handle = table.open()
            files = [OutdatedFile(path, 1) for path in paths(handle)] if handle is not None else []
            for group in first_groups(files):
                with suppress(GameEventsError):
                    renew(table, table.open(), group)

    def beside_maintenance(self, **how: Any) -> None:
        """A run during which the files of each table are joined right before it is committed to."""

        def join(uri: str) -> None:
            with self.happening(None):
                self.files_are_joined(uri)

        with self.happening(None, join), suppress(GameEventsError):
            self.work(**how)

    def disturbed(self, step: int | str, action: Action, **how: Any) -> None:
        """A run during which something happens at one of its steps, by its number or its name."""
        steps = Counter[int | str]()

        def come(name: str) -> None:
            steps["all"] += 1
            steps[name] += 1
            if step in (steps["all"], name) and (step != name or steps[name] == 1):
                with self.happening(None):
                    action()

        with self.happening(come), suppress(PowerCut, GameEventsError):
            self.work(**how)

    @contextmanager
    def happening(self, step: Callable[[str], None] | None, late: Callable[[str], None] | None = None) -> Iterator[None]:
        """While this block is executed, that happens at each step, and right before each commit."""
        before, (self.step, self.late) = (self.step, self.late), (step, late)
        try:
            yield
        finally:
            self.step, self.late = before

    @contextmanager
    def refusing(self, table: Table, number: int) -> Iterator[None]:
        """The store does not answer when a table is opened for that time."""
        looks = Counter[str]()

        def opened(look: Open, asked: Table) -> DeltaTable | None:
            looks[asked.uri] += 1
            if asked.uri == table.uri and looks[table.uri] == number:
                raise TransientError("the object store answers 503")
            return look(asked)

        with at_opening(opened):
            yield

    # --- what there is, and what must be there

    def assert_unified_shows_gold(self) -> None:
        """After a run without an error, also of games that nothing came of; but for tables that somebody else has changed."""
        shown = self.rows(self.lakehouse.table(UNIFIED))
        for game in GAMES:
            handle = self.table(game, of_gold=True).open()
            if handle is not None and not restored(handle):
                of_gold = {r["gamer_id"]: r | {"game_name": game} for r in self.rows(self.table(game, of_gold=True))}
                assert {r["gamer_id"]: r for r in shown if r["game_name"] == game} == of_gold, f"{game}: unified is not gold"

    def table(self, game: str, *, of_gold: bool = False) -> Table:
        """Silver's or gold's."""
        lakehouse = self.lakehouse
        return lakehouse.gold(game) if of_gold else lakehouse.silver(game)

    def rows(self, table: Table) -> list[dict[str, Any]]:
        """Each version is read once, until all is settled."""
        handle = table.open()
        if handle is None:
            return []
        version = (str(handle.metadata().id), table.part, handle.version())
        if version not in self.seen:
            self.seen[version] = read_arrow(table, handle).to_pylist()
        return self.seen[version]

    def rejected(self) -> dict[Place, str]:
        """Place -> game of what quarantine keeps out of silver."""
        return {place(r): r["game"] for r in self.rows(self.pipeline().quarantine) if is_kept_out(r, GAMES)}

    def assert_nothing_is_doubled(self) -> None:
        """At any time, whatever is unfinished."""
        pipeline = self.pipeline()
        rows, held = self.rows(pipeline.bronze), self.rows(pipeline.quarantine)
        bronze = {place(r): r for r in rows}
        assert len(bronze) == len(rows), "bronze holds a record twice"
        undecodable = [r for r in held if r["layer"] == "bronze"]
        places = [place(r) for r in undecodable]
        assert len(places) == len(set(places)), "quarantine holds an undecodable record twice"
        self.assert_no_record_is_in_both(pipeline, bronze.keys(), undecodable)
        for game in GAMES:
            silver = self.rows(self.table(game))
            mine = [place(r) for r in silver]
            assert len(mine) == len(set(mine)), f"{game}: silver holds a row twice"
            assert all(bronze[p]["game_name"] == game for p in mine if p in bronze), f"{game}: silver holds another game's row"
            events = {r["n"] for r in silver}
            assert not self.deduplicates or len(events) == len(silver), f"{game}: silver holds an event twice"
            players = [r["gamer_id"] for r in self.rows(self.table(game, of_gold=True))]
            assert len(players) == len(set(players)), f"{game}: gold holds a player twice"
        rejected = [place(r) for r in held if is_kept_out(r, GAMES)]
        assert len(rejected) == len(set(rejected)), "quarantine holds a rejected row twice"
        players = [(r["game_name"], r["gamer_id"]) for r in self.rows(self.lakehouse.table(UNIFIED))]
        assert len(players) == len(set(players)), "the unified table holds a player twice"

    def assert_no_record_is_in_both(self, pipeline: Pipeline, there: Any, undecodable: list[dict[str, Any]]) -> None:
        """But for those that were replayed, and while a replay or a full refresh waits for its second commit."""
        bronze, quarantine = pipeline.bronze.open(), pipeline.quarantine.open()
        if bronze is None or quarantine is None or not is_noted(bronze, quarantine) or not is_finished(bronze, quarantine):
            return
        here = str(bronze.metadata().id)
        both = {place(r) for r in undecodable if r["replayed_table"] != here} & set(there)
        assert not both, f"records {sorted(both)} are in bronze and in quarantine"
        passed = {place_in(lane, n) for lane in self.lanes for n in range(bronze.transaction_version(lane.app) or 0)}
        nowhere = passed - set(there) - {place(r) for r in undecodable}
        assert not nowhere, f"records {sorted(nowhere)} are nowhere"

    def assert_settled(self) -> None:
        """Every record that came is where the rules say."""
        self.seen.clear()
        self.assert_nothing_is_doubled()
        bronze = self.rows(self.pipeline().bronze)
        sent = {place_in(lane, n) for lane, records in self.topic.records.items() for n in range(len(records))}
        assert {place(r) for r in bronze} == sent
        rejected = self.rejected()
        assert not {place(r) for r in bronze if r["game_name"] == NOBODY} & set(rejected)
        self.assert_unified_shows_gold()
        for game in GAMES:
            mine = {place(r): r for r in bronze if r["game_name"] == game}
            self.assert_game_settled(game, mine, {p for p, name in rejected.items() if name == game})

    def assert_game_settled(self, game: str, mine: dict[Place, dict[str, Any]], kept_out: set[Place]) -> None:
        """Its rows, and what gold says of them."""
        held = self.rows(self.table(game))
        kept = {place(r) for r in held}
        twice = self.sent_twice([r for p, r in mine.items() if p not in kept_out and r["n"] != UNLUCKY])
        dropped = set(mine) - kept - kept_out - twice
        assert not kept & kept_out, f"{game}: rows are in silver and in quarantine"
        assert not kept & twice, f"{game}: of an event silver has another row than the first"
        assert all(mine[p]["n"] == UNLUCKY for p in dropped), f"{game}: rows are nowhere"
        assert not any(r["n"] == UNLUCKY for r in held), f"{game}: a row was not dropped"
        assert all(mine[p]["n"] % 2 == 0 for p in kept_out), f"{game}: rows were rejected for nothing"
        assert all(r["_batch"] == mine[place(r)]["_batch"] for r in held)
        handle = self.table(game).open()
        assert handle is not None
        for counter, rows in ((Txn.ROWS_DROPPED, dropped), (Txn.ROWS_DUPLICATE, twice)):
            assert (handle.transaction_version(counter) or 0) == len(rows), f"{game}: {counter} is not {len(rows)}"
        truth: dict[str, tuple[int, Any, Any]] = {}
        for row in held:
            count, low, high = truth.get(row["gamer_id"], (0, row["event_timestamp"], row["event_timestamp"]))
            at = row["event_timestamp"]
            truth[row["gamer_id"]] = (count + 1, min(low, at), max(high, at))
        said = {
            r["gamer_id"]: (r["session_count"], r["min_timestamp"], r["max_timestamp"])
            for r in self.rows(self.table(game, of_gold=True))
        }
        assert said == truth, f"{game}: gold is not what its silver says"

    def sent_twice(self, rows: list[dict[str, Any]]) -> set[Place]:
        """Of a game's rows that rules let in: those of an event of which an earlier one is there, in bronze's order."""
        first: dict[int, Place] = {}
        for row in sorted(rows, key=lambda r: [r[name] for name in ORDER]):
            first.setdefault(row["n"], place(row))
        return {place(row) for row in rows} - set(first.values()) if self.deduplicates else set()
