"""Rows that an earlier check has counted, and later ones, game by game. No Spark."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from game_events.config.settings import load_settings
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.system_tables import CountedRows, GameRows
from game_events.lakehouse.tables import table_id
from game_events.pipeline.checks.reconcile import FEW_FILES, added, count_later
from game_events.pipeline.context import Pipeline
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


def test_settled_rows_that_a_games_table_lacks_as_the_settings_leave_it_out_belong_to_no_game():
    found = added(BEFORE, {("uno", 6): 4, ("uno", 7): 2}, {"uno"}, {"uno": 5}, 6, {})
    assert (found.rows["uno"], found.pending["uno"]) == (16, 6)
    assert found.settled == {"uno": 10, None: 3 + 7 + 4}


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


def test_rows_of_no_batch_which_another_writer_has_added_are_left_out(tmp_path):
    pipeline = without_spark(tmp_path)
    put(pipeline.bronze, {"game_name": ["uno"], "_batch": [2]})
    write_deltalake(
        pipeline.bronze.uri, pa.table({"game_name": ["uno"], "_batch": pa.array([None], pa.int64())}), mode="append"
    )
    assert count_later(pipeline, pipeline.bronze.open(), 1) == {("uno", 2): 1}


class SparkIsAskedError(Exception):
    """A session was asked for."""


def test_many_files_or_a_number_of_rows_that_nothing_says_take_a_spark_job(tmp_path):
    def spark():
        raise SparkIsAskedError

    pipeline = Pipeline(load_settings(lakehouse=str(tmp_path)), spark)
    put(pipeline.bronze, {"game_name": ["uno"], "_batch": [1]})
    for _ in range(FEW_FILES):
        put(pipeline.bronze, {"game_name": ["uno"], "_batch": [2]})
    assert count_later(pipeline, pipeline.bronze.open(), 1) == {("uno", 2): FEW_FILES}
    with pytest.raises(SparkIsAskedError):
        count_later(pipeline, pipeline.bronze.open(), 0)
    rows = pa.table({"game_name": ["uno"], "_batch": [3]})
    files = [replace(file, stats="{}") for file in staged(pipeline.bronze, rows)]
    commit(Commit(pipeline.bronze, rows.schema, files, {}, {}, table_id(pipeline.bronze.open())))
    assert count_later(pipeline, pipeline.bronze.open(), 2) == {("uno", 3): 1}, "the file says what the log does not"
    rows = pa.table({"game_name": ["uno"], "_batch": [4]})
    (lost,) = [replace(file, stats="{}") for file in staged(pipeline.bronze, rows)]
    commit(Commit(pipeline.bronze, rows.schema, [lost], {}, {}, table_id(pipeline.bronze.open())))
    Path(pipeline.bronze.uri, lost.path).unlink()
    with pytest.raises(SparkIsAskedError):  # which names the lost file
        count_later(pipeline, pipeline.bronze.open(), 3)
