"""From staged rows to silver's commits: rules that fail, then quarantine's decision, then one commit for each game."""

from __future__ import annotations

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
from game_events.lakehouse.data.staging import REPORT_SCHEMA, discard
from game_events.lakehouse.data.table_writer import FileStage, staged_files
from game_events.lakehouse.event_columns import COORDINATES, HEADERS, QUARANTINE_COLUMNS, travelling
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import silver_name
from game_events.pipeline.column_comments import message_comment
from game_events.pipeline.fanout.job import FanOutResult
from game_events.pipeline.quality.decisions import Decisions, Rewritten, Verdict, decide
from game_events.pipeline.quality.expressions import FATE, HELD_BACK, READMIT
from game_events.pipeline.quality.worker import failed_rules
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import LayerResult, SilverResult
from game_events.pipeline.reporting.tables import RuleCounts
from game_events.pipeline.silver.stage import SilverInput, Start, rows_from, with_fate
from game_events.spark.config import null_on_error


def settle(
    source: SilverInput, decisions: Decisions, starts: Mapping[str, Start], result: FanOutResult, report: RunReport
) -> Committed:
    """Decide and commit what was staged for these games.

    Games that are not among `starts` are none of this function's business. A game that fails, or has to be planned again, is
    not committed, and its files are deleted.
    """
    outcome = Committed()
    ready = dict(starts)
    for game in starts:
        why = result.failed.get(game) or failed_rules(source.rules.rules, result.counts.get(game))
        if why is not None:
            outcome.failed[game] = why
            if game in result.counts:
                report.add_rules(Layer.SILVER, game, source.rules.rules, result.counts[game])
    again = _decide(source, decisions, {g: s for g, s in ready.items() if g not in outcome.failed}, result, report)
    for game in {*again, *outcome.failed}:
        del ready[game]
        _discard(source, result, game, quarantine=game in outcome.failed)
    plans = {game: partial(_commit_plan, source, decisions, game, start, result) for game, start in ready.items()}
    committed = commit_games(plans, "game_committed", source.pipeline.settings)
    for game, landed in sorted(committed.landed.items()):
        counts, table = result.counts.get(game), source.pipeline.lakehouse.silver(game)
        report.add_landed(Layer.SILVER, table, landed, source.schema, source.batch, game, counts=counts)
        if counts is not None:
            report.add_rules(Layer.SILVER, game, source.rules.rules, counts)
    committed.again |= again
    committed.failed |= outcome.failed
    return committed


def _decide(
    source: SilverInput, decisions: Decisions, starts: Mapping[str, Start], result: FanOutResult, report: RunReport
) -> set[str]:
    """Commit which rows are rejected; returns the games that have to be planned again."""
    pipeline = source.pipeline
    bronze = pipeline.bronze.open()
    if bronze is None or BronzeIdentity.of(bronze) != source.bronze or erasures(bronze) != erasures(source.handle):
        # Replaced or rebuilt since: whoever reads the new one decides on its rows, under another key. Or a gamer was erased
        # from it since, whose rows these may be.
        for game in starts:
            discard(pipeline.quarantine, result.rejected.get(game, []))
        return set(starts)
    anew = {game for game, start in starts.items() if start.anew}
    if not (source.rules.has("quarantine") or decisions.in_force or anew):
        # A rival whose rules reject rows may have begun since: then its decisions hold for this run too.
        return set(starts) if Decisions.read(pipeline, source.bronze.key).in_force else set()
    generations = {game: _next_generation(decisions, game, starts[game]) for game in anew}
    verdicts = {game: Verdict(source.batch, result.rejected.get(game, []), generations.get(game)) for game in starts}
    # Of what is decided anew, rows that were not held back just now are not kept out of silver any more.
    held = {game: result.counts[game].held if game in result.counts else 0 for game in anew}
    noting = {game: starts[game] for game in anew if decisions.rejected_rows[game] > held[game]}
    rewritten = noted(source, decisions, noting) if noting else Rewritten()
    outcome = decide(pipeline, decisions, verdicts, rewritten)
    if outcome.landed is not None:
        reasons = [result.counts[g].reasons for g in verdicts if g not in outcome.moved and g in result.counts]
        rows = sum(found.total() for found in reasons)
        for found in reasons:
            report.add(LayerResult(rejected=found))
        back = sum(result.counts[game].readmitted for game in noting if game in result.counts)
        gone = sum(decisions.rejected_rows[game] - held[game] for game in noting) - back
        report.add(SilverResult(readmitted=back))
        if gone:
            report.warn(
                f"{gone:,} rejected rows of {pipeline.quarantine.name} are of records that {pipeline.bronze.name} does not "
                f"have, or not of that {pipeline.settings.words.entity}: they are history"
            )
        if rows or rewritten.paths:
            landed = replace(outcome.landed, rows=rows)
            report.add_landed(Layer.QUARANTINE, pipeline.quarantine, landed, QUARANTINE_COLUMNS, source.batch)
    return set(outcome.moved)


