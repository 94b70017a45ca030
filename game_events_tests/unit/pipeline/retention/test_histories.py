"""Random histories of loads, late rows, other rules, replays, full refreshes, crashes and removals by age, on real tables.

The layers' own code runs; only Spark's part of the jobs is done by Arrow (`support.model`).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from game_events.errors import ConflictError, GameEventsError
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.tables import PARTITIONED, TABLES
from game_events.pipeline import maintenance
from game_events.pipeline.checks.reconcile import RowCounts, reconcile
from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events_tests.support.model.bronze import LANE
from game_events_tests.support.model.plans import REJECTS, UNLUCKY, is_kept_out
from game_events_tests.support.model.world import BRONZE, GAMES, NOBODY, SCHEMAS, SILVER, World
from game_events_tests.support.worlds.waves import PowerCut

DAYS = {"bronze": 30.0, "silver": 60.0, "quarantine": 45.0}
#: Of records when they come: young, older than bronze's, quarantine's, and silver's limit.
AGES = (1, 20, 40, 50, 80)


#: Where older rows are in one layer, and not in the next one yet.
BETWEEN = ("bronze_committed", "silver_staged", "rejections_decided", "silver_committed", "gold_staged", "gold_committed")


class AgedWorld(World):
    """Records have ages; maintenance removes rows by them, and a full refresh may leave out those that are gone."""

    def pipeline(self, *arguments, **limits):
        limits = {"retention_days": DAYS, "allow_refresh_without_expired": True, **limits}
        return super().pipeline(*arguments, **limits)

    def come(self, chance: random.Random) -> None:
        """Some records of any age."""
        begin = len(self.topic.records[LANE])
        games = (*GAMES, NOBODY)
        self.records_come(
            [
                (chance.choice(games), chance.choice("abc"), chance.randrange(25), chance.choice(SCHEMAS))
                for _ in range(chance.randrange(1, 7))
            ]
        )
        for record in self.topic.records[LANE][begin:]:
            record["age"] = chance.choice(AGES)
            record["at"] = datetime.fromtimestamp(time.time(), UTC) - timedelta(days=record["age"])
            record["event_timestamp"] = record["at"]

    def maintain(self) -> None:
        report = RunReport()
        maintain(self.pipeline(), report)
        assert not [entry.error for entry in report.maintenance.values() if entry.error], report.maintenance

    def assert_books_balance(self) -> None:
        found = reconcile(self.pipeline(), None, counted_by_hand)
        assert found.passed, (found.summary(), found.metadata())

    def assert_young_rows_are_there_and_older_ones_gone(self) -> None:
        self.seen.clear()
        records = self.topic.records[LANE]
        pipeline = self.pipeline()
        bronze = [row["_kafka_offset"] for row in self.rows(pipeline.bronze)]
        quarantine = self.rows(pipeline.quarantine)
        assert len(bronze) == len(set(bronze))
        assert {offset for offset, record in enumerate(records) if record["age"] < DAYS["bronze"]} == set(bronze)
        assert all(records[row["_kafka_offset"]]["age"] < DAYS["quarantine"] for row in quarantine)
        kept_out = Counter((row["_kafka_offset"], row["game"]) for row in quarantine if is_kept_out(row, GAMES))
        assert max(kept_out.values(), default=1) == 1
        for game in GAMES:
            silver = [row["_kafka_offset"] for row in self.rows(self.table(game))]
            assert len(silver) == len(set(silver))
            assert all(records[offset]["age"] < DAYS["silver"] for offset in silver)
            mine = {o for o in bronze if records[o]["game_name"] == game and records[o]["n"] != UNLUCKY}
            assert mine == (set(silver) | {o for o, of in kept_out if of == game}) & mine, game
            assert not set(silver) & {o for o, of in kept_out if of == game}


def counted_by_hand(pipeline, handle, decisions, taken, settled, above) -> RowCounts:
    """As Spark's job counts bronze's rows."""
    rejected = decisions.rejected_rows and {
        (row["_kafka_offset"], row["game"])
        for row in read_arrow(decisions.table, decisions.handle).to_pylist()
        if is_kept_out(row, GAMES)
    }
    counts = RowCounts()
    for row in read_arrow(pipeline.bronze, handle).to_pylist():
        if row["_batch"] > above:
            game = row["game_name"] if row["game_name"] in taken else None
            late = game is not None and row["_batch"] > taken[game]
            counts.rows[game] += 1
            counts.pending[game] += late
            counts.held[game] += not late and (row["_kafka_offset"], row["game_name"]) in (rejected or ())
            counts.settled[None if late else game] += row["_batch"] <= settled
    return counts


def step(world: AgedWorld, chance: random.Random) -> None:
    """Something happens."""
    what = chance.randrange(10)
    if what < 3:
        world.come(chance)
    elif what < 5:
        world.work(knows=chance.choice(((1,), SCHEMAS)))
    elif what == 5:
        world.come(chance)
        world.disturbed(chance.choice(BETWEEN), world.maintain)
    elif what == 6:
        world.disturbed(chance.randrange(1, 60), cut, full=chance.choice(("", SILVER)))
    elif what == 7:
        world.strictness = chance.randrange(len(REJECTS))
        with suppress(GameEventsError):
            world.work(full=SILVER)
    elif what == 8:
        steps = iter(range(chance.randrange(1, 12), -1, -1))
        with world.happening(lambda _: None if next(steps, 0) else cut()), suppress(PowerCut):
            world.maintain()
    else:
        world.maintain()


def test_a_full_refresh_of_bronze_that_has_begun_before_rows_went_brings_none_back():
    world = AgedWorld()
    try:
        world.records_come([("uno", "a", 1, 1), ("uno", "a", 3, 1)])
        for record, age in zip(world.topic.records[LANE], (80, 1), strict=True):
            record["at"] = record["event_timestamp"] = datetime.now(UTC) - timedelta(days=age)
        world.work()
        maintained: list[str] = []

        def once(name: str) -> None:
            if name == "reset_staged" and not maintained:
                maintained.append(name)
                with world.happening(None):
                    world.maintain()

        with world.happening(once), pytest.raises(ConflictError, match="Nothing was changed"):
            world.work(full=BRONZE)
        assert maintained == ["reset_staged"]
        assert [row["_kafka_offset"] for row in world.rows(world.pipeline().bronze)] == [1]
        world.assert_books_balance()
    finally:
        world.close()


def cut() -> None:
    """The process is gone."""
    raise PowerCut


@pytest.mark.parametrize(("seed", "layout"), [(2, TABLES), (3, PARTITIONED)])
def test_after_any_history_young_rows_are_there_older_ones_are_gone_and_the_books_balance(seed, layout, monkeypatch):
    monkeypatch.setattr(maintenance, "TABLES_AT_ONCE", 1)
    chance = random.Random(seed)  # noqa: S311 - a test's history
    world = AgedWorld(layout)
    try:
        for _ in range(4):
            for _ in range(7):
                step(world, chance)
            for _ in range(2):  # replayed rows may be old again
                world.work()
                world.maintain()
            world.assert_books_balance()
            world.assert_young_rows_are_there_and_older_ones_gone()
    finally:
        world.close()
