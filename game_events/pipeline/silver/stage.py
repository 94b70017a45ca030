"""The Spark job of silver: bronze's rows -> staged files of each game's silver table and of quarantine, without a commit."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.config.type_names import game_of, type_of
from game_events.errors import (
    ConfigurationError,
    GameEventsError,
    UserCodeError,
    some_columns,
)
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter, incarnation
from game_events.lakehouse.data.columns import BRONZE_ONLY, HEADERS, MESSAGE_TYPE, OWN_COLUMNS, column_map
from game_events.lakehouse.data.reading import FileSelection, parts_of, read_parts, row_count, selection
from game_events.lakehouse.data.spark_files import NO_HEADERS, read_files, spark_schema
from game_events.lakehouse.tables import Layer
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout import TASK_ROWS, is_shuffled, shares_for, spread, tasks_for, write_game_files
from game_events.pipeline.quality import (
    DECIDED,
    MOST_VIOLATIONS,
    Decisions,
    file_column,
    find_violations,
    judge,
    out_of_stack,
    plain_names,
    require_valid,
    violations_of,
    without_duplicates,
)
from game_events.pipeline.silver.duplicates import History, NewKeys, find, keys_of
from game_events.pipeline.silver.duplicates_in_spark import history_rows, sent_twice
from game_events.pipeline.silver.transformations import run_time_failure, transformed
from game_events.sources.source import dealt
from game_events.spark.config import null_on_error
from game_events.spark.connect import is_session_lost
from game_events.spark.failures import WorkerCrashError, bisect, crash, is_crash, named
from game_events.spark.schemas import quoted, united
from game_events.workers.duplicates import Keys
from game_events.workers.fanout import ColumnChoice, FanOut, Routing
from game_events.workers.results import FanOutResult
from game_events.workers.rows import FileRows
from game_events.workers.rules import (
    DISPOSITION,
    FILE,
    KEEP,
    READMIT,
    REJECT,
    ROW,
    RULE_RESULT,
    RuleColumns,
    RuleOutcome,
    Violations,
)


@dataclass(frozen=True)
class SilverInput:
    """The input of silver: a version of bronze, the identity of its contents, and its last batch.

    `base`: bronze's columns that silver has, and that rules are evaluated on.
    """

    pipeline: Pipeline
    handle: DeltaTable
    bronze: BronzeIdentity
    batch: int
    base: pa.Schema

    @classmethod
    def of(cls, pipeline: Pipeline, handle: DeltaTable) -> SilverInput:
        """The input for a version of bronze; ConfigurationError: it has no column that names the game."""
        schema = pa.schema([f for f in pa.schema(handle.schema()) if f.name not in BRONZE_ONLY])
        batch = counter(handle, Txn.BATCH)
        if batch and row_count(handle) and pipeline.settings.entity_column not in schema.names:
            entity = pipeline.settings.entity_column
            noun = pipeline.settings.names.entity
            raise ConfigurationError(
                f"set GAME_EVENTS_ENTITY_COLUMN to the top-level column that names the {noun}: bronze has no column "
                f"{entity!r}. It has {some_columns(schema.names, entity)}"
            )
        return cls(pipeline, handle, BronzeIdentity.of(handle), batch, schema)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of silver: `base`, unless transformations change them, which needs Spark; raises as `transformed`."""
        if not self.pipeline.extensions.transformations:
            return self.base
        nothing = read_files(self.pipeline.spark, [], spark_schema(self.handle.schema())).select(*self.base.names)
        return self.transformed(nothing)[1]

    @cached_property
    def choice(self) -> ColumnChoice | None:
        """The columns that only some games' tables have."""
        settings = self.pipeline.settings
        always = (settings.entity_column, settings.key_column, settings.time_column)
        return ColumnChoice.of(self.schema, column_map(self.handle), always)

    def columns_with(self, sent: frozenset[str]) -> pa.Schema:
        """Columns of the table of a game with these of the optional columns; other names are ignored."""
        if self.choice is None:
            return self.schema
        chosen = sent.intersection(self.choice.together)
        if chosen not in self._chosen:
            self._chosen[chosen] = self.choice.chosen(self.schema, chosen)
        return self._chosen[chosen]

    @cached_property
    def _chosen(self) -> dict[frozenset[str], pa.Schema]:
        return {}

    def transformed(self, rows: DataFrame) -> tuple[DataFrame, pa.Schema]:
        """Rows with the columns of `base`, transformed, and the columns of the result."""
        entity = self.pipeline.settings.entity_column
        return transformed(rows, self.base, entity, self.pipeline.extensions.transformations, self.keys.compared)

    @cached_property
    def deduplication(self) -> tuple[Keys, list[str]]:
        """What tells events from each other, and notices; ConfigurationError: these columns cannot."""
        settings = self.pipeline.settings
        return keys_of(settings, self.pipeline.extensions, self.base) if settings.deduplicate else (Keys(), [])

    @property
    def keys(self) -> Keys:
        """What tells events from each other, if rows may be left out as they were sent twice."""
        return self.deduplication[0]

    @property
    def columns(self) -> StructType:
        """`base` in Spark's types."""
        return StructType([f for f in spark_schema(self.handle.schema()).fields if f.name in self.base.names])

    @cached_property
    def rules(self) -> RuleColumns:
        """The rules for silver; ConfigurationError: one cannot be evaluated on these columns."""
        rules = RuleColumns.of(self.pipeline.rules, "silver", self.pipeline.settings.entity_column)
        if rules.rules:
            require_valid(self.pipeline.spark, rules.rules, self.columns)
        return rules


