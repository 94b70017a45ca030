"""Commits of silver's staged rows: rules that fail, then quarantine's rejections, then one commit for each game."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import functions as F

from game_events.lakehouse.commits.commit import Commit, paths
from game_events.lakehouse.commits.generations import BronzeIdentity, erasures, generation
from game_events.lakehouse.commits.parallel import Committed, commit_games
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import BATCH_INFO, files_with, read_files, spark_schema
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.data.table_writer import FileStage
from game_events.lakehouse.event_columns import COORDINATES, HEADERS, QUARANTINE_COLUMNS, travelling
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import silver_name
from game_events.pipeline.column_comments import message_comment
from game_events.pipeline.context import Pipeline
from game_events.pipeline.fanout.job import FanOutResult
from game_events.pipeline.quality.decisions import Decisions, RejectionDecision, Rewritten, decide
from game_events.pipeline.quality.expressions import FATE, HELD_BACK, READMIT
from game_events.pipeline.quality.worker import failed_rules
from game_events.pipeline.reporting.report import RuleCounts, RunReport
from game_events.pipeline.silver.stage import SilverInput, Start, rows_from, with_fate
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
    schema, rules, failed = source.schema, source.rules.rules, dict[str, str]()
    for game in starts:
        why = result.failed.get(game) or failed_rules(rules, result.counts.get(game))
        if why is not None:
            failed[game] = why
            if game in result.counts:
                report.add_rules(Layer.SILVER, game, rules, result.counts[game])
    ready = {game: start for game, start in starts.items() if game not in failed}
    current = _is_current(source)
    retry = _decide(source, decisions, ready, result, report) if current else set(ready)
    for game in {*retry, *failed}:  # `decide` has deleted the rejected rows of the games that it returned
        drop(source.pipeline, result, game, quarantine=game in failed or not current)
    plans = {g: partial(_commit_plan, source, decisions, g, s, result) for g, s in ready.items() if g not in retry}
    committed = commit_games(plans, "game_committed", source.pipeline.settings)
    for game, landed in sorted(committed.landed.items()):
        entry = report.add_landed(Layer.SILVER, source.pipeline.lakehouse.silver(game), landed, schema, source.batch, game)
        if game in result.counts:
            report.add_rules(Layer.SILVER, game, rules, result.counts[game], entry)
    committed.again |= retry
    committed.failed |= failed
    return committed


def _is_current(source: SilverInput) -> bool:
    """Whether bronze has the same contents and erasures as the version that was read."""
    bronze = source.pipeline.bronze.open()
    same = bronze is not None and BronzeIdentity.of(bronze) == source.bronze
    return same and erasures(bronze) == erasures(source.handle)


def _decide(
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
            _next_incarnation(decisions, game, start) if start.redecide else None,
        )
        for game, start in starts.items()
    }
    # Rows of quarantine that the rules of this run do not hold back are released.
    released = {game: start for game, start in redecided.items() if decisions.rejected_rows[game] > found[game].held}
    rewritten = noted(source, decisions, released) if released else Rewritten()
    outcome = decide(pipeline, decisions, due, rewritten)
    if outcome.landed is not None:
        reasons = [found[game].reasons for game in due if game not in outcome.moved]
        rows = sum(of_game.total() for of_game in reasons)
        report.rejected += sum(reasons, Counter[str]())
        readmitted = sum(found[game].readmitted for game in released)
        report.readmitted += readmitted
        gone = sum(decisions.rejected_rows[game] - found[game].held for game in released) - readmitted
        if gone:
            report.notices.append(
                f"{gone:,} rejected rows of {pipeline.quarantine.name} are of records that {pipeline.bronze.name} does not "
                f"have, or not of that {pipeline.settings.names.entity}: they are history"
            )
        if rows or rewritten.paths:
            landed = replace(outcome.landed, rows=rows)
            report.add_landed(Layer.QUARANTINE, pipeline.quarantine, landed, QUARANTINE_COLUMNS, source.batch)
    return set(outcome.moved)


def drop(pipeline: Pipeline, result: FanOutResult, game: str, *, quarantine: bool = True) -> None:
    """Delete a game's staged files: of silver, and of quarantine unless they are deleted already."""
    discard(pipeline.lakehouse.silver(game), result.files.pop(game, []))
    rejected = result.rejected.pop(game, [])
    if quarantine:
        discard(pipeline.quarantine, rejected)
    result.counts.pop(game, None)


def _next_incarnation(decisions: Decisions, game: str, start: Start) -> int:
    """Incarnation of a table after its rows are replaced; the one that quarantine has decided again for, if it has."""
    decided, before = decisions.incarnation(game), generation(start.handle)
    return max(before, decided) + 1 if start.redecide else max(before + (start.handle is not None), decided)


