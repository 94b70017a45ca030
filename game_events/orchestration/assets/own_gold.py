"""One asset for each gold aggregate that the user's modules declare."""

from collections.abc import Iterable

import dagster as dg

from game_events.extending import GoldAggregate
from game_events.lakehouse.layers import Layer
from game_events.orchestration.assets.per_game import game_asset
from game_events.orchestration.assets.specs import gold_of_each, table_spec
from game_events.orchestration.graph import Graph
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.reporting.report import RunReport


def build_own_gold(aggregates: Iterable[GoldAggregate], graph: Graph) -> list[dg.AssetsDefinition]:
    """The assets."""
    return [_asset(aggregate, graph) for aggregate in aggregates]


def _asset(aggregate: GoldAggregate, graph: Graph) -> dg.AssetsDefinition:
    keys = graph.keys
    only = f" Games: {', '.join(sorted(aggregate.games))}." if aggregate.games else ""
    often = f" At most once in {aggregate.interval_s:g} s." if aggregate.interval_s else ""

    spec = table_spec(
        graph,
        keys.layer(aggregate.layer),
        gold_of_each(graph, aggregate.name),
        f"{aggregate.description}\n\nDeclared in {aggregate.where}; {aggregate.mode}.{only}{often}",
        deps=[keys.silver],
        metadata={"definition": aggregate.definition, "declared_in": aggregate.where},
    )

    def refresh(pipeline: Pipeline, report: RunReport, games: frozenset[str], full: bool) -> None:
        refresh_gold(pipeline, report, games, full=full, aggregate=aggregate)

    return game_asset(spec, Layer.GOLD, aggregate.layer, graph, refresh)
