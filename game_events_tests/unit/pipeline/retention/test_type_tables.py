"""Rows by age where message types have silver tables of their own (`SILVER_PER=entity_and_type`). No service."""

from __future__ import annotations

import pyarrow as pa
import pytest

from game_events.config.type_names import of_type
from game_events.lakehouse.commits.transactions import Txn, types_digest
from game_events.pipeline.gold.plan import GoldRun, plan_games, player_agg
from game_events.pipeline.runs.preflight import rows_by_age
from game_events_tests.unit.pipeline.retention.test_derived_tables import starts
from game_events_tests.unit.pipeline.retention.world import TYPES, World, events

#: What the tables of the types are called.
START, END = (of_type("uno", name) for name in ("start", "end"))


class TypedWorld(World):
    """One game, of which each type has a table of its own; the game's table is empty."""

    def __init__(self, folder: object, retention: dict[str, float]) -> None:
        super().__init__(folder, retention, silver_per="entity_and_type")

    def load_types(self, start: list[float], end: list[float], *, finished: bool = True) -> None:
        """A batch in all layers; not `finished`: the game's own table, and gold, do not have it yet."""
        parts = {
            START: events(start, self.batch + 1, of=TYPES[0]),
            END: events(end, self.batch + 1, of=TYPES[1]),
        }
        self.bronze(*parts.values())
        for name, rows in parts.items():
            self.silver(rows, name, floor=False)
        if finished:
            self.silver(parts[START].slice(0, 0), **{Txn.TYPES: types_digest(parts)})
            self.gold()

    def kept(self) -> list[list[int]]:
        """Ages of the rows of each type."""
        return [self.ages(self.pipeline.lakehouse.silver(name)) for name in (START, END)]


def test_each_types_table_goes_by_the_limit_that_says_most_and_the_books_balance(tmp_path):
    world = TypedWorld(tmp_path, {"silver": 50, f"silver:uno:{TYPES[1]}": 10, f"silver:*:{TYPES[0]}": 20, "bronze": 55})
    world.load_types([60, 15], [60, 15, 5])
    world.load_types([30, 1], [30])
    done = world.maintained()
    assert world.kept() == [[1, 15], [5]]
    names = ("silver_uno__start_events", "silver_uno__end_events")
    assert [done[name].expired_games for name in names] == [{"uno": 2}, {"uno": 3}]
    for changed in (None, ["uno"], []):
        assert world.reconcile(changed).summary() == (
            "bronze 6 + gone by age 2 = silver 3 + unrouted 0 + pending 0 + gone by age 5"
        )
    assert not any(entry.expired for entry in world.maintained().values())


def test_a_type_that_never_goes_keeps_its_rows_where_the_others_go(tmp_path):
    world = TypedWorld(tmp_path, {"silver": 50, f"silver:uno:{TYPES[1]}": 0})
    world.load_types([60], [5_000, 60])
    world.maintained()
    assert world.kept() == [[], [60, 5000]]


def test_rows_of_a_batch_that_the_games_own_table_and_gold_lack_stay(tmp_path):
    world = TypedWorld(tmp_path, {"silver": 50, "bronze": 50})
    world.load_types([60], [70])
    world.load_types([61], [71], finished=False)
    done = world.maintained()
    assert world.kept() == [[61], [71]]
    assert (done["bronze_events"].expired, done["bronze_events"].expired_later) == (2, 2)
    assert sum(entry.expired_later for name, entry in done.items() if name.startswith("silver_")) == 2


def test_full_refreshes_count_what_the_tables_of_all_types_lack(tmp_path):
    world = TypedWorld(tmp_path, {"silver": 50, "bronze": 80})
    world.load_types([60, 1], [90, 70, 2])
    world.maintained()
    run = GoldRun(world.pipeline, player_agg(world.pipeline.settings), world.identity, full=True)
    assert "lacks 3 rows by age" in plan_games(run, ["uno"])[1]["uno"]
    # Bronze lacks one row, which silver lacks, too.
    assert starts(world.pipeline, full=True).replace


def test_a_full_refresh_is_refused_where_the_tables_of_types_have_rows_that_bronze_lacks(tmp_path):
    world = TypedWorld(tmp_path, {"bronze": 80})
    world.load_types([90, 1], [100, 2])
    world.maintained()
    assert "lacks 2 rows by age" in starts(world.pipeline, full=True)


def test_doctor_looks_for_the_oldest_row_in_the_tables_of_types(tmp_path):
    world = TypedWorld(tmp_path, {"silver": 50})
    world.load_types([20], [30, 1])
    assert rows_by_age(world.pipeline) == "silver 50 days (the oldest row 30.0)"


@pytest.mark.parametrize("of", [None, "studio.Other"])
def test_rows_of_a_type_without_a_table_go_by_the_games_limit(of, tmp_path):
    world = TypedWorld(tmp_path, {"silver": 50, f"silver:*:{TYPES[0]}": 0})
    rows = pa.concat_tables([events([60, 1], 1, of=of)])
    world.bronze(rows)
    world.silver(rows)
    world.gold()
    assert world.maintained()["silver_uno_events"].expired == 1