def _discard(source: SilverInput, result: FanOutResult, game: str, *, quarantine: bool) -> None:
    """Delete a game's files; those of quarantine are deleted already where a decision did not land."""
    discard(source.pipeline.lakehouse.silver(game), result.files.pop(game, []))
    rejected = result.rejected.pop(game, [])
    if quarantine:
        discard(source.pipeline.quarantine, rejected)


def _next_generation(decisions: Decisions, game: str, start: Start) -> int:
    """Generation of a table that is replaced. One that quarantine has decided on anew gets just that one."""
    decided = decisions.generation(game) or 0
    if start.anew:
        return max(generation(start.handle), decided) + 1
    return max(generation(start.handle) + (start.handle is not None), decided)


def _commit_plan(source: SilverInput, decisions: Decisions, game: str, start: Start, result: FanOutResult) -> Commit | None:
    handle = start.handle
    if source.bronze.erased(handle) > erasures(source.handle):
        # Rows of a gamer who was erased since bronze was read may be among these.
        _discard(source, result, game, quarantine=False)
        return None
    advance = {source.app: source.batch}
    if start.replace or handle is None:
        target = _next_generation(decisions, game, start)
        if target:
            advance[Txn.INCARNATION] = target
    counts = result.counts.get(game, RuleCounts())
    for app, rows in ((Txn.ROWS_DROPPED, counts.dropped), (Txn.ROWS_QUARANTINED, counts.quarantined)):
        before = handle.transaction_version(app) if handle is not None else None
        if rows or before is not None:
            advance[app] = rows + (0 if start.replace else before or 0)
    word = source.pipeline.settings.words.entity
    return Commit(
        source.pipeline.lakehouse.silver(game),
        source.schema,
        result.files.get(game, []),
        expected={
            # As it stands, whatever bronze it is of.
            source.app: handle.transaction_version(source.app) if handle is not None else None,
            Txn.INCARNATION: handle.transaction_version(Txn.INCARNATION) if handle is not None else None,
            Txn.ERASURES: handle.transaction_version(Txn.ERASURES) if handle is not None else None,
        },
        advance=advance,
        table_id=str(handle.metadata().id) if handle is not None else None,
        # A table that is replaced as a whole may have been restored to whatever it was.
        seen=handle.version() if handle is not None and not start.replace else None,
        replace=start.replace and handle is not None,
        # All rows are new, so columns that no transformation gives any more go, and types may be others.
        reshape=start.replace,
        info={BATCH_INFO: str(source.batch), "run_id": source.pipeline.run_id},
        description=f"Events of the {word} {game}: its rows of {source.pipeline.bronze.name}, append-only"
        f"{message_comment(source.handle)}",
    )


def noted(source: SilverInput, decisions: Decisions, starts: Mapping[str, Start]) -> Rewritten:
    """Write the files of quarantine with these games' rejected rows anew: those that are not held back now get a note.

    The note: `replayed_batch` is the bronze batch up to which silver is made, `replayed_table`, of rows that pass, the id of
    the game's silver table (its name if there is no table yet). The rules are those, and the rows of bronze, that silver was
    staged with, and a rule says the same of a row each time, so the rows that pass are those that the staged files hold.
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
        staged = new.select(travelling(QUARANTINE_COLUMNS.names)).mapInArrow(
            FileStage(source.pipeline.quarantine, QUARANTINE_COLUMNS, HEADERS), REPORT_SCHEMA
        )
        return Rewritten(staged_files(staged.collect()), rewritten)
