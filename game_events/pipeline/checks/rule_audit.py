"""Count the violations of rules over all rows: one Spark job for each layer, nothing is written."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from game_events.lakehouse.commits.parallel import for_games, opened
from game_events.lakehouse.commits.transactions import counter
from game_events.lakehouse.data.snapshot import files_with, row_count
from game_events.lakehouse.data.spark_files import game_of_file, read_files, spark_schema
from game_events.lakehouse.event_columns import has_decoded_columns
from game_events.pipeline.checks.row_counts import last_batches
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import player_agg_columns
from game_events.pipeline.quality.judging import RuleColumns
from game_events.pipeline.quality.validation import require_valid
from game_events.pipeline.reporting.tables import RuleReport
from game_events.pipeline.silver.source import SilverInput
from game_events.rules import Rule
from game_events.spark.config import null_on_error

Found = dict[tuple[str, str, str], RuleReport]


def audit_rules(pipeline: Pipeline, rules: Iterable[Rule]) -> Found:
    """Count the rows of every game, and those that violate each rule.

    Rules of silver are evaluated on the bronze rows that the game's silver table was computed from, rejected ones included;
    rules of gold on gold's rows.

    Returns:
        (layer, game, rule) -> counts.

    Raises:
        ConfigurationError: a rule cannot be evaluated.
    """
    chosen = list(rules)
    bronze = pipeline.open_bronze()
    if bronze is None or not row_count(bronze) or not has_decoded_columns(bronze):
        return {}
    source = SilverInput.of(pipeline, bronze)
    games = sorted(pipeline.progress.read(source.bronze.key).games)
    found: Found = {}
    silver, gold = ([rule for rule in chosen if rule.layer == layer] for layer in ("silver", "gold"))
    if silver and (tables := opened(games, pipeline.lakehouse.silver)):
        rows, entity = _rows_taken(source, tables), pipeline.settings.entity_column
        found |= _count(pipeline, silver, rows, source.columns, entity, tables)
    if gold:
        tables = opened(games, pipeline.lakehouse.gold)
        columns = player_agg_columns(pipeline.spark, pipeline.settings, source.columns)
        uris = [uri for uris in for_games(tables, lambda game: files_with(tables[game])).values() for uri in uris]
        game = game_of_file(uris, pipeline.lakehouse.gold_path())
        rows = read_files(pipeline.spark, uris, columns).withColumn("_game", game)
        found |= _count(pipeline, gold, rows, columns, "_game", tables)
    return found


def _rows_taken(source: SilverInput, tables: Mapping[str, DeltaTable]) -> DataFrame:
    """Bronze's rows of each game, up to the last batch in its silver table."""
    taken = {game: counter(handle, source.bronze.app) for game, handle in tables.items()}
    spark = source.pipeline.spark
    rows = read_files(spark, files_with(source.handle), spark_schema(source.handle.schema()))
    of_game = F.col(source.pipeline.settings.entity_column) == F.col("_game")
    return rows.join(last_batches(spark, taken), of_game).where(F.col("_batch") <= F.col("_taken"))


def _count(
    pipeline: Pipeline, rules: list[Rule], rows: DataFrame, columns: StructType, game: str, tables: Mapping[str, DeltaTable]
) -> Found:
    judged = RuleColumns.of(rules, rules[0].layer, game)
    require_valid(pipeline.spark, rules, columns)
    found: Found = {
        (r.layer, g, r.name): RuleReport(r.layer, g, r.name, r.action, r.sql) for g in tables for r in rules if r.applies_to(g)
    }
    with null_on_error(pipeline.spark):
        counts = [F.count(F.when(judged.breaks(n), 1)).alias(f"_rule_{n}") for n in range(len(rules))]
        masks = rows.select(F.col(game).alias("_of"), *judged.violated())
        for row in masks.groupBy("_of").agg(F.count(F.lit(1)).alias("_rows"), *counts).collect():
            for number, rule in enumerate(rules):
                entry = found.get((rule.layer, row["_of"], rule.name))
                if entry is not None:
                    counted = replace(entry, rows=int(row["_rows"]), violated=int(row[f"_rule_{number}"]))
                    found[rule.layer, row["_of"], rule.name] = counted
    return found
