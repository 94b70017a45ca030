"""Rules in Spark, which alone evaluates SQL; and quarantine's decisions on which rows silver rejects.

Spark's plan decides whether a row is kept, dropped or rejected, and workers do that (`workers.rules`). For workers that read
bronze's files a job before finds the rows that violate rules: most violate none, so hardly anything goes to Python.

Decisions are committed to quarantine before silver's own commit. Guarantee: of the bronze rows up to the batch that is decided
for a game, silver lacks those that quarantine holds for the game (layer `silver`, no `replayed_batch`), and only those,
whatever rules are in force by now. So neither a crash between the two commits, nor a concurrent run, nor a changed rule puts a
row into both tables or into neither. And the rows that quarantine holds for a decided game are of this bronze, each once:
others are marked as replayed (`silver.commit.noted`).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructType

from game_events.config.names import columns_in, foreign_call, holds_query, reads_clock
from game_events.errors import ConfigurationError, ConflictError, first_line, some_columns
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, Landed, commit, refuse_restored
from game_events.lakehouse.commits.group import for_games
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, txn
from game_events.lakehouse.data.columns import COORDINATES, MESSAGE_TYPE, QUARANTINE_DESCRIPTION
from game_events.lakehouse.data.reading import FileSelection, read_arrow
from game_events.lakehouse.data.spark_files import read_files, read_table
from game_events.lakehouse.data.staging import StagedFile, discard
from game_events.lakehouse.tables import Layer, Table, add_actions, table_id, version_of
from game_events.pipeline.context import Pipeline
from game_events.rules import Action, Rule
from game_events.spark.config import null_on_error
from game_events.spark.schemas import of_types, require_types
from game_events.workers.results import RuleCounts
from game_events.workers.rules import (
    BITS,
    DISPOSITION,
    DROP,
    DUPLICATE,
    DUPLICATE_READMITTED,
    FILE,
    HELD_BACK,
    IS_DUPLICATE,
    KEEP,
    READMIT,
    REJECT,
    ROW,
    RuleColumns,
    RuleOutcome,
    Violations,
    places_schema,
)

log = logging.getLogger(__name__)


def require_valid(spark: SparkSession, rules: Iterable[Rule], columns: StructType) -> None:
    """Analyze each rule against the columns of its layer's rows.

    ConfigurationError: a rule does not parse, names no column of the rows, is no condition, or needs more than one row; or it
    is for message types, and the rows are of none.
    """
    rules = list(rules)
    if not rules:
        return
    require_types(columns.names, (f"rule {rule.layer}.{rule.name}" for rule in rules if rule.types))
    if any(_refused(rule.sql) for rule in rules) or not _sound_together(spark, tuple(rule.sql for rule in rules), columns):
        refuse(problems(spark, rules, columns), columns.names)


def problems(spark: SparkSession, rules: Iterable[Rule], columns: StructType | None) -> dict[str, str]:
    """Rule (as `layer.name`) -> what is wrong with it. Without columns a rule has to parse, no more."""
    by_rule = {f"{rule.layer}.{rule.name}": _refused(rule.sql) or _unsound(spark, rule.sql, columns) for rule in rules}
    return {name: problem for name, problem in by_rule.items() if problem is not None}


def refuse(by_rule: dict[str, str], columns: Sequence[str]) -> None:
    """Raise a ConfigurationError that names every problem, if there is one, and the columns there are."""
    if by_rule:
        lines = [f"rule {name}: {problem}" for name, problem in by_rule.items()]
        have = f". The rows have the columns {some_columns(columns)}" if columns else ""
        raise ConfigurationError(f"change the rule (`rules` in game_events.yaml, GAME_EVENTS_RULES): {'; '.join(lines)}{have}")


def _refused(sql: str) -> str | None:
    """Why a rule is refused that Spark would evaluate; None: it is not."""
    if holds_query(sql):
        return f"{sql!r} holds a query: a rule may read one row and nothing else"
    if (called := foreign_call(sql)) is not None:
        return f"{sql!r} runs other code by {called}: a rule may read one row and nothing else"
    if reads_clock(sql):
        return (
            f"{sql!r} reads the clock: a rule must always give the same result for a row. Compare with "
            "_kafka_timestamp, the record's time"
        )
    return None


@lru_cache(maxsize=16)  # continuous mode asks each second
def _sound_together(spark: SparkSession, conditions: tuple[str, ...], columns: StructType) -> bool:
    """Whether Spark's analysis accepts all conditions at once, in a fraction of the time that each of them takes by itself."""
    with null_on_error(spark), _quiet():
        try:
            empty = spark.createDataFrame([], columns)
            every = [F.expr(sql) for sql in conditions]
            fields = empty.select(*every).schema.fields
            empty.join(spark.range(0).toDF("_other"), reduce(Column.__and__, every), "left_anti").schema  # noqa: B018
        except AnalysisException:
            return False
    return len(fields) == len(conditions) and all(isinstance(field.dataType, BooleanType) for field in fields)