#: Files of which a part is read to estimate the number of games.
SAMPLED_FILES = 8


@dataclass(frozen=True)
class GameStart:
    """From which bronze batch one game is staged: rows of batches after `read_after`.

    Attributes:
        handle: its silver table.
        last_batch_in_table: of this bronze; None: it has rows of another bronze, or there is no table.
        replace: the staged rows replace those of the table.
        rejections_decided_to: last bronze batch for which quarantine has decided which rows are rejected.
        judge_again: the rules in force decide on all its rows again.
        types: what the tables of its message types are called -> handle, of those that are read or replaced.
        renews_types: the staged rows replace those of these tables, too.
        listed_types: what all tables of its message types are called.
        ahead: those of them that keep rows of later batches than `read_after`, as after a crash -> up to which batch.
        furthest: last bronze batch in any of `types`.
    """

    handle: DeltaTable | None
    last_batch_in_table: int | None
    read_after: int
    replace: bool = False
    rejections_decided_to: int = 0
    judge_again: bool = False
    types: Mapping[str, DeltaTable] = field(default_factory=dict)
    renews_types: bool = False
    listed_types: Collection[str] = ()
    ahead: Mapping[str, int] = field(default_factory=dict)
    furthest: int = 0

    @property
    def incarnation(self) -> int:
        """The highest one of its tables: they differ between the commits of one replacement."""
        return max(map(incarnation, (self.handle, *self.types.values())))

    def continued(self, game: str) -> Mapping[str, DeltaTable]:
        """What the game's tables are called -> handle, of those whose rows stay: the staged ones are added to them."""
        own = {} if self.replace or self.handle is None else {game: self.handle}
        return own if self.renews_types else {**own, **self.types}

    def is_behind(self, batch: int) -> bool:
        """Whether rows up to this batch would replace, or decide again, rows of later ones."""
        return (
            self.furthest > batch
            or (self.replace and (self.last_batch_in_table or 0) > batch)
            or (self.judge_again and self.rejections_decided_to > batch)
        )


