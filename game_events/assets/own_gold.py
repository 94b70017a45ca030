"""The assets of gold aggregates that the user declares: as the shipped one, with the same partitions and lineage."""

from collections.abc import Iterable

import dagster as dg

from game_events.assets.game_tables import game_asset
from game_events.assets.keys import DEFAULT, OWNERS, Keys
from game_events.extending import GoldAggregate
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold import refresh_gold
from game_events.pipeline.report import RunReport


def build_own_gold(aggregates: Iterable[GoldAggregate], keys: Keys = DEFAULT) -> list[dg.AssetsDefinition]:
    """One asset for each."""
    return [_asset(aggregate, keys) for aggregate in aggregates]


def _asset(aggregate: GoldAggregate, keys: Keys) -> dg.AssetsDefinition:
    only = f" Games: {', '.join(sorted(aggregate.games))}." if aggregate.games else ""
    often = f" At most once in {aggregate.interval_s:g} s." if aggregate.interval_s else ""

    spec = dg.AssetSpec(
        keys.layer(aggregate.layer),
        deps=[keys.silver],
        description=f"{aggregate.description}\n\nDeclared in {aggregate.where}; {aggregate.mode}.{only}{often}",
        metadata={"definition": aggregate.definition, "declared_in": aggregate.where},
        group_name="gold",
        kinds={"spark", "deltalake", "gold"},
        owners=OWNERS,
    )

    def refresh(pipeline: Pipeline, report: RunReport, games: frozenset[str], full: bool) -> None:
        refresh_gold(pipeline, report, games, full=full, aggregate=aggregate)

    return game_asset(spec, "gold", aggregate.layer, keys, refresh)