def _unsound(spark: SparkSession, sql: str, columns: StructType | None) -> str | None:
    with null_on_error(spark), _quiet():
        try:
            empty = spark.createDataFrame([], columns or "_no_column int")
            fields = empty.select(F.expr(sql)).schema.fields
        except AnalysisException as error:
            # Without columns nothing resolves; what does not even parse has this class of its own.
            if columns is None and not str(error).lstrip().startswith("[PARSE_"):
                return None
            return f"{sql!r} cannot be evaluated: {_reason(error)}"
        if columns is None:
            return None
        if len(fields) != 1 or not isinstance(fields[0].dataType, BooleanType):
            return f"{sql!r} is no condition: it gives {', '.join(f.dataType.simpleString() for f in fields)}"
        try:
            # A join's condition may hold neither aggregates, windows and generators nor anything that is not deterministic.
            other = spark.createDataFrame([], "_other int")
            empty.join(other, F.expr(sql), "left_anti").schema  # noqa: B018 - asked for, so that it is analyzed
        except AnalysisException as error:
            return (
                f"{sql!r} is not about one row and its values alone (no aggregates, windows, generators, random or "
                f"changing values): {_reason(error)}"
            )
    return None


def _reason(error: AnalysisException) -> str:
    return first_line(error).partition(" SQLSTATE")[0].rstrip(".")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence PySpark, which writes each refused expression to stderr with the JVM's whole stack."""
    # From PySpark: an ordinary logger of that name would turn each of its errors into a TypeError.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = disabled


#: Whether quarantine holds the row as rejected (NULL: it does not), and the batch up to which quarantine has decided.
HELD = "_held"
DECIDED = "_decided"


def holds(sql: str) -> Column:
    """Whether a condition is TRUE; FALSE for NULL and for every error in its evaluation.

    Spark shows its `TryEval` (any exception is NULL) only behind functions of its own: adding the condition as a number of
    days to a date is the cheapest of them.
    """
    computed = F.try_add(F.expr("DATE'1970-01-01'"), F.expr(sql).cast("int"))
    return F.coalesce(computed == F.expr("DATE'1970-01-02'"), F.lit(False))


def failed_rules(rules: tuple[Rule, ...], counts: RuleCounts | None) -> str | None:
    """The violated rules with the action fail, which prevent a game's commit; None if there are none."""
    if counts is None or not counts.examples:
        return None
    broken = [
        f"rule {rule.name} ({rule.sql}) is violated by {counts.violated[rule.name]} of {counts.rows} rows"
        + (f", for example {counts.examples[rule.name]}" if counts.examples[rule.name] else "")
        for rule in rules
        if rule.name in counts.examples
    ]
    return f"{'; '.join(broken)}. Nothing is committed before the rule or its action changes, or the rows do"


def violated(rules: RuleColumns) -> list[Column]:
    """A bigint for each `BITS` rules: the bits of those that the row violates."""
    columns = []
    for name, part in zip(rules.names, rules.parts(), strict=True):
        bits = []
        for bit, rule in enumerate(part):
            broken = ~holds(rule.sql)
            if rule.types:
                broken = of_types(rule.types) & broken
            if rule.games:
                broken = F.col(rules.game_column).isin(*rule.games) & broken
            bits.append(F.when(broken, F.expr(f"{1 << bit}L")).otherwise(F.expr("0L")))
        columns.append(reduce(Column.bitwiseOR, bits).alias(name))
    return columns


