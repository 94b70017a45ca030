"""What rules say of the tables as they are, counted anew: one Spark job for each layer, nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.extending import PLAYER_AGG
from game_events.lakehouse.reading import files_with, path_column, read_files, row_count, spark_schema
from game_events.pipeline.aggregates import player_agg_columns
from game_events.pipeline.bronze import has_decoded_columns
from game_events.pipeline.context import Pipeline
from game_events.pipeline.game_commits import for_games
from game_events.pipeline.gold_rows import game_in_path
from game_events.pipeline.rejections import Decisions
from game_events.pipeline.report import RuleReport
from game_events.pipeline.rule_check import require_valid
from game_events.pipeline.rule_columns import RuleColumns
from game_events.pipeline.silver_commit import DROPPED_APP
from game_events.pipeline.silver_stage import Source
from game_events.pipeline.spark import forgiving
from game_events.rules import Rule

Found = dict[tuple[str, str, str], RuleReport]


def audit_rules(pipeline: Pipeline, rules: Iterable[Rule]) -> Found:
    """Count the rows of every game's table, and those that violate each rule.

    Rows that a rule keeps out of silver are in no table to be counted: for the action quarantine the rows that quarantine holds
    for the rule are added, for drop the game's counter of dropped rows (that of all its rules with this action together).

    Returns:
        (layer, game, rule) -> counts.

    Raises:
        ConfigurationError: a rule cannot be evaluated.
    """
    chosen = list(rules)
    bronze = pipeline.bronze.open()
    if bronze is None or not row_count(bronze) or not has_decoded_columns(bronze):
        return {}
    source = Source.of(pipeline, bronze)
    games = sorted(pipeline.progress.read(source.bronze.key).games)
    found: Found = {}
    silver = [r for r in chosen if r.layer == "silver"]
    if silver:
        tables = _tables(for_games(games, lambda game: pipeline.lakehouse.silver(game).open()))
        rows = read_files(pipeline.spark, _files(tables), source.columns)
        found |= _count(pipeline, silver, rows, source.columns, pipeline.settings.entity_column, tables)
        _add_kept_out(pipeline, silver, found, tables, Decisions.read(pipeline, source.bronze.key))
    gold = [r for r in chosen if r.layer == "gold"]
    if gold:
        tables = _tables(for_games(games, lambda game: pipeline.lakehouse.gold(game).open()))
        columns = player_agg_columns(pipeline.spark, pipeline.settings, source.columns)
        uris = _files(tables)
        game = F.regexp_extract(path_column(uris), game_in_path(pipeline.lakehouse.called, PLAYER_AGG), 1)
        rows = read_files(pipeline.spark, uris, columns).withColumn("_game", game)
        found |= _count(pipeline, gold, rows, columns, "_game", tables)
    return found


def _tables(opened: Mapping[str, DeltaTable | None]) -> dict[str, DeltaTable]:
    return {game: table for game, table in opened.items() if table is not None}


def _files(tables: Mapping[str, DeltaTable]) -> list[str]:
    return [uri for uris in for_games(tables, lambda game: files_with(tables[game])).values() for uri in uris]


def _count(
    pipeline: Pipeline, rules: list[Rule], rows: DataFrame, columns: StructType, game: str, tables: Mapping[str, DeltaTable]
) -> Found:
    judged = RuleColumns.of(rules, rules[0].layer, game)
    require_valid(pipeline.spark, rules, columns)
    found: Found = {
        (r.layer, g, r.name): RuleReport(r.layer, g, r.name, r.action, r.sql) for g in tables for r in rules if r.applies_to(g)
    }
    if not _files(tables):
        return found
    with forgiving(pipeline.spark):
        counts = [F.count(F.when(judged.breaks(n), 1)).alias(f"_rule_{n}") for n in range(len(rules))]
        masks = rows.select(F.col(game).alias("_of"), *judged.violated())
        for row in masks.groupBy("_of").agg(F.count(F.lit(1)).alias("_rows"), *counts).collect():
            for number, rule in enumerate(rules):
                entry = found.get((rule.layer, row["_of"], rule.name))
                if entry is not None:
                    entry.rows, entry.violated = int(row["_rows"]), int(row[f"_rule_{number}"])
    return found


def _add_kept_out(
    pipeline: Pipeline, rules: list[Rule], found: Found, tables: Mapping[str, DeltaTable], decisions: Decisions
) -> None:
    held: dict[tuple[str, str], int] = {}
    if decisions.handle is not None and decisions.rejected_games and any(r.action == "quarantine" for r in rules):
        rows = read_files(pipeline.spark, files_with(decisions.handle), spark_schema(decisions.handle.schema()))
        rows = rows.where((F.col("layer") == "silver") & F.col("replayed_batch").isNull())
        held = {(r["game"], r["reason"]): int(r["count"]) for r in rows.groupBy("game", "reason").count().collect()}
    for (_, game, name), entry in found.items():
        kept_out = held.get((game, name), 0) if entry.action == "quarantine" else 0
        if entry.action == "drop":
            kept_out = int(tables[game].transaction_version(DROPPED_APP) or 0)
        entry.rows += kept_out
        entry.violated += kept_out
