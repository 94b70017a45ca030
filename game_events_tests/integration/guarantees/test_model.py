"""All layers' own code against a plain model: records, crashes, lost answers, failures, rivals, lost tables, in any order.

Everything is the pipeline's own (`load_bronze`, replay, `refresh_silver`, `refresh_gold`, `refresh_unified`, full refreshes,
compaction, commits, decisions, progress, the workers' writer), on real Delta tables; only Spark's part of the jobs is done by
Arrow, so that a run takes a fraction of a second. A run may crash, lose the answer of a commit, be refused by the store, or be
overtaken by a whole rival run or a compaction at any step, the moment before a commit included; and no two runs need know the
same schemas, or have the same allow list. `GAME_EVENTS_MODEL_EXAMPLES` asks for more examples.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from game_events.config.names import PROGRESS
from game_events.errors import GameEventsError
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.tables import PARTITIONED, TABLES, UNIFIED
from game_events.sources.source import Partition
from game_events_tests.support.faults import Write, at_commit
from game_events_tests.support.model.bronze import LANE, OTHER_LANE
from game_events_tests.support.model.plans import REJECTS
from game_events_tests.support.model.world import BRONZE, GAMES, NOBODY, SCHEMAS, SILVER, Place, World
from game_events_tests.support.worlds.waves import PowerCut

EXAMPLES = int(os.environ.get("GAME_EVENTS_MODEL_EXAMPLES", "20"))
EVENTS = st.lists(
    st.tuples(st.sampled_from((*GAMES, NOBODY)), st.sampled_from("abc"), st.integers(0, 24), st.sampled_from(SCHEMAS)),
    min_size=1,
    max_size=8,
)
#: A step of a run; most runs have some fifty.
STEPS = st.integers(1, 70)
#: Between the plan of a slice and its last commit.
SLICE = ("bronze_staged", "quarantine_announced", "quarantine_committed")
FULL = st.sampled_from(("", SILVER, BRONZE))
KNOWS = st.sampled_from(((1,), (2,), SCHEMAS))
ALLOWED = st.sampled_from(((), ("rummy",), ("spades", "uno")))
#: Of games: settings of a run that have room for all, and for one or two.
ROOM, ROOM_EVER = st.sampled_from((2_000, 1)), st.sampled_from((10_000, 2))
HOW = st.fixed_dictionaries(
    {
        "full": FULL,
        "knows": KNOWS,
        "games": ALLOWED,
        "max_games": ROOM,
        "max_games_ever": ROOM_EVER,
        "new_game_min_rows": st.just(3),
        "silent": st.sampled_from((None, 0, 1)),
    }
)


def offsets(places: Mapping[Place, str]) -> dict[int, str]:
    """Of places in one lane."""
    return {offset: game for (*_, offset), game in places.items()}


def cut() -> None:
    """The run is gone."""
    raise PowerCut


class FanOutModel(RuleBasedStateMachine):
    """Records come; runs bring all layers up to them, or do not get that far."""

    layout, plain = TABLES, False
    lanes: tuple[Partition, ...] = (LANE,)
    deduplicates = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.layout, plain=self.plain, lanes=self.lanes, deduplicates=self.deduplicates)

    def teardown(self) -> None:
        """Whatever happened: one undisturbed run later everything is in its place."""
        try:
            self.settle()
        finally:
            self.world.close()

    @rule(events=EVENTS, newer=st.booleans())
    def records_come(self, events: list[Any], newer: bool) -> None:
        """Perhaps with a column that no table has yet."""
        self.world.records_come(events, newer=newer)

    @rule(how=HOW)
    def a_run(self, how: dict[str, Any]) -> None:
        """Nothing disturbs it."""
        self.world.work(**how)

    @rule(step=STEPS, how=HOW)
    def a_run_that_crashes(self, step: int, how: dict[str, Any]) -> None:
        """At any of its steps; a run that has fewer comes to its end."""
        self.world.disturbed(step, cut, **how)

    @rule(step=STEPS, events=EVENTS, how=HOW, theirs=HOW)
    def a_run_that_a_rival_overtakes(self, step: int, events: list[Any], how: dict[str, Any], theirs: dict[str, Any]) -> None:
        """The rival sees a topic that has grown, and goes to its end between two steps."""

        def rival() -> None:
            self.world.records_come(events)
            with suppress(GameEventsError):
                self.world.work(**theirs)

        self.world.disturbed(step, rival, **how)

    @rule(step=STEPS, rival_step=STEPS, events=EVENTS, how=HOW, theirs=HOW)
    def a_run_that_goes_on_after_its_rival_has_crashed(
        self, step: int, rival_step: int, events: list[Any], how: dict[str, Any], theirs: dict[str, Any]
    ) -> None:
        """Both have done a part."""

        def rival() -> None:
            self.world.records_come(events, newer=True)
            self.world.disturbed(rival_step, cut, **theirs)

        self.world.disturbed(step, rival, **how)

    @rule(ours=st.sampled_from(SLICE), theirs=st.sampled_from(SLICE[1:]), knows=KNOWS, they_know=KNOWS, events=EVENTS)
    def two_runs_that_know_other_schemas(
        self, ours: str, theirs: str, knows: tuple[int, ...], they_know: tuple[int, ...], events: list[Any]
    ) -> None:
        """Read the same records; one crashes between the commits of its slice, while the other one is between its own."""
        self.world.records_come(events)
        self.world.disturbed(ours, lambda: self.world.disturbed(theirs, cut, knows=they_know), knows=knows)

    @rule(game=st.sampled_from(GAMES), number=st.integers(1, 3), events=EVENTS)
    def a_game_that_fails_and_is_left_out_by_the_next_run(self, game: str, number: int, events: list[Any]) -> None:
        """Which succeeds, as it has nothing to do for the others."""
        self.world.records_come(events)
        with self.world.refusing(self.world.table(game), number), suppress(GameEventsError):
            self.world.work()
        self.world.work(games=tuple(name for name in GAMES if name != game))

    @rule(how=HOW)
    def a_run_beside_maintenance(self, how: dict[str, Any]) -> None:
        """Which joins a table's files at the last moment before each of its commits."""
        self.world.beside_maintenance(**how)

    @rule(step=STEPS, how=HOW)
    def a_run_during_which_all_files_are_renewed(self, step: int, how: dict[str, Any]) -> None:
        """Between two of its steps: the rows of each file are in another one then."""
        self.world.disturbed(step, self.world.files_are_renewed, **how)

    @rule(game=st.sampled_from(GAMES), number=st.integers(3, 5), events=EVENTS)
    def a_game_whose_gold_cannot_be_looked_at(self, game: str, number: int, events: list[Any]) -> None:
        """Once, after it was committed to; and then nothing more comes of it."""
        self.world.records_come([*events, (game, "a", 1, 1)])
        with self.world.refusing(self.world.table(game, of_gold=True), number), suppress(GameEventsError):
            self.world.work()
        if self.world.work().success:
            self.world.assert_unified_shows_gold()

    @rule(game=st.sampled_from(GAMES), of_gold=st.booleans(), number=st.integers(1, 6), how=HOW)
    def a_run_in_which_the_store_refuses_a_look(self, game: str, of_gold: bool, number: int, how: dict[str, Any]) -> None:
        """At one game's table, once."""
        with self.world.refusing(self.world.table(game, of_gold=of_gold), number), suppress(GameEventsError):
            self.world.work(**how)

    @rule(number=st.integers(1, 12), landed=st.booleans(), how=HOW)
    def a_run_that_loses_the_answer_of_a_commit(self, number: int, landed: bool, how: dict[str, Any]) -> None:
        """Whether the commit is made, or not."""
        seen = []

        def lossy(real: Write, *arguments: Any, **options: Any) -> object:
            seen.append(1)
            made = real(*arguments, **options) if landed or len(seen) != number else None
            if len(seen) == number:
                raise DeltaError("timed out")
            return made

        with at_commit(lossy), suppress(GameEventsError):
            self.world.work(**how)

    @rule(strictness=st.integers(0, len(REJECTS) - 1))
    def rules_change(self, strictness: int) -> None:
        """For rows that nobody has decided on, and for what is decided anew."""
        self.world.strictness = strictness

    @rule(game=st.sampled_from(GAMES), of_gold=st.booleans())
    def a_table_is_deleted(self, game: str, of_gold: bool) -> None:
        """By somebody else."""
        shutil.rmtree(self.world.table(game, of_gold=of_gold).uri, ignore_errors=True)

    @rule(game=st.sampled_from(GAMES), of_gold=st.booleans(), version=st.integers(0, 5))
    def a_table_is_restored(self, game: str, of_gold: bool, version: int) -> None:
        """To an older version, which has rows of ours."""
        handle = self.world.table(game, of_gold=of_gold).open()
        if handle is not None and version < handle.version():
            handle.restore(version)

    @rule(version=st.none() | st.integers(0, 5))
    def the_unified_table_is_deleted_or_restored(self, version: int | None) -> None:
        """By somebody else: to an older version, which may have rows of games that are gone, or none of later ones."""
        table = self.world.lakehouse.table(UNIFIED)
        handle = table.open()
        if handle is not None and version is None:
            shutil.rmtree(table.uri)
        elif handle is not None and version is not None and version < handle.version():
            handle.restore(version)

    @rule()
    def progress_is_lost(self) -> None:
        """The whole table."""
        shutil.rmtree(Path(self.world.folder) / PROGRESS, ignore_errors=True)

    @invariant()
    def nothing_is_doubled(self) -> None:
        """At any time, whatever is unfinished."""
        self.world.assert_nothing_is_doubled()

    @rule()
    def settle(self) -> None:
        """A run comes to its end; then each game gets a row, so that deleted and restored tables are noticed, and another."""
        if self.world.work().success:
            self.world.assert_unified_shows_gold()
        self.world.records_come([(game, "z", 1, 1) for game in GAMES])
        report = self.world.work()
        assert report.errors == [], report.errors
        self.world.assert_settled()
        self.world.finish_full_refresh()
        assert self.world.work().tables == [], "a run with nothing to do has changed something"