def any_of(rules: RuleColumns, action: Action) -> Column:
    """Whether the row violates a rule with this action; needs the columns of `violated`."""
    masks = zip(rules.names, rules.masks(action), strict=True)
    broken = [F.col(name).bitwiseAND(F.lit(mask).cast("bigint")) != 0 for name, mask in masks if mask]
    return reduce(Column.__or__, broken, F.lit(False))


def breaks(rules: RuleColumns, number: int) -> Column:
    """Whether the row violates one rule; needs the columns of `violated`."""
    return F.col(rules.names[number // BITS]).bitwiseAND(F.lit(1 << number % BITS).cast("bigint")) != 0


def judge(rules: RuleColumns, rows: DataFrame, held_rows: DataFrame | None) -> DataFrame:
    """Rows of silver with `DECIDED`, the columns of `violated` and the disposition; `held_rows`: quarantine's rejected rows.

    Up to the batch `DECIDED` a row is rejected if quarantine has it, whatever the rules are now. Later rows are decided by
    the rules; a row that quarantine has already (it is decided again) stays there while the rules keep it out of silver.
    """
    if held_rows is None:
        rows = rows.withColumn(HELD, F.lit(None).cast("boolean"))
    else:
        # By the game, too: since a row was rejected, a redecode may have given it another one.
        held_rows = held_rows.withColumnRenamed("game", rules.game_column).withColumn(HELD, F.lit(True))
        rows = rows.join(held_rows, [*COORDINATES, rules.game_column], "left")
    is_held = F.col(HELD).isNotNull()
    rejected = any_of(rules, "quarantine")
    dropped = any_of(rules, "drop")
    decided = F.col("_batch") <= F.col(DECIDED)
    disposition = (
        F.when(is_held & (decided | rejected | dropped), F.lit(HELD_BACK))
        .when(rejected & ~decided, F.lit(REJECT))
        .when(dropped, F.lit(DROP))
        .when(is_held, F.lit(READMIT))
        .otherwise(F.lit(KEEP))
    )
    return rows.select("*", *violated(rules)).select("*", disposition.cast("int").alias(DISPOSITION))


def without_duplicates(judged: DataFrame, duplicates: DataFrame) -> DataFrame:
    """Rows of `judge` with the disposition of those that were sent twice; `duplicates`: their `FILE` and `ROW`."""
    marked = duplicates.select(FILE, ROW, F.lit(1).alias(IS_DUPLICATE))
    before = F.col(DISPOSITION)
    is_duplicate = F.col(IS_DUPLICATE).isNotNull()
    disposition = (
        F.when(is_duplicate & (before == KEEP), F.lit(DUPLICATE))
        .when(is_duplicate & (before == READMIT), F.lit(DUPLICATE_READMITTED))
        .otherwise(before)
    )
    return judged.join(marked, [FILE, ROW], "left").withColumn(DISPOSITION, disposition)


def out_of_stack(rules: RuleColumns, error: Exception) -> list[str]:
    """The rules, if one of them may have ended a job by an overflow of Java's stack, which `holds` cannot catch."""
    return [f"rule {r.name}" for r in rules.rules] if "java.lang.StackOverflowError" in str(error) else []


#: Violating rows of one pass that go through the driver's memory, 100 bytes each, and to every worker, some bytes each.
MOST_VIOLATIONS = 1_000_000


def find_violations(
    spark: SparkSession, outcome: RuleOutcome, files: FileSelection, columns: StructType, above: int | None
) -> pa.Table | None:
    """Evaluate silver's rules on the rows of bronze's files, in one job; None: more than `MOST_VIOLATIONS` rows violate them.

    Of each of these its file (`FILE`, an address), its place there (`ROW`), and the bits of the rules.

    `above`: only rows of later bronze batches; None: all rows.
    """
    rules = outcome.rules
    needed = {rules.game_column, "_batch"}.union(*(columns_in(rule.sql, columns.names) for rule in rules.rules))
    needed |= {MESSAGE_TYPE} if any(rule.types for rule in rules.rules) else set()
    with null_on_error(spark):
        rows = read_files(spark, files.files, StructType([f for f in columns.fields if f.name in needed]))
        rows = rows if above is None else rows.where(F.col("_batch") > above)
        place = (F.col("_metadata.file_path").alias(FILE), F.col("_metadata.row_index").alias(ROW))
        is_violating = reduce(Column.__or__, (F.col(name) != 0 for name in rules.names))
        rows = rows.select(*place, *violated(rules)).where(is_violating)
        if files.rows > MOST_VIOLATIONS or not files.rows_known:
            rows = rows.limit(MOST_VIOLATIONS + 1)  # another stage
        violating = rows.toArrow()
    return violating if violating.num_rows <= MOST_VIOLATIONS else None


def violations_of(
    outcome: RuleOutcome, files: FileSelection, violating: pa.Table | None, duplicates: pa.Table | None
) -> Violations:
    """For workers that read files: the rows of `find_violations`, and those that were sent twice (`FILE`, `ROW`)."""
    schema = places_schema(outcome)
    with_path = pa.schema([pa.field(FILE, pa.string()), *schema])
    parts = [with_path.empty_table()]
    for rows, is_duplicate in ((violating, 0), (duplicates, 1)):
        if rows is not None and rows.num_rows:
            own = {name: rows.column(name) for name in rows.column_names} | {FILE: _paths(rows.column(FILE), files)}
            other = {name: np.full(rows.num_rows, is_duplicate if name == IS_DUPLICATE else 0) for name in with_path.names}
            parts.append(pa.table({name: own.get(name, other[name]) for name in with_path.names}).cast(with_path))
    places = pa.concat_tables(parts)
    if violating is not None and duplicates is not None:  # a row may be in both
        values = [name for name in schema.names if name != ROW]
        summed = places.group_by([FILE, ROW]).aggregate([(name, "sum") for name in values])
        places = summed.rename_columns([FILE, ROW, *values])
    return Violations(outcome, _by_path(places.select(with_path.names), schema))


def _paths(addresses: pa.ChunkedArray, files: FileSelection) -> pa.Array:
    """The paths, below the table's folder, of files that Spark names by their address, or by their name alone."""
    folder = unquote(files.root).rpartition("/")[2]
    known = set(files.paths)
    by_name = {path.rpartition("/")[2]: path for path in known}
    encoded = addresses.combine_chunks().dictionary_encode()
    paths = list[str]()
    for address in encoded.dictionary.to_pylist():
        text = unquote(address)
        path = text.rpartition(f"/{folder}/")[2] if "/" in text else by_name.get(text, "")
        if path not in known:
            raise AssertionError(f"Spark read {address}, which is none of the files that it was given of {files.root}")
        paths.append(path)
    return pa.array(paths, pa.string()).take(encoded.indices)


#: Names of files that Spark has as the log has them.
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")


def plain_names(files: FileSelection) -> list[str] | None:
    """Name of each file, as Spark's metadata has it; None: names do not tell them apart, or Spark may write them otherwise."""
    names = [path.rpartition("/")[2] for path in files.paths]
    return names if len(set(names)) == len(names) and all(map(_PLAIN.fullmatch, names)) else None


def file_column(files: FileSelection) -> str:
    """The column of Spark's metadata that tells these files from each other, the shortest."""
    return "_metadata.file_path" if plain_names(files) is None else "_metadata.file_name"


def _by_path(places: pa.Table, schema: pa.Schema) -> dict[str, bytes]:
    """As `Violations.files`."""
    names = places.column(FILE).combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy()
    order = np.lexsort((places.column(ROW).to_numpy(), codes))
    rows = places.select(schema.names).cast(schema).take(order)
    ends = np.searchsorted(codes[order], np.arange(len(names.dictionary)), side="right").tolist()
    by_path = dict[str, bytes]()
    for path, begin, end in zip(names.dictionary.to_pylist(), [0, *ends], ends, strict=False):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(rows.slice(begin, end - begin).combine_chunks())
        by_path[path] = bytes(sink.getvalue())
    return by_path


@dataclass(frozen=True)
class Decisions:
    """The decisions on silver's rows in one version of quarantine.

    `handle`: its version; None: there is no table. `bronze_id`: the bronze that batches refer to (`BronzeIdentity.key`).
    """

    table: Table
    handle: DeltaTable | None
    bronze_id: str

    @classmethod
    def read(cls, pipeline: Pipeline, bronze_id: str) -> Decisions:
        """Those in quarantine's latest version; DataError: it was restored, so rows of committed decisions are gone."""
        handle = pipeline.open_quarantine()
        if handle is not None:
            handle = refuse_restored(pipeline.quarantine, handle)
        return cls(pipeline.quarantine, handle, bronze_id)

    @cached_property
    def in_force(self) -> bool:
        """Whether there is any decision on rows of this bronze."""
        return self._value(Txn.DECIDED_BATCH) is not None

    @cached_property
    def redecisions(self) -> int:
        """Number of commits that decided again on all rows of games, each for silver tables that are replaced."""
        return self._value(Txn.DECIDED_INCARNATION) or 0

    def batch(self, game: str) -> int | None:
        """Last bronze batch for which a game's rows are decided; None: there never was a decision."""
        return self._value(Txn.DECIDED_BATCH, game) if self.in_force else None

    def incarnation(self, game: str) -> int:
        """Incarnation of the silver table that a game's rows were decided again for; 0: they never were."""
        return (self._value(Txn.DECIDED_INCARNATION, game) or 0) if self.redecisions else 0

    @cached_property
    def rejected_rows(self) -> Counter[str]:
        """Game -> its rejected rows in quarantine: from the log's statistics, except files of several games, which are read."""
        rejected: Counter[str] = Counter()
        if self.handle is None:
            return rejected
        mixed: list[str] = []
        for file in add_actions(self.handle).to_pylist():
            if file.get("max.layer", Layer.SILVER) == Layer.BRONZE or file.get("null_count.replayed_batch") == 0:
                continue
            game = file.get("min.game")
            whole = file.get("null_count.game") == 0 and file.get("null_count.replayed_batch") == file["num_records"]
            if whole and game is not None and game == file.get("max.game"):
                rejected[game] += int(file["num_records"])
            else:
                mixed.append(file["path"])
        if mixed:
            rejected.update(_rejected_in(self.table, self.handle, mixed))
        return rejected

    def held_rows(self, pipeline: Pipeline, games: Iterable[str]) -> DataFrame | None:
        """Coordinates and game of these games' rejected rows; None: there are none."""
        wanted = sorted(self.rejected_rows.keys() & set(games))
        if self.handle is None or not wanted:
            return None
        rows = read_table(pipeline.spark, self.handle)
        rows = rows.where((F.col("layer") == Layer.SILVER) & F.col("replayed_batch").isNull() & F.col("game").isin(*wanted))
        return rows.select(*COORDINATES, "game").distinct()

    def _value(self, app: Txn, *game: str) -> int | None:
        return txn(self.handle, app.of(self.bronze_id, *game))


@dataclass(frozen=True)
class RejectionDecision:
    """A decision on one game's rows.

    `batch`: rows up to this bronze batch are decided. `files`: staged rows that are rejected now. `incarnation`: if all rows
    are decided again: the incarnation of the silver table that replaces them.
    """

    batch: int
    files: Sequence[StagedFile] = ()
    incarnation: int | None = None


@dataclass(frozen=True)
class Rewritten:
    """Staged files with the rows of quarantine that are marked as replayed, and the paths of the files that they replace."""

    files: Sequence[StagedFile] = ()
    paths: frozenset[str] = frozenset()


def _rejected_in(table: Table, quarantine: DeltaTable, files: list[str]) -> list[str]:
    """The game of each rejected row in some files."""
    rows = read_arrow(table, quarantine, ["layer", "game", "replayed_batch"], files)
    if "game" not in rows.column_names:
        return []
    is_held = pc.and_(pc.equal(rows["layer"], Layer.SILVER), pc.is_null(rows["replayed_batch"]))
    games: list[str] = rows.filter(is_held)["game"].drop_null().to_pylist()
    return games


def decide(
    pipeline: Pipeline, before: Decisions, planned: Mapping[str, RejectionDecision], rewritten: Rewritten = Rewritten()
) -> tuple[Landed | None, set[str]]:
    """Commit the decisions on some games, all at once, planned from the decisions `before`.

    A game without rejected rows is decided, too: a concurrent run with other rules could decide otherwise.

    Returns:
        the commit, if there was one; and the games that a concurrent run has decided on meanwhile, whose files are deleted.

    Raises:
        TransientError: the outcome is not known: silver must not be committed; the next run reads the outcome.
    """
    now = Decisions.read(pipeline, before.bronze_id)
    moved = _decided_meanwhile(before, now, planned)
    if moved and rewritten.paths:  # these files have rows of all games
        moved = set(planned)
        discard(pipeline.quarantine, list(rewritten.files))
    for game in moved:
        discard(pipeline.quarantine, list(planned[game].files))
    left = {game: decision for game, decision in planned.items() if game not in moved}
    due = _to_commit(before, left)
    if not due:
        return None, moved
    try:
        landed = commit(_commit_plan(pipeline, before, now, due, rewritten))
    except ConflictError as error:
        log.info("rejections_conflict=%r planned_again=%d", str(error), len(planned))
        return None, set(planned)
    pipeline.tables.publish(pipeline.quarantine, landed.handle)
    failpoints.reach("rejections_decided")
    return landed, moved


def _to_commit(before: Decisions, planned: Mapping[str, RejectionDecision]) -> dict[str, RejectionDecision]:
    """The planned decisions that change something."""
    return {
        game: decision
        for game, decision in planned.items()
        if decision.files or decision.incarnation is not None or decision.batch > (before.batch(game) or 0)
    }


def _decided_meanwhile(before: Decisions, now: Decisions, games: Iterable[str]) -> set[str]:
    """Games that a concurrent run has decided on between two versions of quarantine; all if it is another table."""
    games = list(games)
    if table_id(now.handle) != table_id(before.handle):
        return set(games)
    same = for_games(games, lambda g: before.batch(g) == now.batch(g) and before.incarnation(g) == now.incarnation(g))
    return {game for game, is_same in same.items() if not is_same}


def _commit_plan(
    pipeline: Pipeline, before: Decisions, now: Decisions, due: Mapping[str, RejectionDecision], rewritten: Rewritten
) -> Commit:
    expected, advance = _transactions(before, now, due)
    files = [file for decision in due.values() for file in decision.files]
    return Commit(
        pipeline.quarantine,
        pipeline.quarantine_columns(before.handle),
        [*files, *rewritten.files],
        expect_transactions=expected,
        set_transactions=advance,
        table_id=table_id(now.handle),
        from_version=version_of(before.handle),
        rewritten=rewritten.paths,
        info={"rejected_rows": str(sum(file.rows for file in files)), "run_id": pipeline.run_id},
        description=QUARANTINE_DESCRIPTION,
    )


def _transactions(
    before: Decisions, now: Decisions, due: Mapping[str, RejectionDecision]
) -> tuple[dict[str, int | None], dict[str, int]]:
    bronze_id = now.bronze_id
    # A full refresh of bronze that has reached quarantine meanwhile: the rows are of a bronze that is gone.
    refreshed = Txn.FULL_REFRESH.of(BronzeIdentity.of_key(bronze_id).table_id)
    expected: dict[str, int | None] = {refreshed: txn(before.handle, refreshed)}
    advance: dict[str, int] = {}
    for game, decision in due.items():
        app = Txn.DECIDED_BATCH.of(bronze_id, game)
        expected[app] = before.batch(game)
        advance[app] = max(decision.batch, expected[app] or 0)
        if decision.incarnation is not None:
            app = Txn.DECIDED_INCARNATION.of(bronze_id, game)
            expected[app] = before.incarnation(game) or None
            advance[app] = decision.incarnation
    if not now.in_force:
        advance[Txn.DECIDED_BATCH.of(bronze_id)] = 1
    if any(decision.incarnation is not None for decision in due.values()):
        app = Txn.DECIDED_INCARNATION.of(bronze_id)
        expected[app] = now.redecisions or None
        advance[app] = now.redecisions + 1
    return expected, advance
