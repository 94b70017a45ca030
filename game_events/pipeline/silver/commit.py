"""Commits of silver's staged rows: rules that fail, then quarantine's rejections, then one commit for each game."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import functions as F

from game_events.lakehouse.commits.commit import Commit
from game_events.lakehouse.commits.group import Committed, commit_games
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, counter, erasures, incarnation, txn, txns
from game_events.lakehouse.data.columns import COORDINATES, QUARANTINE_COLUMNS
from game_events.lakehouse.data.reading import BATCH_INFO, files_with
from game_events.lakehouse.data.spark_files import read_files, read_table, spark_schema
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.tables import Layer, names_of, silver_name, table_id, version_of
from game_events.pipeline.context import Pipeline
from game_events.pipeline.descriptions import message_comment
from game_events.pipeline.fanout.job import FanOutResult
from game_events.pipeline.quality.decisions import Decisions, RejectionDecision, Rewritten, decide
from game_events.pipeline.quality.judging import DISPOSITION, HELD_BACK, READMIT, failed_rules
from game_events.pipeline.quarantine import file_name, marked_files
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import LayerResult, RuleCounts, SilverResult
from game_events.pipeline.silver.stage import SilverInput, Start, rows_from
from game_events.spark.config import null_on_error


def settle(
    source: SilverInput, decisions: Decisions, starts: Mapping[str, Start], result: FanOutResult, report: RunReport
) -> Committed:
    """Commit what was staged for the games of `starts`.

    Quarantine's commit comes first: it decides which rows are rejected, for silver's commits, this run's or a later one's.

    | case | game | its staged files |
    |---|---|---|
    | staging failed, or a rule with the action `fail` is violated | failed | deleted |
    | bronze has other contents since it was read, or a data subject was erased from it | retry | deleted |
    | a concurrent run has decided on the game's rejections, or quarantine is another table | retry | deleted |
    | a data subject was erased from the silver table since bronze was read | retry | deleted |
    | the silver table is not at the batch that was planned from | retry | deleted by the commit |
    | else | committed | in quarantine and silver |
    """
    rules, failed = source.rules.rules, dict[str, str]()
    for game in starts:
        why = result.failed.get(game) or failed_rules(rules, result.counts.get(game))
        if why is not None:
            failed[game] = why
            if game in result.counts:
                report.add_rules(Layer.SILVER, game, rules, result.counts[game])
    ready = {game: start for game, start in starts.items() if game not in failed}
    bronze = source.pipeline.open_bronze()
    current = bronze is not None and BronzeIdentity.of(bronze) == source.bronze and erasures(bronze) == erasures(source.handle)
    retry = decide_rejections(source, decisions, ready, result, report) if current else set(ready)
    for game in {*retry, *failed}:  # `decide` has deleted the rejected rows of the games that it returned
        drop(source.pipeline, result, game, quarantine=game in failed or not current)
    plans = {g: partial(_commit_plan, source, decisions, g, s, result) for g, s in ready.items() if g not in retry}
    committed = commit_games(plans, "game_committed", source.pipeline.settings)
    for game, landed in sorted(committed.landed.items()):
        counts, table = result.counts.get(game), source.pipeline.lakehouse.silver(game)
        source.pipeline.tables.publish(table, landed.handle)
        schema = _columns(source, starts[game], result, game)
        report.add_landed(Layer.SILVER, table, landed, schema, source.batch, game, counts=counts)
        if counts is not None:
            report.add_rules(Layer.SILVER, game, rules, counts)
    committed.again |= retry
    committed.failed |= failed
    return committed


def decide_rejections(
    source: SilverInput, decisions: Decisions, starts: Mapping[str, Start], result: FanOutResult, report: RunReport
) -> set[str]:
    """Commit which rows are rejected, of all games at once; returns the games to retry."""
    pipeline = source.pipeline
    redecided = {game: start for game, start in starts.items() if start.redecide}
    if not (source.rules.has("quarantine") or decisions.in_force or redecided):
        # Decisions of a concurrent run with other rules hold for this run, too.
        return set(starts) if Decisions.read(pipeline, source.bronze.key).in_force else set()
    found = {game: result.counts.get(game, RuleCounts()) for game in starts}
    due = {
        game: RejectionDecision(
            source.batch,
            result.rejected.get(game, []),
            next_incarnation(decisions, game, start) if start.redecide else None,
        )
        for game, start in starts.items()
    }
    # Rows of quarantine that the rules of this run do not hold back are released.
    released = {game: start for game, start in redecided.items() if decisions.rejected_rows[game] > found[game].held}
    rewritten = noted(source, decisions, released) if released else Rewritten()
    landed, moved = decide(pipeline, decisions, due, rewritten)
    if landed is not None:
        reasons = [found[game].reasons for game in due if game not in moved]
        rows = sum(of_game.total() for of_game in reasons)
        report.add(LayerResult(rejected=sum(reasons, Counter[str]())))
        readmitted = sum(found[game].readmitted for game in released)
        report.add(SilverResult(readmitted=readmitted))
        gone = sum(decisions.rejected_rows[game] - found[game].held for game in released) - readmitted
        if gone:
            report.warn(
                f"{gone:,} rejected rows of {pipeline.quarantine.name} are of records that {pipeline.bronze.name} does not "
                f"have, or not of that {pipeline.settings.names.entity}: they are history"
            )
        if rows or rewritten.paths:
            with_rows = replace(landed, rows=rows)
            report.add_landed(Layer.QUARANTINE, pipeline.quarantine, with_rows, QUARANTINE_COLUMNS, source.batch)
    return moved


def noted(source: SilverInput, decisions: Decisions, starts: Mapping[str, Start]) -> Rewritten:
    """Rewrite the files of quarantine with these games' rejected rows; rows that are not held back now are marked as replayed.

    `replayed_batch` is the last bronze batch of the staged rows; `replayed_table`, of rows that pass, the id of the game's
    silver table (its name if there is none yet). Bronze's version and the rules are those of the staged rows, and rules are
    deterministic, so the rows that pass are those in the staged files.
    """
    held, handle, spark = decisions.held_rows(source.pipeline, starts), decisions.handle, source.pipeline.spark
    if held is None or handle is None:
        return Rewritten()
    with null_on_error(spark):
        rows = rows_from(source, read_files(spark, files_with(source.handle), spark_schema(source.handle.schema())), starts)
        rows = rows.join(held, list(COORDINATES), "left_semi")
        judged = source.rules.judged(rows, held).where(F.col(DISPOSITION).isin(HELD_BACK, READMIT))
        judged = judged.select(*COORDINATES, F.col("_game").alias("game"), DISPOSITION)
        tables = {game: table_id(start.handle) or silver_name(game) for game, start in starts.items()}
        of_game = spark.createDataFrame(pa.table({"game": list(tables), "_table": list(tables.values())}))
        judged = judged.join(F.broadcast(of_game), "game")
        rejected = (F.col("layer") == Layer.SILVER) & F.col("replayed_batch").isNull() & F.col("game").isin(*starts)
        touched = read_table(spark, handle).where(rejected).select(file_name())
        leaves = rejected & ~F.col(DISPOSITION).eqNullSafe(HELD_BACK)
        keys, table, batch = [*COORDINATES, "game"], F.col("_table"), source.batch
        marked = partial(marked_files, keys=keys, replayed=leaves, table=table, batch=batch)
        return Rewritten(*marked(source.pipeline, handle, touched, judged))


def _columns(source: SilverInput, start: Start, result: FanOutResult, game: str) -> pa.Schema:
    """Columns of a game's table after its commit: those that every game has, that the game has sent, or that the table has.

    Rows that replace all others bring their own.
    """
    sent, table = result.columns.get(game, frozenset()), start.handle
    kept = names_of(table) if table is not None and not (start.replace and sent) else frozenset()
    return source.columns_with(sent | kept)


def drop(pipeline: Pipeline, result: FanOutResult, game: str, *, quarantine: bool = True) -> None:
    """Delete a game's staged files: of silver, and of quarantine unless they are deleted already."""
    discard(pipeline.lakehouse.silver(game), result.files.pop(game, []))
    rejected = result.rejected.pop(game, [])
    if quarantine:
        discard(pipeline.quarantine, rejected)
    result.counts.pop(game, None)