class PartitionedModel(FanOutModel):
    """The same with one table of silver and one of gold for all games."""

    layout = PARTITIONED


class OnePassModel(FanOutModel):
    """The same without rules: bronze's workers write silver's files and gold's partial rows, which runs hold."""

    plain = True


class TwiceModel(FanOutModel):
    """The same from two sources, one of which may not answer, with events that are sent twice: by one of them, or by both."""

    lanes = (LANE, OTHER_LANE)
    deduplicates = True


class PartitionedTwiceModel(TwiceModel):
    """Both."""

    layout = PARTITIONED


class TwoSourcesModel(OnePassModel):
    """Two sources, whose rows bronze's workers write to silver's files, too."""

    lanes = (LANE, OTHER_LANE)


class TestFewFanOutsThroughCrashesRivalsAndLostTables(FanOutModel.TestCase):
    """For `make test`."""

    settings = settings(max_examples=5, stateful_step_count=12, derandomize=True, suppress_health_check=list(HealthCheck))


class TestFewFanOutsThroughCrashesRivalsAndLostTablesOfAllGames(PartitionedModel.TestCase):
    """For `make test`."""

    settings = TestFewFanOutsThroughCrashesRivalsAndLostTables.settings


class TestFewOfOnePassThroughCrashesRivalsAndLostTables(OnePassModel.TestCase):
    """For `make test`."""

    settings = settings(max_examples=5, stateful_step_count=12, derandomize=True, suppress_health_check=list(HealthCheck))


