"""One asset for each gold aggregate that the user's modules declare."""

from collections.abc import Iterable

import dagster as dg

from game_events.extending import GoldAggregate
from game_events.lakehouse.layers import Layer
from game_events.orchestration.assets.code_references import declared_in
from game_events.orchestration.assets.per_game import game_asset
from game_events.orchestration.assets.specs import VERSION_CHARS, gold_of_each, table_spec
from game_events.orchestration.graph import Graph
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.reporting.report import RunReport


def build_own_gold(aggregates: Iterable[GoldAggregate], graph: Graph) -> list[dg.AssetsDefinition]:
    """The assets."""
    return [_asset(aggregate, graph) for aggregate in aggregates]


def _asset(aggregate: GoldAggregate, graph: Graph) -> dg.AssetsDefinition:
    keys = graph.keys
    games = sorted(aggregate.games)
    often = f" At most once in {aggregate.interval_s:g} s." if aggregate.interval_s else ""

    spec = table_spec(
        graph,
        keys.layer(aggregate.layer),
        gold_of_each(graph, aggregate.name),
        f"{aggregate.description}\n\nDeclared in {aggregate.where}; {aggregate.mode}.{often}",
        # Of games in the declaration each has a partition, and no other game: the counts of partitions are those of its tables.
        deps=[dg.AssetDep(keys.silver, partition_mapping=dg.SpecificPartitionsPartitionMapping(games) if games else None)],
        partitions_def=dg.StaticPartitionsDefinition(games) if games else keys.partitions,
        code_version=aggregate.definition[:VERSION_CHARS],
        metadata={"definition": aggregate.definition, **declared_in(aggregate.where)},
    )

    def refresh(pipeline: Pipeline, report: RunReport, games: frozenset[str], full: bool) -> None:
        refresh_gold(pipeline, report, games, full=full, aggregate=aggregate)

    return game_asset(spec, Layer.GOLD, aggregate.layer, graph, refresh)