def _commit_plan(source: SilverInput, decisions: Decisions, game: str, start: Start, result: FanOutResult) -> Commit | None:
    """The commit of one game; None: plan it again."""
    handle = start.handle
    if source.bronze.erased(handle) > erasures(source.handle):
        # The staged rows may be of a data subject who was erased after bronze was read.
        drop(source.pipeline, result, game, quarantine=False)
        return None
    advance = {source.bronze.app: source.batch}
    if start.replace or handle is None:
        advance |= {Txn.INCARNATION: target} if (target := next_incarnation(decisions, game, start)) else {}
    counts = result.counts.get(game, RuleCounts())
    for app, rows in ((Txn.ROWS_DROPPED, counts.dropped), (Txn.ROWS_QUARANTINED, counts.quarantined)):
        if rows or txn(handle, app) is not None:
            advance[app] = rows + (0 if start.replace else counter(handle, app))
    words, table = source.pipeline.settings.names, source.pipeline.lakehouse.silver(game)
    of = f"the {words.entity} {game}: its" if table.part is None else f"all {words.entities}:"
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
        description=f"Events of {of} rows of {source.pipeline.bronze.name}, append-only{message_comment(source.handle)}",
    )


def next_incarnation(decisions: Decisions, game: str, start: Start) -> int:
    """Incarnation of a table after its rows are replaced; the one that quarantine has decided again for, if it has."""
    decided, before = decisions.incarnation(game), incarnation(start.handle)
    return max(before, decided) + 1 if start.redecide else max(before + (start.handle is not None), decided)
