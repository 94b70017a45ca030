"""The hint that saves work: never overwritten by a rival, never the truth."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from deltalake import DeltaTable

from game_events.config.names import PROGRESS
from game_events.errors import ConflictError
from game_events.lakehouse.system_tables import (
    Admission,
    CountedRows,
    GameRows,
    LeftOut,
    Mark,
    Progress,
    ProgressTable,
)
from game_events.lakehouse.tables import Lakehouse, Layer
from game_events_tests.support.tables import committed_files, data_files


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path))


def test_what_was_never_written_is_an_empty_state(lakehouse):
    state = ProgressTable(lakehouse).read("b")
    assert state == Progress("b")
    assert (state.floor(Layer.SILVER), state.failed_in(Layer.SILVER), state.left_out) == (0, set(), LeftOut())


def test_a_state_survives_the_table(lakehouse):
    state = Progress(
        "b",
        floors={Layer.SILVER: 7, Layer.GOLD: 6, Layer.UNIFIED: 5},
        games={"rummy": 7, "uno": 3},
        failed={(Layer.SILVER, "uno"): "disk full", (Layer.GOLD, "rummy"): "no 'quotes'\n"},
        left_out=LeftOut(2, 4, Admission(frozenset({"uno", "rummy"}))),
    ).done("gold:mine", 6)
    state = state.marked("gold:mine", Mark("abc:", 1_700_000_000.123456)).done("gold:mine", 6)
    assert ProgressTable(lakehouse).update("b", lambda _: state) == state
    assert ProgressTable(lakehouse).read("b") == state


def test_a_lost_table_is_an_empty_state_that_can_be_written_again(lakehouse):
    table = ProgressTable(lakehouse)
    table.update("b", lambda now: now.done(Layer.SILVER, 3, {"uno": 3}))
    shutil.rmtree(lakehouse.table(PROGRESS).uri)
    assert table.read("b") == Progress("b")
    table.update("b", lambda now: now.done(Layer.SILVER, 1))
    assert table.read("b").floors == {Layer.SILVER: 1}


def test_another_bronze_table_starts_from_nothing_and_the_old_state_goes(lakehouse):
    table = ProgressTable(lakehouse)
    table.update("old", lambda now: now.done(Layer.SILVER, 9, {"uno": 9}))
    assert table.read("new") == Progress("new")
    table.update("new", lambda now: now.done(Layer.SILVER, 1))
    assert table.read("new").floors == {Layer.SILVER: 1}
    assert table.read("old") == Progress("old")


def test_a_change_that_changes_nothing_commits_nothing(lakehouse):
    table = ProgressTable(lakehouse)
    table.update("b", lambda now: now)
    assert lakehouse.table(PROGRESS).open() is None
    table.update("b", lambda now: now.done(Layer.SILVER, 2))
    table.update("b", lambda now: now.done(Layer.SILVER, 1))
    assert DeltaTable(lakehouse.table(PROGRESS).uri).version() == 0


def test_changes_of_rivals_all_survive(lakehouse):
    tables = [ProgressTable(lakehouse) for _ in range(4)]

    def work(worker):
        for step in range(1, 5):
            tables[worker].update(
                "b", lambda now, step=step: now.done(Layer.SILVER, worker + step, {f"game{worker}_{step}": step})
            )

    with ThreadPoolExecutor(len(tables)) as pool:
        list(pool.map(work, range(len(tables))))
    state = ProgressTable(lakehouse).read("b")
    assert state.games == {f"game{worker}_{step}": step for worker in range(4) for step in range(1, 5)}
    assert state.floor(Layer.SILVER) == 7
    table = lakehouse.table(PROGRESS)
    assert committed_files(table) <= data_files(table)


def test_a_change_is_applied_to_the_newest_state_again_after_a_rival(lakehouse):
    table, seen = ProgressTable(lakehouse), []

    def change(now):
        if not seen:
            ProgressTable(lakehouse).update("b", lambda other: other.done(Layer.SILVER, 5, {"rival": 5}))
        seen.append(now.games)
        return now.done(Layer.SILVER, 3, {"mine": 3})

    after = table.update("b", change)
    assert seen == [{}, {"rival": 5}]
    assert (after.games, after.floors) == ({"rival": 5, "mine": 3}, {Layer.SILVER: 5})
    assert table.read("b") == after


def test_rivals_that_win_every_time_are_a_conflict(lakehouse):
    def overtaken(now):
        ProgressTable(lakehouse).update("b", lambda other: other.done(Layer.GOLD, other.floor(Layer.GOLD) + 1))
        return now.done(Layer.SILVER, 1)

    with pytest.raises(ConflictError):
        ProgressTable(lakehouse).update("b", overtaken)
    assert Layer.SILVER not in ProgressTable(lakehouse).read("b").floors


def test_a_floor_never_falls_and_a_games_batch_neither():
    state = Progress("b", {Layer.SILVER: 5}, {"uno": 5})
    assert state.done(Layer.SILVER, 3, {"uno": 2, "new": 1}) == Progress("b", {Layer.SILVER: 5}, {"uno": 5, "new": 1})
    assert state.done(Layer.SILVER, 8, {"uno": 8}) == Progress("b", {Layer.SILVER: 8}, {"uno": 8})


def test_failures_of_a_layer_are_exactly_the_last_ones_and_other_layers_keep_theirs():
    state = Progress("b", failed={(Layer.SILVER, "a"): "x", (Layer.GOLD, "a"): "y"})
    after = state.done(Layer.SILVER, 1, failed={"c": "z"})
    assert after.failed == {(Layer.SILVER, "c"): "z", (Layer.GOLD, "a"): "y"}
    assert (after.failed_in(Layer.SILVER), after.failed_in(Layer.GOLD)) == ({"c"}, {"a"})
    assert after.done(Layer.GOLD, 1).failed == {(Layer.SILVER, "c"): "z"}
    assert after.floors == {Layer.SILVER: 1}


def test_done_changes_a_copy():
    state = Progress("b", {Layer.SILVER: 1}, {"a": 1}, {(Layer.SILVER, "a"): "x"})
    before = replace(state, floors=dict(state.floors), games=dict(state.games), failed=dict(state.failed))
    state.done(Layer.SILVER, 2, {"a": 2}, {"b": "y"})
    assert state == before


def test_a_floor_of_another_declaration_says_nothing():
    state = Progress("b").marked("gold:mine", Mark("one")).done("gold:mine", 7, failed={"uno": "no column"})
    assert state.marked("gold:mine", Mark("one", 5.0)).floor("gold:mine") == 7
    other = state.marked("gold:mine", Mark("other"))
    assert (other.floor("gold:mine"), other.failed_in("gold:mine")) == (0, set())
    assert other.marked("gold:mine", Mark("one")).floor("gold:mine") == 0


def test_everything_made_from_silver_looks_at_games_whose_silver_was_replaced():
    state = Progress("b", floors={Layer.SILVER: 9, "gold:mine": 9, "gold:no_longer_declared": 3})
    pending = state.pending_downstream(["uno"], "replaced")
    assert {layer for layer, _ in pending.failed} == {Layer.GOLD, Layer.UNIFIED, "gold:mine", "gold:no_longer_declared"}


@pytest.mark.parametrize("before", [{}, {(Layer.GOLD, "uno"): "its silver table was replaced by run 1"}])
def test_a_run_takes_back_no_note_that_a_rival_made_since_it_looked(before):
    seen = Progress("b", floors={Layer.GOLD: 5}, games={"uno": 5}, failed=before)
    now = seen.pending(Layer.GOLD, ["uno"], "its silver table was replaced by run 2")
    assert now.done(Layer.GOLD, 5, seen=seen).failed == now.failed
    # Its own are done; and what it found itself is newer than any note.
    assert seen.done(Layer.GOLD, 5, seen=seen).failed == {}
    assert now.done(Layer.GOLD, 5, failed={"uno": "disk full"}, seen=seen).failed == {(Layer.GOLD, "uno"): "disk full"}


def test_a_run_that_has_read_an_older_generation_of_bronze_writes_nothing(lakehouse):
    table = ProgressTable(lakehouse)
    table.update("b@10", lambda now: now.done(Layer.SILVER, 10, {"uno": 10}, {"chess": "disk full"}))
    before = table.read("b@10")
    assert table.update("b", lambda now: now.done(Layer.SILVER, 9)).floor(Layer.SILVER) == 9
    table.update("b@9", lambda now: now.done(Layer.SILVER, 9))
    assert table.read("b@10") == before
    table.update("b@11", lambda now: now.done(Layer.SILVER, 11))
    assert table.read("b@11").floors == {Layer.SILVER: 11}


def test_counted_rows_are_kept_with_the_rest(lakehouse):
    table = ProgressTable(lakehouse)
    counted = CountedRows(7, {"uno": GameRows(3, 1, 1), None: GameRows(2)})
    table.update("b", lambda now: replace(now, counted=counted))
    table.update("b", lambda now: now.done(Layer.SILVER, 8, games={"uno": 8}))
    assert table.read("b").counted == counted
    assert table.read("c").counted == CountedRows()


A, AB, BC = (Admission(frozenset(names)) for names in ("a", "ab", "bc"))
FEW, MORE = Admission(max_games=2, most_games=3, min_rows=10), Admission(max_games=2, most_games=3, min_rows=9)


@pytest.mark.parametrize(
    ("left_out_by", "now", "covered"),
    [
        (AB, A, True),
        (A, AB, False),
        (AB, BC, False),
        (FEW, FEW, True),
        (FEW, MORE, False),
        (MORE, FEW, True),
        (AB, FEW, False),  # without a list others come in
        (FEW, AB, False),  # names of the list may have had no room
        (None, A, False),  # it is not known
    ],
)
def test_names_that_were_left_out_are_searched_if_the_settings_let_in_more(left_out_by, now, covered):
    assert LeftOut(1, 4, left_out_by).covers(now) is covered
    assert LeftOut().covers(now)


def test_what_two_runs_have_left_out_is_in_the_batches_of_both_by_what_neither_has_left_out():
    assert LeftOut().and_also(3, 5, AB) == LeftOut(3, 5, AB)
    assert LeftOut(3, 5, AB).and_also(6, 7, BC) == LeftOut(3, 7, Admission(frozenset("b")))
    assert LeftOut(3, 5, AB).and_also(2, 4, A) == LeftOut(2, 5, A)
    assert LeftOut(3, 5, MORE).and_also(6, 6, FEW) == LeftOut(3, 6, FEW)
    for one, other in ((AB, FEW), (A, BC)):
        assert LeftOut(3, 5, one).and_also(6, 6, other) == LeftOut(3, 6, None)
    assert LeftOut(3, 5, None).and_also(6, 6, A) == LeftOut(3, 6, None)


def test_what_was_left_out_is_read_as_it_was_written():
    for by in (A, FEW, None):
        assert LeftOut.of(4, LeftOut(2, 4, by).detail()) == LeftOut(2, 4, by)
