"""Gold from partial rows: workers merge them with the old rows of each game, by Arrow, and write the new files.

For games whose new silver rows were aggregated when bronze's workers wrote them (`OnePass`): no row of silver is read, and
Spark plans no SQL. The rows are the same as those of `execute`, which does the work in every other case.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.errors import first_line
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.data.worker_job import WorkerJob, task_numbers
from game_events.pipeline.fanout.job import FanOutResult, written_alone
from game_events.pipeline.fanout.old_rows import OldRows
from game_events.pipeline.fanout.one_pass import OnePass
from game_events.pipeline.fanout.partial_rows import COUNT, FIRST, KEY, LAST, merged
from game_events.pipeline.gold import aggregates
from game_events.pipeline.gold.aggregates import commented, has_shipped_columns
from game_events.pipeline.gold.execute import TASK_OLD_ROWS, Staged
from game_events.pipeline.gold.new_rows import GAME
from game_events.pipeline.gold.plan import GamePlan, GoldRun
from game_events.pipeline.quality.judging import RuleColumns
from game_events.sources.core.reading import dealt

log = logging.getLogger(__name__)
#: The partial rows' names of gold's columns beside the key.
MEASURES = {COUNT: aggregates.COUNT, FIRST: aggregates.FIRST, LAST: aggregates.LAST}


@dataclass(frozen=True)
class GoldMerge(WorkerJob[FanOutResult]):
    """Merges partial rows with old ones and writes each game's file; picklable.

    Attributes:
        old: the games' old rows, with gold's columns.
        rows: partial rows of all games, with the names of gold's columns; a key more than once.
        parts: game -> start and length of its partial rows.
        tasks: the games of each task.
    """

    result: ClassVar[type] = FanOutResult
    old: OldRows
    rows: pa.Table
    parts: Mapping[str, tuple[int, int]]
    tasks: Sequence[Sequence[str]]

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FanOutResult:
        """Write the files of the games of these tasks."""
        result = FanOutResult()
        for number in (n for batch in batches for n in batch.column(0).to_pylist()):
            for game in self.tasks[number]:
                written_alone(result, game, self.old.lakehouse.gold(game), partial(self._write, result, game))
        return result

    def _write(self, result: FanOutResult, game: str) -> None:
        lakehouse, schema = self.old.lakehouse, self.old.schema
        new = self.rows.slice(*self.parts[game])
        writer = StagedWriter(lakehouse.gold(game), schema, game, short_lived=True)
        changed = [new]
        if game in self.old.files:
            for rows, found in self.old.matched(game, new.select(self.old.keys)):
                changed.append(rows.filter(found))
                writer.write(rows.filter(pc.invert(found)))
        partial_rows = [rows.rename_columns([KEY, *MEASURES]) for rows in changed]
        writer.write(merged(partial_rows, (KEY,)).rename_columns(schema.names).cast(schema))
        result.files[game] = writer.close()


def taken_partials(run: GoldRun, plans: Mapping[str, GamePlan], one_pass: OnePass | None) -> dict[str, pa.Table]:
    """Game -> partial rows of exactly the rows of silver that its plan reads; without the games that need Spark's aggregate."""
    if one_pass is None or not run.built_in or not has_shipped_columns(run.aggregate):
        return {}
    found = {game: one_pass.take_partial(game, plan.new) for game, plan in plans.items()}
    if RuleColumns.of(run.pipeline.rules, "gold", GAME).rules:
        return {}
    fitting = {game: rows for game, rows in found.items() if rows is not None and _fits(run, plans[game], rows)}
    types = next((rows.schema for rows in fitting.values()), None)
    return {game: rows for game, rows in fitting.items() if rows.schema == types}


def _fits(run: GoldRun, plan: GamePlan, rows: pa.Table) -> bool:
    """Whether silver's and gold's tables have the types of the partial rows."""
    settings, wanted = run.pipeline.settings, _schema(run, rows)
    silver = pa.schema(plan.silver.schema())
    pairs = ((settings.key_column, KEY), (settings.time_column, FIRST))
    if any(name not in silver.names or silver.field(name).type != rows.schema.field(own).type for name, own in pairs):
        return False
    if not plan.old.files:
        return True
    gold = pa.schema(plan.gold.schema()) if plan.gold is not None else wanted
    by = run.pipeline.lakehouse.gold(plan.game).by
    return {f.name: f.type for f in gold if f.name != by} == {f.name: f.type for f in wanted}


def _schema(run: GoldRun, rows: pa.Table) -> pa.Schema:
    """Gold's columns."""
    types = rows.schema
    own = [pa.field(run.pipeline.settings.key_column, types.field(KEY).type)]
    return pa.schema([*own, *(pa.field(name, types.field(part).type) for part, name in MEASURES.items())])


def merge_partials(run: GoldRun, plans: Mapping[str, GamePlan], found: Mapping[str, pa.Table]) -> Staged | None:
    """Write the files of these games, whose partial rows have the same types; None: the job failed, Spark's has to do it."""
    pipeline, lakehouse = run.pipeline, run.pipeline.lakehouse
    schema = _schema(run, next(iter(found.values())))
    start, parts = 0, dict[str, tuple[int, int]]()
    for game, rows in found.items():
        parts[game] = (start, rows.num_rows)
        start += rows.num_rows
    together = pa.concat_tables(found.values()).rename_columns(schema.names).combine_chunks()
    files = {game: plans[game].old.paths for game in found if plans[game].old.files}
    old = OldRows(lakehouse, run.aggregate.name, GAME, run.aggregate.keys, schema, files)
    old_rows = sum(plans[game].old.rows for game in found)
    tasks = 1 + old_rows // TASK_OLD_ROWS
    largest_first = sorted(found, key=lambda game: -plans[game].old.rows)
    job = GoldMerge(old, together, parts, dealt(largest_first, tasks))
    try:
        result = FanOutResult.sum(job.collect(task_numbers(pipeline.spark, len(job.tasks))))
    except (PySparkException, Py4JJavaError) as error:
        log.warning("gold=read_from_silver error=%r", first_line(error))
        return None
    return Staged(found.keys(), result, commented(run.aggregate, schema), RuleColumns.of((), "gold", GAME))
