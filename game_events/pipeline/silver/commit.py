"""Commits of silver's staged rows: rules that fail, then quarantine's rejections, then one commit for each game."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as F

from game_events.config.type_names import game_of, type_of
from game_events.lakehouse.commits.commit import Commit, Landed
from game_events.lakehouse.commits.group import Committed, commit_games
from game_events.lakehouse.commits.transactions import (
    ROW_COUNTERS,
    BronzeIdentity,
    Txn,
    counter,
    erasures,
    expired_rows,
    txn,
    txns,
    types_digest,
)
from game_events.lakehouse.data.columns import COORDINATES
from game_events.lakehouse.data.reading import BATCH_INFO, files_with
from game_events.lakehouse.data.spark_files import read_files, read_table, spark_schema
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.tables import Layer, names_of, silver_name, table_id, version_of
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality import Decisions, RejectionDecision, Rewritten, decide, failed_rules, judge
from game_events.pipeline.quarantine import file_name, marked_files
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import LayerResult, SilverResult
from game_events.pipeline.schemas.catalog import message_comment
from game_events.pipeline.silver.stage import GameStart, SilverInput, rows_from
from game_events.spark.config import null_on_error
from game_events.workers.results import FanOutResult, RuleCounts
from game_events.workers.rules import DISPOSITION, HELD_BACK, READMIT


def settle(
    source: SilverInput, decisions: Decisions, starts: Mapping[str, GameStart], result: FanOutResult, report: RunReport
) -> Committed:
    """Commit what was staged for the games of `starts`.

    Quarantine's commit comes first: it decides which rows are rejected, for silver's commits, this run's or a later one's.

    | case | game | its staged files |
    |---|---|---|
    | staging failed, or a rule with the action `fail` is violated | failed | deleted |
    | bronze has other contents since it was read, or a person was erased from it | retry | deleted |
    | a concurrent run has decided on the game's rejections, or quarantine is another table | retry | deleted |
    | a person was erased from the silver table since bronze was read | retry | deleted |
    | the silver table is not at the batch that was planned from | retry | deleted by the commit |
    | else | committed | in quarantine and silver |

    A game's own table is the last one: the tables of its message types before it are complete up to the batch that it names.
    """
    failed = _failed(source, starts, result, report)
    ready = {game: start for game, start in starts.items() if game not in failed}
    bronze = source.pipeline.open_bronze()
    current = bronze is not None and BronzeIdentity.of(bronze) == source.bronze and erasures(bronze) == erasures(source.handle)
    retry = decide_rejections(source, decisions, ready, result, report) if current else set(ready)
    for game in {*retry, *failed}:  # `decide` has deleted the rejected rows of the games that it returned
        drop(source.pipeline, result, game, quarantine=game in failed or not current)
    due = {game: start for game, start in ready.items() if game not in retry}
    plan = partial(_commit_plan, source, decisions, result)
    of_types = _commit_types(source, due, result, plan)
    plans = {game: partial(plan, game, start) for game, start in due.items() if game not in {*of_types.failed, *of_types.again}}
    committed = commit_games(plans, "game_committed", source.pipeline.settings)
    committed.again |= of_types.again
    committed.failed |= of_types.failed
    _publish(source, starts, result, {**of_types.landed, **committed.landed}, report)
    committed.again |= retry
    committed.failed |= failed
    return committed


def _commit_types(
    source: SilverInput, starts: Mapping[str, GameStart], result: FanOutResult, plan: Callable[[str, GameStart], Commit | None]
) -> Committed:
    """Commit to the tables of message types; `again` and `failed` are games, whose own tables' files are deleted."""
    of_game = {game: sorted({*_with_rows(result, game), *_emptied(start)}) for game, start in starts.items()}
    plans = {name: partial(plan, name, starts[game]) for game, names in of_game.items() for name in names}
    if not plans:
        return Committed()
    committed = commit_games(plans, "silver_type_committed", source.pipeline.settings)
    failed = {game_of(name): why for name, why in committed.failed.items()}
    again = {game_of(name) for name in committed.again} - failed.keys()
    for game in {*again, *failed}:
        # The other tables' files are their commits': of one whose outcome is not known they must stay.
        discard(source.pipeline.lakehouse.silver(game), result.files.pop(game, []))
    return Committed(committed.landed, again, failed)


