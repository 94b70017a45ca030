"""What assets of games' tables have in common: a partition for each game, any set of them in one run and one Spark job."""

import warnings
from collections.abc import Callable, Iterator

import dagster as dg

from game_events.extending import PLAYER_AGG
from game_events.lakehouse.tables import Lakehouse, Table
from game_events.orchestration.checks.rules import rule_evaluations
from game_events.orchestration.events.materializations import AssetEvent, partition_events
from game_events.orchestration.graph import Graph
from game_events.orchestration.jobs.config import RefreshConfig
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.tables import present

#: Brings the tables of some games up to date, or (the last argument) replaces them.
Refresh = Callable[[Pipeline, RunReport, frozenset[str], bool], None]


def game_asset(spec: dg.AssetSpec, pool: str, layer: str, graph: Graph, refresh: Refresh) -> dg.AssetsDefinition:
    """An asset with games as the partitions of its spec.

    `layer`: its tables' entries in the report; `refresh`: materializes some games.
    """
    name, keys = spec.key.path[-1], graph.keys

    with warnings.catch_warnings():
        # Backfill policies are beta in Dagster 1.13.
        warnings.simplefilter("ignore", dg.BetaWarning)

        @dg.multi_asset(
            name=name,
            specs=[spec],
            backfill_policy=dg.BackfillPolicy.single_run(),
            pool=keys.named(pool),
            required_resource_keys={graph.resource},
        )
        def tables_of_games(context: dg.AssetExecutionContext, config: RefreshConfig) -> Iterator[AssetEvent]:
            with graph.lakehouse(context).recorded(context, name) as (pipeline, report):
                games = frozenset(context.partition_keys)
                refresh(pipeline, report, games, config.full_refresh)
                idle = games - {t.game for t in report.of(layer)}
                unchanged = [present(layer, _table(pipeline.lakehouse, layer, game), game) for game in sorted(idle)]
            yield from rule_evaluations(report, keys)
            yield from partition_events(context, report, unchanged, spec.key, layer, keys)

    return tables_of_games


def _table(lakehouse: Lakehouse, layer: str, game: str) -> Table:
    """A game's table; the layer of an aggregate of one's own is `gold:{name}`."""
    return lakehouse.silver(game) if layer == "silver" else lakehouse.gold(game, layer.partition(":")[2] or PLAYER_AGG)
