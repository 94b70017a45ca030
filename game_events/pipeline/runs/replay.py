"""Rows that rules keep out of silver, judged again by the rules in force; and the replay of quarantine as a whole.

Guarantee: each affected game's silver table is made anew from bronze in one commit, after one commit of quarantine that
decides it: rows that pass now say so, rows that are rejected now are added, rows that stay are not touched. A crash between the
two is finished by the next run. Gold follows by itself.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from game_events.lakehouse.commits.generations import BronzeIdentity
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.data.snapshot import read_files, spark_schema
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing.replay import Replayed, Selection, replay
from game_events.pipeline.runs.refresh import refresh_downstream
from game_events.pipeline.silver.commit import DROPPED_APP
from game_events.pipeline.silver.refresh import refresh_silver


def replay_and_refresh(pipeline: Pipeline, report: RunReport, selection: Selection) -> Replayed:
    """Try rows of quarantine again, those that do not decode and those that rules reject; then bring every layer up to date.

    Raises:
        ConflictError: rivals won every attempt.
        TransientError: the registry cannot be asked about a schema that is not archived.
    """
    done = replay(pipeline, report, selection) if selection.undecodable else Replayed()
    games = games_kept_out_of(pipeline, selection.rules) if selection.rejected else frozenset()
    if games:
        refresh_silver(pipeline, report, games, full=True)
    refresh_downstream(pipeline, report)
    return done


def games_kept_out_of(pipeline: Pipeline, rules: frozenset[str]) -> frozenset[str]:
    """Games with rows that these rules (empty: any rule) keep out of silver.

    Of dropped rows only a game's number is known, not the rule: with no rule given, or one for which quarantine holds no row,
    every game that has any is among them.
    """
    bronze = pipeline.bronze.open()
    if bronze is None:
        return frozenset()
    bronze_key = BronzeIdentity.of(bronze).key
    decisions = Decisions.read(pipeline, bronze_key)
    found: dict[str, set[str]] = {}
    if decisions.handle is not None and decisions.rejected_rows:
        rows = read_files(pipeline.spark, decisions.handle.file_uris(), spark_schema(decisions.handle.schema()))
        rows = rows.where((F.col("layer") == "silver") & F.col("replayed_batch").isNull())
        for row in rows.select("reason", "game").distinct().collect():
            found.setdefault(row["reason"], set()).add(row["game"])
    games = {game for reason, of_reason in found.items() if not rules or reason in rules for game in of_reason}
    if not rules or rules - set(found):
        known = pipeline.progress.read(bronze_key).games
        tables = for_games(known, lambda game: pipeline.lakehouse.silver(game).open())
        games |= {game for game, table in tables.items() if table is not None and table.transaction_version(DROPPED_APP)}
    return frozenset(games)