def _with_rows(result: FanOutResult, game: str) -> list[str]:
    """The tables of message types with rows to commit, or to count."""
    return [name for name in result.types.get(game, ()) if name in result.files or result.counts.get(name, RuleCounts()).rows]


def _emptied(start: GameStart) -> Collection[str]:
    """The tables of message types whose rows are replaced, also by none."""
    return start.types if start.renews_types else ()


def _publish(
    source: SilverInput, starts: Mapping[str, GameStart], result: FanOutResult, landed: Mapping[str, Landed], report: RunReport
) -> None:
    """Publish the versions that the commits made, and report their rows and rules."""
    for name, commit in sorted(landed.items()):
        counts = result.counts.get(name)
        table = source.pipeline.lakehouse.silver(name)
        source.pipeline.tables.publish(table, commit.handle)
        game = game_of(name)
        schema = _columns(source, starts[game], result, name)
        is_new = name != game and name not in starts[game].types
        report.add_landed(Layer.SILVER, table, commit, schema, source.batch, game, new=is_new, counts=counts)
        if counts is not None and counts.duplicates:
            report.add(SilverResult(duplicates=Counter({game: counts.duplicates})))
        rules = result.rules(game) if name == game else None
        if rules is not None:
            report.add_rules(Layer.SILVER, game, source.rules.rules, rules)


def _failed(source: SilverInput, starts: Mapping[str, GameStart], result: FanOutResult, report: RunReport) -> dict[str, str]:
    """Game -> why nothing of it is committed: its files could not be written, or a rule forbids it."""
    rules = source.rules.rules
    failed: dict[str, str] = {}
    for game in starts:
        counts = result.rules(game)
        why = result.failed.get(game) or failed_rules(rules, counts)
        if why is not None:
            failed[game] = why
            if counts is not None:
                report.add_rules(Layer.SILVER, game, rules, counts)
    return failed


def decide_rejections(
    source: SilverInput, decisions: Decisions, starts: Mapping[str, GameStart], result: FanOutResult, report: RunReport
) -> set[str]:
    """Commit which rows are rejected, of all games at once; returns the games to retry."""
    judges_again = any(start.judge_again for start in starts.values())
    if source.rules.has("quarantine") or decisions.in_force or judges_again:
        return _commit_decisions(source, decisions, starts, result, report)
    # This run decides nothing: decisions of a concurrent run with other rules hold for it, too.
    return set(starts) if Decisions.read(source.pipeline, source.bronze.key).in_force else set()


def _commit_decisions(
    source: SilverInput, decisions: Decisions, starts: Mapping[str, GameStart], result: FanOutResult, report: RunReport
) -> set[str]:
    due: dict[str, RejectionDecision] = {}
    for game, start in starts.items():
        target = next_incarnation(decisions, game, start) if start.judge_again else None
        due[game] = RejectionDecision(source.batch, result.rejected.get(game, []), target)
    released = _released(decisions, starts, result)
    rewritten = noted(source, decisions, {game: starts[game] for game in released}) if released else Rewritten()
    landed, moved = decide(source.pipeline, decisions, due, rewritten)
    if landed is None:
        return moved
    _report_released(source, decisions, released, report)
    left = due.keys() - moved
    reasons = sum((counts.reasons for name, counts in result.counts.items() if game_of(name) in left), Counter[str]())
    report.add(LayerResult(rejected=reasons))
    if reasons or rewritten.paths:
        with_rows = replace(landed, rows=reasons.total())
        columns = source.pipeline.quarantine_columns(decisions.handle)
        report.add_landed(Layer.QUARANTINE, source.pipeline.quarantine, with_rows, columns, source.batch)
    return moved


