"""The fan-out's own code against a plain model: batches, crashes, lost answers, rivals, lost tables, rules, in any order.

Everything is the pipeline's own (`refresh_silver`, `refresh_gold`, commits, decisions, progress, the workers' writer), on real
Delta tables; only Spark's part of the job is done by Arrow, so that a run takes a tenth of a second. A run may crash, lose the
answer of a commit, or be overtaken by a whole rival run at any step. `GAME_EVENTS_MODEL_EXAMPLES` asks for more examples.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from game_events.errors import GameEventsError
from game_events.lakehouse import crash_points
from game_events.lakehouse.commits import Commit, commit
from game_events.lakehouse.reading import BATCH_INFO, read_arrow
from game_events.lakehouse.staging import StagedWriter
from game_events.lakehouse.tables import PROGRESS, Lakehouse, Table
from game_events.pipeline import game_commits, gold, silver, silver_stage
from game_events.pipeline.bronze_stage import OWN_COLUMNS
from game_events.pipeline.context import Pipeline
from game_events.pipeline.generations import BATCH_APP
from game_events.pipeline.gold import refresh_gold
from game_events.pipeline.report import RunReport
from game_events.pipeline.silver import refresh_silver
from game_events.pipeline.silver_commit import DROPPED_APP
from game_events.settings import load_settings
from game_events_tests.guarantees import arrow_plans
from game_events_tests.guarantees.arrow_plans import DROPS, REJECTS, UNLUCKY, InTurn
from game_events_tests.guarantees.waves import PowerCut

GAMES = ("rummy", "spades", "uno")
#: A name that is no game: its rows stay in bronze.
NOBODY = "NOT A GAME"
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
EXAMPLES = int(os.environ.get("GAME_EVENTS_MODEL_EXAMPLES", "20"))
EVENTS = st.lists(
    st.tuples(st.sampled_from((*GAMES, NOBODY)), st.sampled_from("abc"), st.integers(0, 24)), min_size=1, max_size=8
)
#: Read once: that takes longer than a step.
DEFAULTS = cache(load_settings)
#: A step of a run; most runs have some thirty.
STEPS = st.integers(1, 40)


class FanOutModel(RuleBasedStateMachine):
    """Bronze grows batch by batch; runs bring silver and gold up to it, or do not get that far."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.strictness = 0
        self.offset = 0
        self.columns = 0
        self.seen: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(silver, "stage_games", arrow_plans.stage_games)
        self.patch.setattr(gold, "_stage", arrow_plans.stage_gold)
        self.patch.setattr(silver_stage, "require_valid", lambda *_: None)
        self.patch.setattr(game_commits, "ThreadPoolExecutor", InTurn)
        self.patch.setattr(crash_points, "reach", lambda *_: None)

    def teardown(self) -> None:
        """Whatever happened: one undisturbed run later everything is in its place."""
        try:
            self.settle()
        finally:
            self.patch.undo()
            shutil.rmtree(self.folder)

    def pipeline(self) -> Pipeline:
        """As a new process has it, with the rules that are in force now."""
        rules = (DROPS, *(r for r in (REJECTS[self.strictness],) if r is not None))
        settings = DEFAULTS().model_copy(update={"lakehouse": self.folder, "rules": rules})
        # Asked for by the rules' check alone, which is replaced above.
        return Pipeline(settings, lambda: None)  # type: ignore[arg-type, return-value]

    # --- what happens

    @rule(events=EVENTS, newer=st.booleans())
    def a_batch_comes_to_bronze(self, events: list[tuple[str, str, int]], newer: bool) -> None:
        """Perhaps with a column that no table has yet."""
        self.columns += newer
        own = [pa.field("game_name", pa.string()), pa.field("gamer_id", pa.string()), pa.field("n", pa.int64())]
        own += [pa.field("event_timestamp", arrow_plans.TIME)]
        schema = pa.schema([*OWN_COLUMNS, *own, *(pa.field(f"col_{n}", pa.string()) for n in range(self.columns))])
        table = self.pipeline().bronze
        handle = table.open()
        batch = int(handle.transaction_version(BATCH_APP) or 0) if handle is not None else None
        rows = []
        for game, gamer, n in events:
            row: dict[str, Any] = dict.fromkeys(schema.names)
            row |= {"_kafka_topic": "t", "_kafka_topic_id": "id", "_kafka_partition": 0, "_kafka_offset": self.offset}
            row |= {"_batch": (batch or 0) + 1, "_raw_value": b"x", "game_name": game, "gamer_id": gamer, "n": n}
            row["event_timestamp"] = EPOCH + timedelta(seconds=n)
            rows.append(row)
            self.offset += 1
        writer = StagedWriter(table, schema)
        writer.write(pa.Table.from_pylist(rows, schema=schema))
        table_id = str(handle.metadata().id) if handle is not None else None
        commit(Commit(table, schema, writer.close(), {BATCH_APP: batch}, {BATCH_APP: (batch or 0) + 1}, table_id))

    @rule()
    def a_run(self) -> None:
        """Nothing disturbs it."""
        self.work()

    @rule(step=STEPS, full=st.booleans())
    def a_run_that_crashes(self, step: int, full: bool) -> None:
        """At any of its steps; a run that has fewer comes to its end."""

        def cut() -> None:
            raise PowerCut

        self.disturbed(step, cut, full=full)

    @rule(step=STEPS, events=EVENTS, full=st.booleans(), rival_full=st.booleans())
    def a_run_that_a_rival_overtakes(self, step: int, events: list[Any], full: bool, rival_full: bool) -> None:
        """The rival sees a bronze that has read on, and goes to its end between two steps."""

        def rival() -> None:
            self.a_batch_comes_to_bronze(events, newer=False)
            self.work(full=rival_full)

        self.disturbed(step, rival, full=full)

    @rule(step=STEPS, rival_step=STEPS, events=EVENTS)
    def a_run_that_goes_on_after_its_rival_has_crashed(self, step: int, rival_step: int, events: list[Any]) -> None:
        """Both have done a part."""

        def cut() -> None:
            raise PowerCut

        def rival() -> None:
            self.a_batch_comes_to_bronze(events, newer=True)
            self.disturbed(rival_step, cut)

        self.disturbed(step, rival)

    @rule(number=st.integers(1, 8), landed=st.booleans())
    def a_run_that_loses_the_answer_of_a_commit(self, number: int, landed: bool) -> None:
        """Whether the commit is made, or not."""
        real, seen = DeltaTable.create_write_transaction, []

        def lossy(*arguments: Any, **options: Any) -> None:
            seen.append(1)
            if landed or len(seen) != number:
                real(*arguments, **options)
            if len(seen) == number:
                raise DeltaError("timed out")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeltaTable, "create_write_transaction", lossy)
            with suppress(GameEventsError):
                self.work()

    @rule()
    def rules_get_stricter(self) -> None:
        """For rows that nobody has decided on."""
        self.strictness = min(self.strictness + 1, len(REJECTS) - 1)

    @rule(game=st.sampled_from(GAMES), of_gold=st.booleans())
    def a_table_is_deleted(self, game: str, of_gold: bool) -> None:
        """By somebody else."""
        shutil.rmtree(self.table(game, of_gold=of_gold).uri, ignore_errors=True)

    @rule(game=st.sampled_from(GAMES), of_gold=st.booleans(), version=st.integers(0, 5))
    def a_table_is_restored(self, game: str, of_gold: bool, version: int) -> None:
        """To an older version, which has rows of ours."""
        handle = self.table(game, of_gold=of_gold).open()
        if handle is not None and version < handle.version():
            handle.restore(version)

    @rule()
    def progress_is_lost(self) -> None:
        """The whole table."""
        shutil.rmtree(Path(self.folder) / PROGRESS, ignore_errors=True)

    # --- how

    def work(self, *, full: bool = False) -> RunReport:
        """A run over silver and gold; what it cannot do is the next one's."""
        pipeline, report = self.pipeline(), RunReport()
        refresh_silver(pipeline, report, frozenset(GAMES) if full else None, full=full)
        refresh_gold(pipeline, report)
        return report

    def disturbed(self, step: int, action: Callable[[], None], *, full: bool = False) -> None:
        """A run during which something happens at one of its steps."""
        steps = Counter[str]()

        def reach(name: str, detail: object = None) -> None:  # noqa: ARG001
            steps["all"] += 1
            if steps["all"] == step:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(crash_points, "reach", lambda *_: None)
                    action()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(crash_points, "reach", reach)
            with suppress(PowerCut, GameEventsError):
                self.work(full=full)

    def table(self, game: str, *, of_gold: bool = False) -> Table:
        lakehouse = Lakehouse(self.folder)
        return lakehouse.gold(game) if of_gold else lakehouse.silver(game)

    # --- what must hold

    @invariant()
    def nothing_is_doubled(self) -> None:
        """At any time, whatever is unfinished."""
        bronze = {r["_kafka_offset"]: r for r in self.rows(self.pipeline().bronze)}
        for game in GAMES:
            held = [r["_kafka_offset"] for r in self.rows(self.table(game))]
            assert len(held) == len(set(held)), f"{game}: silver holds a row twice"
            assert all(bronze[o]["game_name"] == game for o in held), f"{game}: silver holds another game's row"
            players = [r["gamer_id"] for r in self.rows(self.table(game, of_gold=True))]
            assert len(players) == len(set(players)), f"{game}: gold holds a player twice"
        rejected = [r["_kafka_offset"] for r in self.rows(self.pipeline().quarantine)]
        assert len(rejected) == len(set(rejected)), "quarantine holds a row twice"

    @rule()
    def settle(self) -> None:
        """Each game gets a row, so that deleted and restored tables are noticed, and a run comes to its end."""
        self.a_batch_comes_to_bronze([(game, "z", 1) for game in GAMES], newer=False)
        report = self.work()
        assert report.errors == [], report.errors
        self.seen.clear()
        self.nothing_is_doubled()
        bronze = self.rows(self.pipeline().bronze)
        rejected = {r["_kafka_offset"]: r["game"] for r in self.rows(self.pipeline().quarantine)}
        assert not {r["_kafka_offset"] for r in bronze if r["game_name"] == NOBODY} & set(rejected)
        for game in GAMES:
            mine = {r["_kafka_offset"]: r for r in bronze if r["game_name"] == game}
            held = self.rows(self.table(game))
            kept = {r["_kafka_offset"] for r in held}
            kept_out = {o for o, name in rejected.items() if name == game}
            dropped = set(mine) - kept - kept_out
            assert not kept & kept_out, f"{game}: rows are in silver and in quarantine"
            assert all(mine[o]["n"] == UNLUCKY for o in dropped), f"{game}: rows are nowhere"
            assert not any(r["n"] == UNLUCKY for r in held), f"{game}: a row was not dropped"
            assert all(mine[o]["n"] % 2 == 0 for o in kept_out), f"{game}: rows were rejected for nothing"
            assert all(r["_batch"] == mine[r["_kafka_offset"]]["_batch"] for r in held)
            handle = self.table(game).open()
            assert handle is not None
            assert (handle.transaction_version(DROPPED_APP) or 0) == len(dropped), f"{game}: dropped rows are miscounted"
            assert handle.history(1)[0].get(BATCH_INFO), "the newest commit is our own"
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
        assert self.work().tables == [], "a run with nothing to do has changed something"

    def rows(self, table: Table) -> list[dict[str, Any]]:
        """Each version is read once, until all is settled."""
        handle = table.open()
        if handle is None:
            return []
        version = (str(handle.metadata().id), handle.version())
        if version not in self.seen:
            self.seen[version] = read_arrow(table, handle).to_pylist()
        return self.seen[version]


class TestFewFanOutsThroughCrashesRivalsAndLostTables(FanOutModel.TestCase):
    """For `make test`."""

    settings = settings(
        max_examples=5, stateful_step_count=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
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
