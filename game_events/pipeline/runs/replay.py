"""Replay of quarantine: records that did not decode, and rows that rules rejected.

Guarantee: each affected game's silver table is rebuilt from bronze in one commit, after one commit of quarantine with the
decisions: accepted rows are marked, newly rejected rows are added, the others are not changed. A crash between the two is
finished by the next run. Gold follows.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import read_files, spark_schema
from game_events.lakehouse.layers import Layer
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing.replay import Replayed, ReplaySelection, replay
from game_events.pipeline.runs.refresh import refresh_downstream
from game_events.pipeline.silver.refresh import refresh_silver


def replay_and_refresh(pipeline: Pipeline, report: RunReport, selection: ReplaySelection) -> Replayed:
    """Retry rows of quarantine, undecodable and rejected ones, then refresh every layer.

    Raises:
        ConflictError: concurrent writers won every attempt.
        TransientError: the registry is unavailable, and a schema is not archived.
    """
    done = replay(pipeline, report, selection) if selection.undecodable else Replayed()
    games = games_kept_out_of(pipeline, selection.rules) if selection.rejected else frozenset()
    if games:
        refresh_silver(pipeline, report, games, full=True)
    refresh_downstream(pipeline, report)
    return done


def games_kept_out_of(pipeline: Pipeline, rules: frozenset[str]) -> frozenset[str]:
    """Games with rows that these rules (empty: any rule) reject.

    Dropped rows are counted per game, not per rule: without a rule, or with one that has no row in quarantine, every game with
    dropped rows is included.
    """
    bronze = pipeline.bronze.open()
    if bronze is None:
        return frozenset()
    bronze_key = BronzeIdentity.of(bronze).key
    decisions = Decisions.read(pipeline, bronze_key)
    found: dict[str, set[str]] = {}
    if decisions.handle is not None and decisions.rejected_rows:
        rows = read_files(pipeline.spark, decisions.handle.file_uris(), spark_schema(decisions.handle.schema()))
        rows = rows.where((F.col("layer") == Layer.SILVER) & F.col("replayed_batch").isNull())
        for row in rows.select("reason", "game").distinct().collect():
            found.setdefault(row["reason"], set()).add(row["game"])
    games = {game for reason, of_reason in found.items() if not rules or reason in rules for game in of_reason}
    if not rules or rules - set(found):
        known = pipeline.progress.read(bronze_key).games
        tables = for_games(known, lambda game: pipeline.lakehouse.silver(game).open())
        games |= {game for game, table in tables.items() if table is not None and table.transaction_version(Txn.ROWS_DROPPED)}
    return frozenset(games)
