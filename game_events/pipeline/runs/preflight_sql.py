"""Checks of the SQL in the settings against the columns of the tables, for `doctor` and a dry run. No row is read."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.types import StructType

from game_events.config.gold_columns import measures
from game_events.lakehouse.data.snapshot import row_count
from game_events.lakehouse.event_columns import has_decoded_columns
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import player_agg_columns
from game_events.pipeline.quality.validation import problems, refuse
from game_events.pipeline.silver.stage import SilverInput


def check_rules(pipeline: Pipeline) -> str:
    """Analyze each rule against the columns of its layer; without a bronze table, parse it.

    Raises:
        ConfigurationError: names each rule that cannot be evaluated, with the problem.
    """
    if not pipeline.rules:
        return "no rules"
    bronze = pipeline.bronze.open()
    silver: StructType | None = None
    gold: StructType | None = None
    if bronze is not None and row_count(bronze) and has_decoded_columns(bronze):
        source = SilverInput.of(pipeline, bronze)
        silver, gold = source.columns, _gold(pipeline, source.columns)
    found: dict[str, str] = {}
    for layer, columns in (("silver", silver), ("gold", gold)):
        found |= problems(pipeline.spark, [r for r in pipeline.rules if r.layer == layer], columns)
    refuse(found, silver.names if silver is not None else [])
    against = f"they fit the columns of {pipeline.bronze.name}" if silver is not None else "they parse (there are no rows yet)"
    return f"{len(pipeline.rules)} rules: {against}"


def check_gold_columns(pipeline: Pipeline) -> str:
    """Analyze the expressions of the setting `gold_columns` against silver's columns.

    Raises:
        ConfigurationError: one does not fit them.
    """
    bronze = pipeline.bronze.open()
    count = len(pipeline.settings.gold_columns)
    if bronze is None or not row_count(bronze) or not has_decoded_columns(bronze):
        return f"{count} columns; not compared with silver's: there are no rows yet"
    player_agg_columns(pipeline.spark, pipeline.settings, SilverInput.of(pipeline, bronze).columns)
    way = "merged with the old" if measures(pipeline.settings.gold_columns) else "recomputed where rows are new"
    return f"{count} columns fit those of silver; {way}"


def sql_checks(pipeline: Pipeline) -> dict[str, Callable[[], str]]:
    """Checks of the SQL in the settings; Spark starts only if there is any."""
    checks: dict[str, Callable[[], str]] = {"rules": lambda: check_rules(pipeline)}
    return checks | ({"gold columns": lambda: check_gold_columns(pipeline)} if pipeline.settings.gold_columns else {})


def _gold(pipeline: Pipeline, silver: StructType) -> StructType | None:
    settings = pipeline.settings
    if not {settings.key_column, *(() if settings.gold_columns else (settings.time_column,))} <= set(silver.names):
        return None  # an error of gold itself
    return player_agg_columns(pipeline.spark, pipeline.settings, silver)
