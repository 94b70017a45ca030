"""The assets of gold aggregates that the user declares: as the shipped one, with the same partitions and lineage."""

import warnings
from collections.abc import Iterable

import dagster as dg

from game_events.assets.keys import GAMES, OWNERS, SILVER_KEY
from game_events.assets.partitions import partitions_result
from game_events.assets.refresh_config import RefreshConfig
from game_events.assets.resources import LakehouseResource
from game_events.extending import GoldAggregate
from game_events.pipeline.event_log import recorded
from game_events.pipeline.gold import refresh_gold
from game_events.pipeline.report import RunReport


def build_own_gold(aggregates: Iterable[GoldAggregate]) -> list[dg.AssetsDefinition]:
    """One asset for each."""
    with warnings.catch_warnings():
        # As for the shipped assets, but these are made whenever somebody builds the definitions.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return [_asset(aggregate) for aggregate in aggregates]


def _asset(aggregate: GoldAggregate) -> dg.AssetsDefinition:
    only = f" Games: {', '.join(sorted(aggregate.games))}." if aggregate.games else ""
    often = f" At most once in {aggregate.interval_s:g} s." if aggregate.interval_s else ""

    @dg.asset(
        key=dg.AssetKey([aggregate.asset]),
        deps=[SILVER_KEY],
        partitions_def=GAMES,
        backfill_policy=dg.BackfillPolicy.single_run(),
        description=f"{aggregate.description}\n\nDeclared in {aggregate.where}; {aggregate.mode}.{only}{often}",
        metadata={"definition": aggregate.definition, "declared_in": aggregate.where},
        group_name="gold",
        kinds={"spark", "deltalake", "gold"},
        owners=OWNERS,
        pool="gold",
    )
    def own_gold(
        context: dg.AssetExecutionContext, config: RefreshConfig, lakehouse: LakehouseResource
    ) -> dg.MaterializeResult[None]:
        """Materialize any set of games by hand, whatever the interval; the job `refresh` does all that have news."""
        pipeline, report = lakehouse.pipeline(context.run.run_id), RunReport()
        with recorded(pipeline, report, aggregate.asset, context.retry_number):
            refresh_gold(pipeline, report, frozenset(context.partition_keys), full=config.full_refresh, aggregate=aggregate)
        return partitions_result(context, report, aggregate.layer)

    return own_gold
