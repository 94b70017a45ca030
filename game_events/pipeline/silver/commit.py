"""Commits of silver's staged rows: rules that fail, then quarantine's rejections, then one commit for each game."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import functions as F

from game_events.lakehouse.commits.commit import Commit
from game_events.lakehouse.commits.group import Committed, commit_games
from game_events.lakehouse.commits.transactions import (
    ROW_COUNTERS,
    BronzeIdentity,
    Txn,
    counter,
    erasures,
    incarnation,
    txn,
    txns,
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
    """
    failed = _failed(source, starts, result, report)
    ready = {game: start for game, start in starts.items() if game not in failed}
    bronze = source.pipeline.open_bronze()
    current = bronze is not None and BronzeIdentity.of(bronze) == source.bronze and erasures(bronze) == erasures(source.handle)
    retry = decide_rejections(source, decisions, ready, result, report) if current else set(ready)
    for game in {*retry, *failed}:  # `decide` has deleted the rejected rows of the games that it returned
        drop(source.pipeline, result, game, quarantine=game in failed or not current)
    plans = {
        game: partial(_commit_plan, source, decisions, game, start, result)
        for game, start in ready.items()
        if game not in retry
    }
    committed = commit_games(plans, "game_committed", source.pipeline.settings)
    _publish(source, starts, result, committed, report)
    committed.again |= retry
    committed.failed |= failed
    return committed


def _publish(
    source: SilverInput, starts: Mapping[str, GameStart], result: FanOutResult, committed: Committed, report: RunReport
) -> None:
    """Publish the versions that the commits made, and report their rows and rules."""
    for game, landed in sorted(committed.landed.items()):
        counts = result.counts.get(game)
        table = source.pipeline.lakehouse.silver(game)
        source.pipeline.tables.publish(table, landed.handle)
        schema = _columns(source, starts[game], result, game)
        report.add_landed(Layer.SILVER, table, landed, schema, source.batch, game, counts=counts)
        if counts is not None:
            report.add_rules(Layer.SILVER, game, source.rules.rules, counts)
            report.add(SilverResult(duplicates=Counter({game: counts.duplicates} if counts.duplicates else {})))


def _failed(source: SilverInput, starts: Mapping[str, GameStart], result: FanOutResult, report: RunReport) -> dict[str, str]:
    """Game -> why nothing of it is committed: its files could not be written, or a rule forbids it."""
    rules = source.rules.rules
    failed: dict[str, str] = {}
    for game in starts:
        why = result.failed.get(game) or failed_rules(rules, result.counts.get(game))
        if why is not None:
            failed[game] = why
            if game in result.counts:
                report.add_rules(Layer.SILVER, game, rules, result.counts[game])
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
    reasons = sum((of_game.reasons for game, of_game in result.counts.items() if game in left), Counter[str]())
    report.add(LayerResult(rejected=reasons))
    if reasons or rewritten.paths:
        with_rows = replace(landed, rows=reasons.total())
        columns = source.pipeline.quarantine_columns(decisions.handle)
        report.add_landed(Layer.QUARANTINE, source.pipeline.quarantine, with_rows, columns, source.batch)
    return moved


def _released(decisions: Decisions, starts: Mapping[str, GameStart], result: FanOutResult) -> Mapping[str, RuleCounts]:
    """Counts of the games with rows in quarantine that the rules of this run do not hold back."""
    counts = {game: result.counts.get(game, RuleCounts()) for game, start in starts.items() if start.judge_again}
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


def _columns(source: SilverInput, start: GameStart, result: FanOutResult, game: str) -> pa.Schema:
    """The columns that all games have, that this one has sent, or that its table has; rows that replace all bring their own."""
    sent = result.columns.get(game, frozenset())
    table = start.handle
    kept = names_of(table) if table is not None and not (start.replace and sent) else frozenset()
    return source.columns_with(sent | kept)


def drop(pipeline: Pipeline, result: FanOutResult, game: str, *, quarantine: bool = True) -> None:
    """Delete a game's staged files: of silver, and of quarantine unless they are deleted already."""
    discard(pipeline.lakehouse.silver(game), result.files.pop(game, []))
    rejected = result.rejected.pop(game, [])
    if quarantine:
        discard(pipeline.quarantine, rejected)
    result.counts.pop(game, None)


def _commit_plan(source: SilverInput, decisions: Decisions, game: str, start: GameStart, result: FanOutResult) -> Commit | None:
    """The commit of one game; None: plan it again."""
    handle = start.handle
    if source.bronze.erased(handle) > erasures(source.handle):
        # The staged rows may be of a person who was erased after bronze was read.
        drop(source.pipeline, result, game, quarantine=False)
        return None
    advance = _advance(source, decisions, game, start, result)
    words = source.pipeline.settings.names
    table = source.pipeline.lakehouse.silver(game)
    whose = f"the {words.entity} {game}: its" if table.part is None else f"all {words.entities}:"
    return Commit(
        table,
        _columns(source, start, result, game),
        result.files.get(game, []),
        # Of `bronze.app` the value in the log, even if it is of other contents of bronze.
        expect_transactions=txns(handle, (source.bronze.app, Txn.INCARNATION, Txn.ERASURES)),
        set_transactions=advance,
        table_id=table_id(handle),
        from_table=handle,
        # If all its rows are replaced, it does not matter whether it was restored.
        from_version=None if start.replace else version_of(handle),
        replace=start.replace and handle is not None,
        # All rows are new: columns may go and types may change.
        reshape=start.replace,
        info={BATCH_INFO: str(source.batch), "run_id": source.pipeline.run_id},
        description=f"Events of {whose} rows of {source.pipeline.bronze.name}, append-only{message_comment(source.handle)}",
    )


def _advance(source: SilverInput, decisions: Decisions, game: str, start: GameStart, result: FanOutResult) -> dict[str, int]:
    handle = start.handle
    advance = {source.bronze.app: source.batch}
    if start.replace or handle is None:
        target = next_incarnation(decisions, game, start)
        if target:
            advance[Txn.INCARNATION] = target
    counts = result.counts.get(game, RuleCounts())
    for app, rows in zip(ROW_COUNTERS, (counts.dropped, counts.quarantined, counts.duplicates), strict=True):
        if rows or txn(handle, app) is not None:
            advance[app] = rows + (0 if start.replace else counter(handle, app))
    return advance


def next_incarnation(decisions: Decisions, game: str, start: GameStart) -> int:
    """Incarnation of a table after its rows are replaced; the one that quarantine has decided again for, if it has."""
    decided = decisions.incarnation(game)
    before = incarnation(start.handle)
    return max(before, decided) + 1 if start.judge_again else max(before + (start.handle is not None), decided)