def _released(decisions: Decisions, starts: Mapping[str, GameStart], result: FanOutResult) -> Mapping[str, RuleCounts]:
    """Counts of the games with rows in quarantine that the rules of this run do not hold back."""
    counts = {game: result.rules(game) or RuleCounts() for game, start in starts.items() if start.judge_again}
    return {game: of_game for game, of_game in counts.items() if decisions.rejected_rows[game] > of_game.held}


def _report_released(source: SilverInput, decisions: Decisions, released: Mapping[str, RuleCounts], report: RunReport) -> None:
    pipeline = source.pipeline
    readmitted = sum(counts.readmitted for counts in released.values())
    report.add(SilverResult(readmitted=readmitted))
    accepted = readmitted + sum(counts.duplicates_readmitted for counts in released.values())
    gone = sum(decisions.rejected_rows[game] - counts.held for game, counts in released.items()) - accepted
    if gone:
        report.warn(
            f"{gone:,} rejected rows of {pipeline.quarantine.name} are of records that {pipeline.bronze.name} does not "
            f"have, or not of that {pipeline.settings.names.entity}: they are history"
        )


def noted(source: SilverInput, decisions: Decisions, starts: Mapping[str, GameStart]) -> Rewritten:
    """Rewrite the files of quarantine with these games' rejected rows; rows that are not held back now are marked as replayed.

    `replayed_batch` is the last bronze batch of the staged rows; `replayed_table`, of rows that pass, the id of the game's
    silver table (its name if there is none yet). Bronze's version and the rules are those of the staged rows, and rules are
    deterministic, so the rows that pass are those in the staged files.
    """
    held_rows = decisions.held_rows(source.pipeline, starts)
    handle = decisions.handle
    spark = source.pipeline.spark
    if held_rows is None or handle is None:
        return Rewritten()
    with null_on_error(spark):
        rows = rows_from(source, read_files(spark, files_with(source.handle), spark_schema(source.handle.schema())), starts)
        rows = rows.join(held_rows, list(COORDINATES), "left_semi")
        judged = judge(source.rules, rows, held_rows).where(F.col(DISPOSITION).isin(HELD_BACK, READMIT))
        judged = judged.select(*COORDINATES, F.col("_game").alias("game"), DISPOSITION)
        tables = {game: table_id(start.handle) or silver_name(game) for game, start in starts.items()}
        of_game = spark.createDataFrame(pa.table({"game": list(tables), "_table": list(tables.values())}))
        judged = judged.join(F.broadcast(of_game), "game")
        rejected = (F.col("layer") == Layer.SILVER) & F.col("replayed_batch").isNull() & F.col("game").isin(*starts)
        touched = read_table(spark, handle).where(rejected).select(file_name())
        leaves = rejected & ~F.col(DISPOSITION).eqNullSafe(HELD_BACK)
        return Rewritten(*marked_files(source.pipeline, handle, touched, judged, leaves, source.batch))


def _columns(source: SilverInput, start: GameStart, result: FanOutResult, name: str) -> pa.Schema:
    """The columns that all tables have, that this one was sent, or that it has; rows that replace all bring their own."""
    sent = result.columns.get(name, frozenset())
    table = _table_at(start, name)
    kept = names_of(table) if table is not None and not (_is_replaced(start, name) and sent) else frozenset()
    return source.columns_with(sent | kept)


def _table_at(start: GameStart, name: str) -> DeltaTable | None:
    """The handle on a game's own table, or on that of a message type."""
    return start.handle if type_of(name) is None else start.types.get(name)


def _is_replaced(start: GameStart, name: str) -> bool:
    return start.replace if type_of(name) is None else start.renews_types


def drop(pipeline: Pipeline, result: FanOutResult, game: str, *, quarantine: bool = True) -> None:
    """Delete a game's staged files: of silver, and of quarantine unless they are deleted already."""
    for name in result.tables(game):
        discard(pipeline.lakehouse.silver(name), result.files.pop(name, []))
        result.counts.pop(name, None)
    rejected = result.rejected.pop(game, [])
    if quarantine:
        discard(pipeline.quarantine, rejected)


