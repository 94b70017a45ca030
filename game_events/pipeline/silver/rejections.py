"""Rejections of silver's staged rows: the decision in quarantine, and the release of rows that pass the rules now."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import functions as F

from game_events.lakehouse.commits.incarnations import incarnation
from game_events.lakehouse.data.snapshot import files_with
from game_events.lakehouse.data.spark_files import read_files, read_table, spark_schema
from game_events.lakehouse.event_columns import COORDINATES, QUARANTINE_COLUMNS
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import silver_name, table_id
from game_events.pipeline.fanout.job import FanOutResult
from game_events.pipeline.quality.decisions import Decisions, RejectionDecision, Rewritten, decide
from game_events.pipeline.quality.expressions import DISPOSITION, HELD_BACK, READMIT
from game_events.pipeline.quarantine.replay_marks import file_name, marked_files
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import LayerResult, SilverResult
from game_events.pipeline.reporting.tables import RuleCounts
from game_events.pipeline.silver.stage import SilverInput, Start, rows_from, with_disposition
from game_events.spark.config import null_on_error


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
    outcome = decide(pipeline, decisions, due, rewritten)
    if outcome.landed is not None:
        reasons = [found[game].reasons for game in due if game not in outcome.moved]
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
            landed = replace(outcome.landed, rows=rows)
            report.add_landed(Layer.QUARANTINE, pipeline.quarantine, landed, QUARANTINE_COLUMNS, source.batch)
    return set(outcome.moved)


def next_incarnation(decisions: Decisions, game: str, start: Start) -> int:
    """Incarnation of a table after its rows are replaced; the one that quarantine has decided again for, if it has."""
    decided, before = decisions.incarnation(game), incarnation(start.handle)
    return max(before, decided) + 1 if start.redecide else max(before + (start.handle is not None), decided)


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
        judged = with_disposition(source, rows, held).where(F.col(DISPOSITION).isin(HELD_BACK, READMIT))
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
