"""The assets of gold aggregates that the user declares: as the shipped one, with the same partitions and lineage."""

import warnings
from collections.abc import Iterable, Iterator

import dagster as dg

from game_events.assets.failures import errors_decide
from game_events.assets.keys import GAMES, OWNERS, SILVER_KEY
from game_events.assets.partitions import Event, partition_events
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
    key = dg.AssetKey([aggregate.asset])
    only = f" Games: {', '.join(sorted(aggregate.games))}." if aggregate.games else ""
    often = f" At most once in {aggregate.interval_s:g} s." if aggregate.interval_s else ""

    @dg.multi_asset(
        name=aggregate.asset,
        specs=[
            dg.AssetSpec(
                key,
                deps=[SILVER_KEY],
                description=f"{aggregate.description}\n\nDeclared in {aggregate.where}; {aggregate.mode}.{only}{often}",
                metadata={"definition": aggregate.definition, "declared_in": aggregate.where},
                group_name="gold",
                kinds={"spark", "deltalake", "gold"},
                owners=OWNERS,
            )
        ],
        partitions_def=GAMES,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool="gold",
    )
    def own_gold(context: dg.AssetExecutionContext, config: RefreshConfig, lakehouse: LakehouseResource) -> Iterator[Event]:
        """Materialize any set of games by hand, whatever the interval; the job `refresh` does all that have news."""
        pipeline, report = lakehouse.pipeline(context.run.run_id), RunReport()
        with errors_decide(context, pipeline.settings), recorded(pipeline, report, aggregate.asset, context.retry_number):
            refresh_gold(pipeline, report, frozenset(context.partition_keys), full=config.full_refresh, aggregate=aggregate)
        yield from partition_events(context, report, key, aggregate.layer)

    return own_gold