class TestFewOfTwoSourcesWithEventsThatAreSentTwice(TwiceModel.TestCase):
    """For `make test`."""

    settings = TestFewFanOutsThroughCrashesRivalsAndLostTables.settings


@pytest.mark.scenario
class TestOnePassThroughCrashesRivalsAndLostTables(OnePassModel.TestCase):
    """Many."""

    settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=12,
        deadline=None,
        derandomize=EXAMPLES <= 20,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.scenario
class TestFanOutThroughCrashesRivalsAndLostTables(FanOutModel.TestCase):
    """Many."""

    settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=12,
        deadline=None,
        # The same examples each time, unless more are asked for.
        derandomize=EXAMPLES <= 20,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.scenario
class TestFanOutThroughCrashesRivalsAndLostTablesOfAllGames(PartitionedModel.TestCase):
    """Many."""

    settings = TestFanOutThroughCrashesRivalsAndLostTables.settings


@pytest.mark.scenario
class TestTwoSourcesWithEventsThatAreSentTwice(TwiceModel.TestCase):
    """Many."""

    settings = TestFanOutThroughCrashesRivalsAndLostTables.settings


@pytest.mark.scenario
class TestTwoSourcesWithEventsThatAreSentTwiceOfAllGames(PartitionedTwiceModel.TestCase):
    """Many."""

    settings = TestFanOutThroughCrashesRivalsAndLostTables.settings