@dataclass(frozen=True)
class Staging:
    """One Spark job: rows above a low watermark, or rows of some games, each above its own.

    Attributes:
        low_watermark: a bronze batch; with `starts` the lowest of them.
        games: estimated number of games; 0: unknown.
        starts: game -> its start; None: every game starts there, with nothing decided.
        left_out: without `starts`: games of another pass.
        history: what silver has, if rows may be duplicates.
        new: keys of the rows above the low watermark; None: Spark finds duplicates.
    """

    source: SilverInput
    low_watermark: int
    routing: Routing
    games: int
    starts: Mapping[str, GameStart] | None
    decisions: Decisions
    left_out: frozenset[str] = frozenset()
    history: History = field(default_factory=History)
    new: Sequence[NewKeys] | None = None

    @cached_property
    def files(self) -> FileSelection:
        """Bronze's files with these rows."""
        return selection(self.source.handle, self.low_watermark)

    def rows(self) -> DataFrame:
        """Bronze's rows with the column `DECIDED`."""
        rows = read_files(self.source.pipeline.spark, self.files.files, spark_schema(self.source.handle.schema()))
        if self.source.keys.entries:
            rows = rows.select("*", F.col(file_column(self.files)).alias(FILE), F.col("_metadata.row_index").alias(ROW))
        if self.starts is not None:
            return rows_from(self.source, rows, self.starts)
        rows = rows if self.files.exact else rows.where(F.col("_batch") > self.low_watermark)
        if self.left_out:
            rows = rows.where(~F.coalesce(self._named(self.left_out), F.lit(False)))
        return rows.withColumn(DECIDED, F.lit(0).cast("bigint"))

    def names(self) -> DataFrame:
        """Names of games, valid or not, and their number of rows (`name`, `rows`), without Python workers."""
        entity = F.col(quoted(self.source.pipeline.settings.entity_column))
        return self.rows().groupBy(entity.alias("name")).agg(F.count(F.lit(1)).alias("rows"))

    @cached_property
    def task(self) -> FanOut:
        """The workers' part of the job, without rules."""
        source = self.source
        settings = source.pipeline.settings
        entity = settings.entity_column
        lakehouse = source.pipeline.lakehouse
        task = FanOut(lakehouse, Layer.SILVER, entity, source.schema, self.routing, choice=source.choice)
        if settings.type_tables is None:
            return task
        above = {name: batch for start in (self.starts or {}).values() for name, batch in start.ahead.items()}
        return replace(task, types=settings.type_tables, above=above)

    def stage(self, part: Collection[str] | None = None) -> FanOutResult:
        """Write the rows of all games, or of a part of them, to files by game in one job.

        If SQL neither chooses nor changes rows, workers read bronze's files themselves: in two jobs if there are rules. Else
        Spark reads, judges and transforms the rows, and sends them to the workers.

        Raises:
            WorkerCrashError: a worker's process ended.
            ExtensionError: a transformation failed, or a rule ran out of stack.
            TransientError, ConfigurationError: the object store failed, not this code.
        """
        already_rejected = self._already_rejected()
        outcome = _outcome(self.source, has_held_rows=already_rejected is not None)
        # A part is what is left of a job that crashed: its workers get no row of another game.
        by_workers = part is None and self._is_plain
        games = self.games if part is None else len(part)
        # How many games there are and how uneven, where that decides how the work is divided.
        sample = self._tables_in_sample() if by_workers or not games else Counter[tuple[object, ...]]()
        games = max(games, len(sample)) if self.task.types is not None else games or len(sample)
        task = replace(self.task, outcome=outcome)
        try:
            read = self._read_by_workers(games, sample, outcome) if by_workers else None
            if read is not None:
                return write_game_files(read.numbers(self.source.pipeline.spark), replace(task, source=read))
            return self._sent_by_spark(part, games, already_rejected, task)
        except (PySparkException, Py4JJavaError) as error:
            known = self._explained(error, part)
            if known is None:
                raise
            raise known from error

    def _already_rejected(self) -> DataFrame | None:
        """Rows that quarantine has as rejected, of the games that may have some."""
        starts = (self.starts or {}).items()
        asked = [game for game, start in starts if start.judge_again or start.rejections_decided_to > start.read_after]
        return self.decisions.held_rows(self.source.pipeline, asked) if asked else None

    def _read_by_workers(self, games: int, sample: Counter[tuple[object, ...]], outcome: RuleOutcome | None) -> FileRows | None:
        """The files as workers read them; None: the rows are shuffled, or too many violate rules."""
        by_game = Counter[object]()
        for (game, *_), rows in sample.items():
            by_game[game] += rows
        largest = max(by_game.values(), default=0) / max(1, sample.total())
        shares = shares_for(self.files.rows, games, largest)
        if is_shuffled(self.files.rows, games, shares):
            return None
        read = self.file_rows(tasks_for(self.files.rows, games), shares)
        if outcome is None:
            return read
        source = self.source
        violating = twice = None
        if source.rules.rules:
            violating = find_violations(source.pipeline.spark, outcome, self.files, source.columns, read.above)
            if violating is None:
                return None
        if outcome.deduplicates:
            if violating is not None:
                twice = self._sent_twice_here(violations_of(outcome, self.files, violating, None))
            twice = self._all_duplicates if twice is None else twice
            if twice is None:
                return None
        return replace(read, violations=violations_of(outcome, self.files, violating, twice))

    def _sent_twice_here(self, violations: Violations | None) -> pa.Table | None:
        """`FILE` and `ROW` of the rows that were sent twice, found without Spark's plan; None: it has to look for them."""
        source = self.source
        if self.new is None:
            return None
        pipeline = source.pipeline
        return find(pipeline.get_spark, pipeline.lakehouse, source.keys, source.base, self.new, violations, self.history)

    @cached_property
    def _all_duplicates(self) -> pa.Table | None:
        names = plain_names(self.files)
        if names is not None and self.starts is None and not self.source.rules.rules:
            here = self._sent_twice_here(None)
            if here is not None:
                by_path = pa.array(names).take(pc.index_in(here.column(FILE), pa.array(self.files.paths)))
                return here.set_column(0, FILE, by_path)
        return self._duplicates(None, self._already_rejected())

    def _duplicates(self, part: Collection[str] | None, already_rejected: DataFrame | None) -> pa.Table | None:
        """`FILE` and `ROW` of the rows that were sent twice, by a job of its own; None: more than `MOST_VIOLATIONS` were."""
        with null_on_error(self.source.pipeline.spark) if self.source.rules.rules else nullcontext():
            rows = self._sent_twice(part, already_rejected)
            if self.files.rows > MOST_VIOLATIONS or not self.files.rows_known:
                rows = rows.limit(MOST_VIOLATIONS + 1)  # another stage
            duplicates = rows.toArrow()
        return duplicates if duplicates.num_rows <= MOST_VIOLATIONS else None

    def _sent_twice(self, part: Collection[str] | None, already_rejected: DataFrame | None) -> DataFrame:
        """`FILE` and `ROW` of the rows that were sent twice; rows that rules keep out of silver take no part."""
        source = self.source
        rows = self._without_decided(self.rows() if part is None else self.rows().where(self._named(part)))
        if source.rules.rules or already_rejected is not None:
            rows = judge(source.rules, rows, already_rejected).where(F.col(DISPOSITION).isin(KEEP, READMIT))
        old = history_rows(source.pipeline.spark, source.keys, self.history, source.columns)
        return sent_twice(source.keys, rows, old, self.files.rows)

    def _without_decided(self, rows: DataFrame) -> DataFrame:
        """The rows without those that workers leave out, as a table of their message type is ahead (`FanOut.above`).

        Which of them are in that table is decided, maybe under other rules: those are history, the others are in no table.
        """
        types, above = self.task.types, self.task.above
        if types is None or not above:
            return rows
        full_names = defaultdict[str | None, list[str]](list)
        for full_name in self._message_types:
            full_names[types.name(full_name)].append(full_name)
        decided = [
            (game_of(name), full_name, batch) for name, batch in above.items() for full_name in full_names[type_of(name)]
        ]
        if not decided:
            return rows
        games, named, upto = zip(*decided, strict=True)
        table = pa.table({"_game_ahead": games, "_type_ahead": named, "_ahead": pa.array(upto, pa.int64())})
        ahead = F.broadcast(self.source.pipeline.spark.createDataFrame(table))
        is_game = F.col(quoted(self.source.pipeline.settings.entity_column)) == F.col("_game_ahead")
        is_type = F.col(MESSAGE_TYPE) == F.col("_type_ahead")
        return rows.join(ahead, is_game & is_type & (F.col("_batch") <= F.col("_ahead")), "left_anti")

    @property
    def _message_types(self) -> list[str]:
        """Full names of the message types of the rows."""
        column = pa.schema([OWN_COLUMNS.field(MESSAGE_TYPE)])
        names = set[str | None]()
        for rows in read_parts(self.source.pipeline.bronze, column, self.files.paths):
            names.update(pc.unique(rows.column(MESSAGE_TYPE)).to_pylist())
        return sorted(name for name in names if name is not None)

    def _sent_by_spark(
        self, part: Collection[str] | None, games: int, already_rejected: DataFrame | None, task: FanOut
    ) -> FanOutResult:
        source = self.source
        rows = self.rows() if part is None else self.rows().where(self._named(part))
        sent_twice = None
        if task.outcome is not None and task.outcome.deduplicates:
            places = self._all_duplicates if part is None else self._duplicates(part, already_rejected)
            if places is None:
                sent_twice = self._sent_twice(part, already_rejected)
            else:
                sent_twice = F.broadcast(source.pipeline.spark.createDataFrame(places, f"{FILE} string, {ROW} bigint"))
        rows = _prepared(source, rows, already_rejected, task.outcome, sent_twice)
        with null_on_error(source.pipeline.spark) if source.rules.rules else nullcontext():
            return write_game_files(spread(rows, task, self.files.rows, games, salt="_kafka_offset"), task)

    def _explained(self, error: Exception, part: Collection[str] | None) -> GameEventsError | None:
        """The error to raise for a failed job; None: the same one."""
        pipeline = self.source.pipeline
        if is_crash(error):
            of_games = f" of {named(sorted(part))}" if part is not None else ""
            return crash(error, f" over the rows{of_games} in {self.batches}")
        code = [*map(str, pipeline.extensions.transformations), *out_of_stack(self.source.rules, error)]
        if not code or is_session_lost(error):
            return None
        return run_time_failure("; ".join(code), error, pipeline.lakehouse.root)

    @property
    def _is_plain(self) -> bool:
        """Whether nothing in Spark's SQL chooses or changes the rows; the rules are evaluated before."""
        return self.starts is None and not self.left_out and not self.source.pipeline.extensions.transformations

    def file_rows(self, tasks: int, shares: int = 1) -> FileRows:
        """The rows for workers that read bronze's files themselves, in so many tasks; `shares` of them read the same files."""
        pipeline = self.source.pipeline
        files = self.files
        groups = tasks // shares
        parts = parts_of(files, pipeline.bronze.key, files.rows // groups)
        above = None if files.exact else self.low_watermark
        by = pipeline.settings.entity_column
        return FileRows(pipeline.lakehouse, self.source.base, dealt(parts, groups), above, shares=shares, game_column=by)

    def _tables_in_sample(self) -> Counter[tuple[object, ...]]:
        """Name, and type where types have tables -> rows in the first row group of some files.

        None if there are few rows, which are not divided by it.
        """
        if self.files.rows <= TASK_ROWS:
            return Counter()
        bronze = self.source.pipeline.bronze
        entity = self.source.base.field(self.source.pipeline.settings.entity_column)
        types = self.source.pipeline.settings.type_tables
        wanted = [entity] if types is None else [entity, OWN_COLUMNS.field(MESSAGE_TYPE)]
        step = math.ceil(len(self.files.paths) / SAMPLED_FILES)
        names = Counter[tuple[object, ...]]()
        some = self.files.paths[::step]
        for rows in read_parts(bronze, pa.schema(wanted), some, row_groups=slice(1)):
            counted = rows.group_by(rows.column_names).aggregate([([], "count_all")]).to_pydict()
            *keys, counts = counted.values()
            names.update(dict(zip(zip(*keys, strict=True), counts, strict=True)))
        return names

    @property
    def batches(self) -> str:
        """The batches of the rows, for messages."""
        return f"batches {self.low_watermark + 1} to {self.source.batch} of {self.source.pipeline.bronze.name}"

    def _named(self, games: Collection[str]) -> Column:
        return F.col(quoted(self.source.pipeline.settings.entity_column)).isin(list(games))


def _prepared(
    source: SilverInput,
    rows: DataFrame,
    held_rows: DataFrame | None,
    outcome: RuleOutcome | None,
    sent_twice: DataFrame | None,
) -> DataFrame:
    """The input of the workers.

    Rules are evaluated before user transformations, because a transformation may drop, multiply or reshape rows. Accepted rows
    go through the transformation; the rules' results go to the workers in separate rows (`RULE_RESULT`), which are not written.
    Only rules are analyzed with `null_on_error`: what a transformation gives does not depend on whether there are rules.
    """
    names = source.base.names
    if outcome is None:
        return source.transformed(rows.selectExpr(*map(quoted, names)))[0]
    names = [quoted(name) for name in names]
    with null_on_error(source.pipeline.spark):
        judged = judge(source.rules, rows, held_rows)
    if sent_twice is not None:
        judged = without_duplicates(judged, sent_twice)
    more = _rule_results(outcome)
    if not outcome.apart:
        return judged.selectExpr(*names, *more)
    kept = judged.where(F.col(DISPOSITION).isin(KEEP, READMIT)) if outcome.has_disposition else judged
    entity = quoted(source.pipeline.settings.entity_column)
    own = [name for name in names if name.startswith("`_") or name == entity]
    apart = judged.selectExpr(*own, *more, f"true AS {RULE_RESULT}")
    written = source.transformed(kept.selectExpr(*names))[0].withColumn(RULE_RESULT, F.lit(False))
    return united([written, apart])


def _rule_results(outcome: RuleOutcome) -> list[str]:
    # Raw values, keys and headers only of rows that go to quarantine.
    rejected = f"{DISPOSITION} = {REJECT}"
    sent = {name: f"if({rejected}, {name}, NULL)" for name in BRONZE_ONLY}
    # Never NULL between Spark and workers: see `spark_files.travelling`.
    sent[HEADERS] = f"if({rejected} AND {HEADERS} IS NOT NULL, {HEADERS}, {NO_HEADERS})"
    return [f"{sent.get(name, quoted(name))} AS {quoted(name)}" for name in outcome.columns if name != RULE_RESULT]


def rows_from(source: SilverInput, rows: DataFrame, starts: Mapping[str, GameStart]) -> DataFrame:
    """Bronze's rows of some games, each above its own start, with the column `DECIDED`."""
    bounds = pa.table(
        {
            "_game": pa.array(starts, pa.string()),
            "_from": pa.array((s.read_after for s in starts.values()), pa.int64()),
            DECIDED: pa.array((s.rejections_decided_to for s in starts.values()), pa.int64()),
        }
    )
    limits = F.broadcast(source.pipeline.spark.createDataFrame(bounds))
    return rows.join(limits, F.col(source.pipeline.settings.entity_column) == F.col("_game")).where(
        F.col("_batch") > F.col("_from")
    )


def _outcome(source: SilverInput, *, has_held_rows: bool) -> RuleOutcome | None:
    rules = source.rules
    deduplicates = bool(source.keys.entries)
    if not rules.rules and not has_held_rows and not deduplicates:
        return None
    rejects = rules.has("quarantine")
    return RuleOutcome(
        rules,
        has_disposition=has_held_rows or rejects or rules.has("drop") or deduplicates,
        quarantine=source.pipeline.quarantine if rejects else None,
        run_id=source.pipeline.run_id,
        apart=bool(source.pipeline.extensions.transformations),
        deduplicates=deduplicates,
    )


#: Names that the driver can bisect; with more of them in one pass the run fails, and is tried again.
MAX_NAMES = 100_000


def stage_games(work: Staging) -> FanOutResult:
    """Stage the rows in one job; if a worker crashes or a transformation fails, bisect: single games fail in the result.

    The result is `crowded` if new names have to be counted first.

    Raises:
        WorkerCrashError: a worker crashed, and there are more than `MAX_NAMES` names.
        ExtensionError: a transformation failed in a pass over all games, for each one that was tried.
    """
    if not work.files.files:
        return FanOutResult()
    try:
        return work.stage()
    except (WorkerCrashError, UserCodeError) as error:
        if work.routing.room is not None:
            # Names are counted first, so that each half has room for exactly those that are admitted.
            return FanOutResult(crowded=True)
        return _stage_halves(work, error)


def _stage_halves(work: Staging, first: WorkerCrashError | UserCodeError) -> FanOutResult:
    pipeline = work.source.pipeline
    pipeline.on_progress(f"silver: {first}. It is retried for halves of the {pipeline.settings.names.entities}")
    rows = [(row["name"], int(row["rows"])) for row in work.names().limit(MAX_NAMES + 1).collect()]
    if len(rows) > MAX_NAMES:
        raise first
    result = FanOutResult()
    games = [name for name, count in rows if work.routing.takes(name, count, result.refused)]
    parts, failed = bisect(sorted(games), work.stage, work.batches)
    if isinstance(first, UserCodeError) and not parts and work.starts is None:
        raise first  # before the run's first commit
    for part in parts:
        result.add(part)
    result.failed.update(failed)
    return result
