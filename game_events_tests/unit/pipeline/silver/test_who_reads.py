"""Whether silver's workers read bronze's files themselves, or Spark does; no job is run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from game_events.lakehouse.commits.transactions import Txn
from game_events.pipeline import fanout
from game_events.pipeline.fanout import is_shuffled, shares_for, tasks_for
from game_events.pipeline.quality import Decisions
from game_events.pipeline.silver import stage as module
from game_events.pipeline.silver.stage import GameStart, SilverInput, Staging
from game_events.rules import Rule
from game_events.workers.fanout import Routing
from game_events.workers.rows import FileRows
from game_events.workers.rules import FILE, ROW
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put


class SparkReadsError(Exception):
    """Spark was asked for the rows."""


def spark_reads(_):
    raise SparkReadsError


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """A bronze of three batches, in one file each, with rows of two games of their own and of one that all have."""
    made = replace(without_spark(tmp_path), get_spark=lambda: None)
    for batch in (1, 2, 3):
        put(made.bronze, {"game_name": [f"a{batch}", f"b{batch}", "uno"], "_batch": [batch] * 3}, {Txn.BATCH: batch})
    monkeypatch.setattr(FileRows, "numbers", lambda *_: None)
    monkeypatch.setattr(module, "write_game_files", lambda _, task: task)
    monkeypatch.setattr(Staging, "rows", spark_reads)
    return made


def staging(pipeline, above=0, rules=(), **options):
    source = SilverInput.of(pipeline, pipeline.bronze.open())
    source.__dict__["rules"] = SimpleNamespace(rules=rules, names=[], has=lambda _: False, out_of_stack=lambda _: [])
    options = {"routing": Routing(), "games": 0, "starts": None} | options
    return Staging(source, above, decisions=Decisions.read(pipeline, source.bronze.key), **options)


def test_workers_read_the_files_with_later_batches_each_once(pipeline, monkeypatch):
    monkeypatch.setattr(fanout, "TASK_ROWS", 2)
    monkeypatch.setattr(fanout, "MIN_ROWS_UNSHUFFLED", 0)
    work = staging(pipeline, above=1)
    tasks = work.stage().source.tasks
    assert len(tasks) == 3, "six rows"
    found = sorted((part.path, part.number, part.of) for parts in tasks for part in parts)
    assert found == sorted((path, number, 2) for path in work.files.paths for number in (0, 1))
    assert len(found) == 4, "the file of the first batch is left out"


@pytest.mark.parametrize(
    "needs_sql",
    [
        {"starts": {"uno": GameStart(None, None, 0)}},
        {"left_out": frozenset({"uno"})},
        {"games": 10**9},
    ],
)
def test_spark_reads_where_its_plan_chooses_changes_or_shuffles_rows(pipeline, monkeypatch, needs_sql):
    for part in (fanout, module):
        monkeypatch.setattr(part, "TASK_ROWS", 2)
    with pytest.raises(SparkReadsError):
        staging(pipeline, **needs_sql).stage()


def test_with_rules_workers_read_the_files_and_get_the_rows_that_violate_rules_unless_these_are_too_many(pipeline, monkeypatch):
    work = staging(pipeline, rules=(Rule(name="r", sql="true"),))
    path = work.files.paths[1]
    asked, answers = [], [pa.table({FILE: [f"{work.files.root}/{path}"], ROW: [3]}), None]
    monkeypatch.setattr(
        module, "find_violations", lambda _spark, split, files, *_: asked.append((split, files)) or answers.pop(0)
    )
    task = work.stage()
    assert list(task.source.violations.files) == [path]
    assert task.source.violations.of_file(path).column(ROW).to_pylist() == [3]
    assert asked == [(task.outcome, work.files)]
    with pytest.raises(SparkReadsError):
        work.stage()


def test_after_a_crash_workers_get_rows_of_the_chosen_games_only_so_spark_reads(pipeline):
    with pytest.raises(SparkReadsError):
        staging(pipeline).stage({"uno"})


def test_of_an_unknown_number_of_games_those_in_a_sample_of_a_large_load_are_counted(pipeline, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "is_shuffled", lambda rows, games, _: asked.append((rows, games)))
    staging(pipeline).stage()
    monkeypatch.setattr(module, "TASK_ROWS", 2)
    staging(pipeline).stage()
    monkeypatch.setattr(module, "SAMPLED_FILES", 1)
    staging(pipeline).stage()
    staging(pipeline, games=5).stage()
    assert asked == [(9, 0), (9, 7), (9, 3), (9, 5)]


@pytest.mark.parametrize(
    ("rows", "games", "shuffled"),
    [
        (500_000, 10_000, False),  # one task
        (2_000_000, 10, False),
        (2_000_000, 1_000, False),
        (2_000_000, 1_001, True),  # fewer than a thousand rows in a file
        (50_000_000, 655, False),
        (50_000_000, 656, True),  # more than 16,384 files
        (10**9, 0, False),
    ],
)
def test_rows_are_shuffled_if_there_would_be_many_files_or_small_ones(rows, games, shuffled):
    assert is_shuffled(rows, games) is shuffled


@pytest.mark.parametrize(
    ("rows", "games", "largest", "shares"),
    [
        (500_000, 1_000, 0.0, 1),  # one task
        (2_000_000, 100, 0.0, 1),  # reading all rows again would cost more than the files
        (2_000_000, 1_000, 0.0, 2),
        (2_000_000, 1_000, 0.13, 1),  # the tasks would not have as much to do
        (2_000_000, 100_000, 0.0, 2),
        (50_000_000, 1_000, 0.0, 1),
        (50_000_000, 5_000, 0.0, 5),
    ],
)
def test_tasks_share_files_where_a_game_would_have_several_small_ones(rows, games, largest, shares):
    assert shares_for(rows, games, largest) == shares


def test_rows_are_not_shuffled_where_a_game_has_one_file_anyway():
    assert is_shuffled(2_000_000, 1_001, 1)
    assert not is_shuffled(2_000_000, 1_001, 2)
    assert is_shuffled(50_000_000, 5_000, 5), "five files for each game"
    assert is_shuffled(2_000_000, 17_000, 2), "too many files for two tasks"


def test_tasks_of_a_group_read_the_same_files_and_groups_read_others(pipeline):
    read = staging(pipeline).file_rows(4, 2)
    assert (read.shares, read.game_column, len(read.tasks)) == (2, "game_name", 2)
    assert len({(part.path, part.number) for parts in read.tasks for part in parts}) == sum(map(len, read.tasks))


@pytest.mark.parametrize(
    ("rows", "games", "tasks"),
    [
        (0, 5, 1),
        (500_000, 1_000, 1),
        (500_001, 10, 2),
        (2_000_000, 10, 4),
        (2_000_000, 100, 2),
        (2_000_000, 0, 4),  # the games are not known
        (2_000_000, 10_000, 2),  # several cores have work
        (50_000_000, 100, 50),
        (50_000_000, 10_000, 25),  # a task has two million rows at most
    ],
)
def test_there_are_fewer_tasks_where_each_would_write_small_files(rows, games, tasks):
    assert tasks_for(rows, games) == tasks