def _commit_plan(source: SilverInput, decisions: Decisions, game: str, start: Start, result: FanOutResult) -> Commit | None:
    """The commit of one game; None: plan it again."""
    handle = start.handle
    if source.bronze.erased(handle) > erasures(source.handle):
        # The staged rows may be of a data subject who was erased after bronze was read.
        drop(source.pipeline, result, game, quarantine=False)
        return None
    advance = {source.bronze.app: source.batch}
    if start.replace or handle is None:
        advance |= {Txn.INCARNATION: target} if (target := _next_incarnation(decisions, game, start)) else {}
    counts = result.counts.get(game, RuleCounts())
    for app, rows in ((Txn.ROWS_DROPPED, counts.dropped), (Txn.ROWS_QUARANTINED, counts.quarantined)):
        before = handle.transaction_version(app) if handle is not None else None
        if rows or before is not None:
            advance[app] = rows + (0 if start.replace else before or 0)
    word = source.pipeline.settings.names.entity
    return Commit(
        source.pipeline.lakehouse.silver(game),
        source.schema,
        result.files.get(game, []),
        # Of `bronze.app` the value in the log, even if it is of other contents of bronze.
        expected={
            app: handle.transaction_version(app) if handle is not None else None
            for app in (source.bronze.app, Txn.INCARNATION, Txn.ERASURES)
        },
        advance=advance,
        table_id=str(handle.metadata().id) if handle is not None else None,
        # If all its rows are replaced, it does not matter whether it was restored.
        seen=handle.version() if handle is not None and not start.replace else None,
        replace=start.replace and handle is not None,
        # All rows are new: columns may go and types may change.
        reshape=start.replace,
        info={BATCH_INFO: str(source.batch), "run_id": source.pipeline.run_id},
        description=f"Events of the {word} {game}: its rows of {source.pipeline.bronze.name}, append-only"
        f"{message_comment(source.handle)}",
    )


def noted(source: SilverInput, decisions: Decisions, starts: Mapping[str, Start]) -> Rewritten:
    """Rewrite the files of quarantine with these games' rejected rows; rows that are not held back now are marked as replayed.

    `replayed_batch` is the last bronze batch of the staged rows; `replayed_table`, of rows that pass, the id of the game's
    silver table (its name if there is none yet). Bronze's version and the rules are those of the staged rows, and rules are
    deterministic, so the rows that pass are those in the staged files.
    """
    held, handle, spark = decisions.held_rows(source.pipeline, starts), decisions.handle, source.pipeline.spark
    if held is None or handle is None:
        return Rewritten()
    columns = spark_schema(handle.schema())
    with null_on_error(spark):
        rows = rows_from(source, read_files(spark, files_with(source.handle), spark_schema(source.handle.schema())), starts)
        rows = rows.join(held, list(COORDINATES), "left_semi")
        judged = with_fate(source, rows, held).where(F.col(FATE).isin(HELD_BACK, READMIT))
        judged = judged.select(*COORDINATES, F.col("_game").alias("game"), FATE)
        tables = {g: str(s.handle.metadata().id) if s.handle else silver_name(g) for g, s in starts.items()}
        of_game = spark.createDataFrame(pa.table({"game": list(tables), "_table": list(tables.values())}))
        judged = judged.join(F.broadcast(of_game), "game")
        rejected = (F.col("layer") == Layer.SILVER) & F.col("replayed_batch").isNull() & F.col("game").isin(*starts)
        touched = read_files(spark, handle.file_uris(), columns).where(rejected)
        names = {r["_file"] for r in touched.select(F.col("_metadata.file_name").alias("_file")).distinct().collect()}
        rewritten = frozenset(path for path in paths(handle) if path.rpartition("/")[2] in names)
        old = read_files(spark, [f"{handle.table_uri.rstrip('/')}/{path}" for path in rewritten], columns)
        new = old.join(judged, [*COORDINATES, "game"], "left")
        leaves = rejected & ~F.col(FATE).eqNullSafe(HELD_BACK)
        now = F.current_timestamp()
        values = {"replayed_table": F.col("_table"), "replayed_batch": F.lit(source.batch), "replayed_at": now}
        new = new.withColumns({n: F.when(leaves, value).otherwise(F.col(n)) for n, value in values.items()})
        stage = FileStage(source.pipeline.quarantine, QUARANTINE_COLUMNS, HEADERS)
        return Rewritten(stage.write(new.select(travelling(QUARANTINE_COLUMNS.names))), rewritten)