def _commit_plan(source: SilverInput, decisions: Decisions, result: FanOutResult, name: str, start: GameStart) -> Commit | None:
    """The commit of one table of a game; None: plan it again."""
    game = game_of(name)
    handle = _table_at(start, name)
    if source.bronze.erased(handle) > erasures(source.handle):
        # The staged rows may be of a person who was erased after bronze was read.
        discard(source.pipeline.lakehouse.silver(name), result.files.pop(name, []))
        return None
    replaced = _is_replaced(start, name) and handle is not None
    advance = _advance(source, decisions, name, start, result)
    words = source.pipeline.settings.names
    table = source.pipeline.lakehouse.silver(name)
    whose = f"the {words.entity} {game}: its" if table.part is None else f"all {words.entities}:"
    if (message_type := type_of(name)) is not None:
        whose = f"the {words.entity} {game}, message type {message_type}: its"
    return Commit(
        table,
        _columns(source, start, result, name),
        result.files.get(name, []),
        # Of `bronze.app` the value in the log, even if it is of other contents of bronze.
        expect_transactions=txns(handle, (source.bronze.app, Txn.INCARNATION, Txn.ERASURES)),
        set_transactions=advance,
        table_id=table_id(handle),
        from_table=handle,
        # If all its rows are replaced, it does not matter whether it was restored.
        from_version=None if replaced else version_of(handle),
        replace=replaced,
        # All rows are new: columns may go and types may change.
        reshape=_is_replaced(start, name),
        info={BATCH_INFO: str(source.batch), "run_id": source.pipeline.run_id},
        description=f"Events of {whose} rows of {source.pipeline.bronze.name}, append-only{message_comment(source.handle)}",
    )


def _advance(source: SilverInput, decisions: Decisions, name: str, start: GameStart, result: FanOutResult) -> dict[str, int]:
    game = game_of(name)
    handle = _table_at(start, name)
    replaced = _is_replaced(start, name)
    advance = {source.bronze.app: source.batch}
    # A new table of a message type is of the game's incarnation: all its tables have the same one.
    if replaced or start.renews_types or handle is None:
        target = next_incarnation(decisions, game, start)
        if target:
            advance[Txn.INCARNATION] = target
    counts = result.counts.get(name, RuleCounts())
    for app, rows in zip(ROW_COUNTERS, (counts.dropped, counts.quarantined, counts.duplicates), strict=True):
        if rows or txn(handle, app) is not None:
            advance[app] = rows + (0 if replaced else counter(handle, app))
    if replaced or handle is None:
        advance |= _lacking_by_age(source, decisions, name, handle)
    if name == game and source.pipeline.settings.type_tables is not None:
        # By this a game's own table knows those of its message types.
        digest = types_digest({*start.listed_types, *_with_rows(result, game)})
        advance |= {Txn.TYPES: digest} if digest != counter(start.handle, Txn.TYPES) else {}
    return advance


def _lacking_by_age(source: SilverInput, decisions: Decisions, name: str, handle: DeltaTable | None) -> dict[str, int]:
    """What rows that are all new lack by age: those of bronze of which they are made; a game's own table says it for all."""
    game = game_of(name)
    is_own = name == game
    lacking = {
        Txn.ROWS_EXPIRED: expired_rows(source.handle, game) if is_own else 0,
        Txn.REJECTED_EXPIRED: expired_rows(decisions.handle, game) if is_own else 0,
    }
    return {app: rows for app, rows in lacking.items() if rows or counter(handle, app)}


def next_incarnation(decisions: Decisions, game: str, start: GameStart) -> int:
    """Incarnation of a game's tables after its rows are replaced; the one that quarantine has decided again for, if it has."""
    decided = decisions.incarnation(game)
    before = start.incarnation
    renewed = start.renews_types or (start.replace and start.handle is not None)
    return max(before, decided) + 1 if start.judge_again else max(before + renewed, decided)
