"""A check of the rows that are new, beside a live writer. The Spark job that counts bronze's rows is replaced."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, types_digest
from game_events.lakehouse.system_tables import Admission, CountedRows, GameRows, LeftOut
from game_events.lakehouse.tables import BRONZE, Layer
from game_events.pipeline.checks.reconcile import RowCounts, add_earlier, reconcile
from game_events_tests.support.altered_tables import without_statistics
from game_events_tests.support.faults import at_opening
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put


class World:
    """Bronze and the silver table of one game, `uno`; the first batch was counted by an earlier check."""

    def __init__(self, folder, **settings):
        self.pipeline, self.counts_of_all = without_spark(folder, **settings), 0
        self.identity = BronzeIdentity.of(self.bronze(1))
        self.silver(1)
        self.pipeline.progress.update(self.identity.key, lambda now: replace(now, counted=CountedRows(1, {"uno": GameRows(1)})))

    def bronze(self, batch, game="uno"):
        return put(self.pipeline.bronze, {"game_name": [game], "_batch": [batch]}, {Txn.BATCH: batch}, {"batch": str(batch)})

    def silver(self, batch):
        rows, info = {"game_name": ["uno"], "_batch": [batch]}, {"bronze_batch": str(batch)}
        put(self.pipeline.lakehouse.silver("uno"), rows, {self.identity.app: batch}, info)
        self.floor(batch, {"uno": batch})

    def floor(self, batch, games):
        self.pipeline.progress.update(self.identity.key, lambda now: now.done(Layer.SILVER, batch, games))

    def reconcile(self, changed=()):
        """A check of what is new since the one before, and of these games' tables."""
        return reconcile(self.pipeline, changed, self._count)

    def left_out(self, batch):
        """A run over everything with an allow list that has not this game."""
        left_out = LeftOut(batch, batch, Admission(frozenset({"rummy"})))
        self.pipeline.progress.update(self.identity.key, lambda now: replace(now.done(Layer.SILVER, batch), left_out=left_out))

    def _count(self, _pipeline, handle, _decisions, taken, settled, above):
        self.counts_of_all += not above
        counts = RowCounts()
        for row in handle.to_pyarrow_table().to_pylist() if above else ():
            if row["_batch"] > above:
                game = row["game_name"] if row["game_name"] in taken else None
                late = game is not None and row["_batch"] > taken[game]
                counts.rows[game] += 1
                counts.pending[game] += late
                counts.settled[None if late else game] += row["_batch"] <= settled
        return counts if above else RowCounts(Counter({None: handle.to_pyarrow_table().num_rows}))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def once_bronze_is_open(happens):
    """It happens between the check's first look at bronze and its look at progress."""
    opened = []

    def followed(usual, table):
        handle = usual(table)
        if table.key == BRONZE and not opened:
            opened.append(table.key)
            happens()
        return handle

    return at_opening(followed)


def another_game(world):
    world.bronze(2, "NO GAME")
    world.floor(2, {})


def same_game(world):
    world.bronze(2)
    world.silver(2)


@pytest.mark.parametrize("written", [another_game, same_game])
def test_a_batch_that_is_written_while_the_check_reads_progress_is_counted_once(world, written):
    with once_bronze_is_open(lambda: written(world)):
        for _ in range(2):
            assert world.reconcile().passed
    assert world.counts_of_all == 0
    assert world.pipeline.progress.read(world.identity.key).counted.batch == 2


def test_a_row_that_is_missing_leads_to_a_count_of_all(world):
    world.bronze(2)
    world.bronze(3)
    world.silver(3)  # with one row
    world.reconcile()
    assert world.counts_of_all == 1


def test_a_bronze_that_is_replaced_during_the_check_is_counted_by_its_own_progress(world):
    def replaced():
        shutil.rmtree(world.pipeline.bronze.uri)
        world.bronze(1)

    with once_bronze_is_open(replaced):
        found = world.reconcile()
    assert (found.passed, found.bronze, found.silver, found.unrouted) == (True, 1, 0, 1)


def test_rows_that_the_settings_leave_out_are_counted_once_and_named_when_they_are_let_in(world):
    world.bronze(2)
    world.left_out(2)
    found = world.reconcile()
    assert (found.passed, found.pending, found.readmitted) == (True, 1, {"uno": 1})
    assert "1 of them were left out by the settings until now, and wait for a run" in found.summary()
    for batch in (3, 4):
        world.bronze(batch)
        world.left_out(batch)
        assert world.reconcile().passed
    assert world.counts_of_all == 0
    world.pipeline = replace(world.pipeline, settings=world.pipeline.settings.model_copy(update={"games": ("rummy",)}))
    found = world.reconcile()
    assert (found.passed, found.readmitted, found.bronze, found.silver) == (True, {}, 4, 1)


def test_a_bronze_without_statistics_is_compared_all_the_same(world):
    world.bronze(2)
    world.silver(2)
    without_statistics(world.pipeline.bronze)
    found = world.reconcile()
    assert (found.passed, found.bronze, found.silver) == (True, 2, 2)
    DeltaTable(world.pipeline.lakehouse.silver("uno").uri).delete("_batch = 2")
    assert not world.reconcile({"uno"}).passed


def test_the_rows_that_an_earlier_check_has_counted_belong_to_their_games_with_a_table():
    counts = RowCounts(Counter({"uno": 6, None: 6}), settled=Counter({"uno": 4}))
    add_earlier(counts, CountedRows(5, {"uno": GameRows(10, 1, 2), "gone": GameRows(7), None: GameRows(3)}), {"uno"})
    assert counts.rows == {"uno": 16, None: 16}
    assert counts.settled == {"uno": 14, None: 10}


def test_a_table_that_has_more_than_progress_says_leads_to_a_count_of_all(world):
    world.bronze(2)
    world.silver(2)
    world.pipeline.progress.update(world.identity.key, lambda now: replace(now, games={"uno": 1}))
    world.reconcile()
    assert world.counts_of_all == 1


def test_a_table_that_is_gone_while_rows_wait_for_it_leads_to_a_count_of_all(world):
    world.bronze(2)
    shutil.rmtree(world.pipeline.lakehouse.silver("uno").uri)
    assert world.reconcile().unrouted == 2
    assert world.counts_of_all == 1


def test_of_a_types_file_that_a_compaction_joined_only_rows_count_that_the_games_own_table_says_are_complete(tmp_path):
    world = World(tmp_path, silver_per="entity_and_type")
    world.bronze(2)
    world.bronze(3)
    # A crash has left the rows of batch 3, and maintenance has joined them with those of batch 2.
    put(world.pipeline.lakehouse.silver("uno:paid"), {"game_name": ["uno"] * 2, "_batch": [2, 3]}, {world.identity.app: 3})
    rows = pa.table({"game_name": pa.array([], pa.string()), "_batch": pa.array([], pa.int64())})
    put(world.pipeline.lakehouse.silver("uno"), rows, {world.identity.app: 2, Txn.TYPES: types_digest(["uno:paid"])})
    world.floor(2, {"uno": 2})
    assert world.reconcile().passed
    assert world.counts_of_all == 0
