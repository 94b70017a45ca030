"""Rows that an earlier check has counted, and later ones, game by game. No Spark."""

from game_events.lakehouse.system_tables.progress import CountedRows, GameRows
from game_events.pipeline.checks.row_counts import added, count_later
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

BEFORE = CountedRows(5, {"uno": GameRows(10, 1, 2), "idle": GameRows(7), None: GameRows(3)})


def test_later_rows_are_added_to_those_that_were_counted():
    later = {("uno", 6): 4, ("uno", 7): 2, (None, 6): 1, ("!", 7): 5}
    found = added(BEFORE, later, {"uno", "idle"}, {"uno": 7}, 7, {"uno": 2, "other": 9})
    assert found.rows == {"uno": 16, "idle": 7, None: 9}
    assert +found.pending == {}
    assert found.settled == {"uno": 16, "idle": 7, None: 9}
    assert found.held == {"uno": 2}


def test_rows_above_a_games_last_batch_are_pending_and_those_above_the_settled_batch_are_counted_again_later():
    found = added(BEFORE, {("uno", 6): 4, ("uno", 7): 2, ("new", 7): 1}, {"uno", "new"}, {"uno": 6, "new": 7}, 6, {})
    assert found.rows["uno"] == 16
    assert +found.pending == {"uno": 2}
    assert (found.settled["uno"], found.settled["new"]) == (14, 0)


def test_rows_of_a_game_without_a_table_belong_to_no_game():
    found = added(BEFORE, {}, {"uno"}, {"uno": 5}, 5, {})
    assert found.rows == {"uno": 10, None: 10}


def test_a_few_rows_are_counted_without_a_spark_job_file_by_file(tmp_path):
    pipeline = without_spark(tmp_path)
    for batches, games in (([1, 2, 2], ["uno", "uno", None]), ([2, 3], ["uno", "!"]), ([1], ["old"])):
        put(pipeline.bronze, {"game_name": games, "_batch": batches})
    found = count_later(pipeline, pipeline.bronze.open(), 1)
    assert found == {("uno", 2): 2, (None, 2): 1, ("!", 3): 1}


def test_rows_of_no_selected_message_type_belong_to_no_game(tmp_path):
    pipeline = without_spark(tmp_path)
    put(pipeline.bronze, {"_batch": [1, 2, 2]})
    assert count_later(pipeline, pipeline.bronze.open(), 1) == {(None, 2): 2}
