"""Rows of many games -> Parquet files of each game, in one Spark job.

Work is O(rows): no filter per game, no job per game.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from game_events.lakehouse.data.staging import discard, remove_empty_folder
from game_events.pipeline.fanout.worker import FanOut, FanOutResult

#: Rows of one task.
TASK_ROWS = 500_000
#: With more files than this the rows are shuffled by game first: a file costs ~1 ms to write and open, a shuffled row ~2 us.
MAX_FILES_UNSHUFFLED = 512
#: Parts of a game after the shuffle, so that one game with most of the rows does not land in one task.
SALTS = 4


def spread(rows: DataFrame, task: FanOut, row_count: int, games: int, salt: str) -> DataFrame:
    """The rows in as many tasks as their number asks for.

    `row_count` is an estimate for the number of tasks, `games` one for the decision whether to shuffle. `salt`: column by which
    a game's rows are spread over several tasks.
    """
    tasks = max(1, -(-row_count // TASK_ROWS))
    if tasks == 1 or tasks * games <= MAX_FILES_UNSHUFFLED:
        return rows.coalesce(tasks)
    keys = [F.col(task.game_column)]
    if games < tasks * SALTS:
        keys.append(F.pmod(F.hash(salt), F.lit(SALTS)))
    return rows.repartition(tasks, *keys)


def stage(rows: DataFrame, task: FanOut) -> FanOutResult:
    """Run the job: each of the rows' tasks writes files."""
    result = FanOutResult.sum(task.collect(rows))
    if result.crowded:
        _discard(task, result)
        return FanOutResult(crowded=True)
    for game in result.failed:
        # Files of other workers; never committed, removed by maintenance.
        result.files.pop(game, None)
        result.rejected.pop(game, None)
    return result


def _discard(task: FanOut, result: FanOutResult) -> None:
    """Delete all that was staged."""
    for game, files in result.files.items():
        discard(task.table(game), files)
        remove_empty_folder(task.table(game))
    if task.split is not None and task.split.quarantine is not None:
        for files in result.rejected.values():
            discard(task.split.quarantine, files)