@pytest.mark.scenario
class TestOnePassOfTwoSources(TwoSourcesModel.TestCase):
    """Many."""

    settings = TestFanOutThroughCrashesRivalsAndLostTables.settings


class OnePassPartitionedModel(OnePassModel):
    """Both."""

    layout = PARTITIONED


@pytest.mark.scenario
class TestOnePassThroughCrashesRivalsAndLostTablesOfAllGames(OnePassPartitionedModel.TestCase):
    """Many."""

    settings = TestFanOutThroughCrashesRivalsAndLostTables.settings


@pytest.mark.parametrize("layout", [TABLES, PARTITIONED])
def test_a_plain_run_takes_what_bronzes_workers_have_written_for_silver_and_gold(layout: str) -> None:
    with closing(World(layout, plain=True)) as world:
        for number in range(3):
            world.records_come([("rummy", "a", number, 1), ("rummy", "b", 4, 2), ("uno", "a", 8, 2), (NOBODY, "a", 1, 1)])
            world.work()
            assert (world.taken, world.merged) == (number + 1, 2 * (number + 1))
        world.records_come([(game, "a", 1, 1) for game in GAMES], newer=True)
        world.work()
        assert (world.taken, world.merged) == (4, 9)
        world.assert_settled()


@pytest.mark.parametrize(("point", "taken", "merged"), [("bronze_committed", 0, 0), ("silver_committed", 1, 0)])
def test_what_is_held_is_not_used_after_a_rival_has_added_files_and_is_gone(point: str, taken: int, merged: int) -> None:
    with closing(World(plain=True)) as world:
        world.records_come([("rummy", "a", 1, 1), ("uno", "a", 1, 1)])

        def rival() -> None:
            world.records_come([("rummy", "a", 2, 1), ("rummy", "b", 3, 1), ("uno", "a", 2, 1)])
            world.disturbed(point, cut)

        world.disturbed(point, rival)
        assert (world.taken, world.merged) == (taken, merged)
        world.records_come([(game, "a", 1, 1) for game in GAMES])
        world.work()
        world.assert_settled()


@pytest.mark.parametrize("layout", [TABLES, PARTITIONED])
def test_an_event_that_two_sources_send_is_in_silver_once_though_a_rival_brings_it_meanwhile(layout: str) -> None:
    with closing(World(layout, lanes=(LANE, OTHER_LANE), deduplicates=True)) as world:
        world.records_come([("rummy", "a", 5, 1), ("rummy", "b", 5, 1), ("uno", "a", 5, 1)])
        world.work(silent=1)
        world.records_come([("rummy", "a", 7, 1), ("rummy", "a", 8, 2)])

        def rival() -> None:
            world.records_come([("rummy", "b", 7, 1), ("rummy", "b", 9, 1)])
            world.disturbed("silver_committed", cut)

        world.disturbed("silver_staged", rival)
        world.records_come([(game, "b", 9, 1) for game in GAMES])
        world.work()
        world.assert_settled()
        counters = {game: world.table(game).open().transaction_version(Txn.ROWS_DUPLICATE) for game in GAMES}
        assert counters == {"rummy": 3, "spades": None, "uno": None}
        for how in (SILVER, BRONZE):
            world.work(full=how)
            world.work()
            world.assert_settled()


def test_a_rejected_record_that_does_not_decode_for_a_time_is_judged_again_and_held_once() -> None:
    with closing(World()) as world:
        world.records_come([("rummy", "a", 8, 1), ("rummy", "a", 4, 2), ("rummy", "a", 8, 2), ("rummy", "a", 1, 1)])
        world.strictness = 1
        world.work()
        world.work(full=BRONZE, knows=(1,))
        # Of the others quarantine has no row that counts as long as they do not decode.
        assert offsets(world.rejected()) == {0: "rummy"}
        world.work()
        assert offsets(world.rejected()) == {0: "rummy", 1: "rummy", 2: "rummy"}
        world.assert_nothing_is_doubled()
        world.work(full=BRONZE, knows=(1,))
        world.strictness = 0
        world.work()
        assert offsets(world.rejected()) == {0: "rummy"}
        world.records_come([(game, "a", 1, 1) for game in GAMES])
        world.work()
        world.assert_settled()
