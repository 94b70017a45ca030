"""The assets of games' tables: a partition for each game, any set of them in one run and one Spark job."""

import warnings
from collections.abc import Callable, Iterable, Iterator

import dagster as dg
from pydantic import Field

from game_events.extending import GoldAggregate
from game_events.lakehouse.tables import gold_name, is_game, silver_name
from game_events.orchestration.assets.specs import declared_in, made_by, table_spec
from game_events.orchestration.checks.rules import rule_evaluations
from game_events.orchestration.events.materializations import AssetEvent, partition_events
from game_events.orchestration.events.planned import game_table, partitions_of
from game_events.orchestration.graph import Graph
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import DEFAULT_DEFINITION, player_agg
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import LayerResult
from game_events.pipeline.reporting.tables import TableReport, present
from game_events.pipeline.silver.refresh import refresh_silver

#: Brings the tables of some games up to date, or (the last argument) replaces them.
Refresh = Callable[[Pipeline, RunReport, frozenset[str], bool], object]
#: Of the hash of an aggregate's definition, as its code version.
VERSION_CHARS = 12
#: Why a partition that somebody has added by hand fails.
NO_GAME = "no game may have this name (README.md, Limits): delete the partition"


class RefreshConfig(dg.Config):
    """Options of a materialization by hand."""

    full_refresh: bool = Field(default=False, description="Replace the tables by everything that the layer before has of them.")


def game_assets(graph: Graph, own: Iterable[GoldAggregate]) -> list[dg.AssetsDefinition]:
    """Silver, gold, and an asset for each gold aggregate that the user's modules declare (`own`)."""
    return [_silver(graph), _gold(graph), *(_own_gold(graph, aggregate) for aggregate in own)]


def _silver(graph: Graph) -> dg.AssetsDefinition:
    words, keys = graph.settings.names, graph.keys
    spec = table_spec(
        graph,
        keys.silver,
        silver_name(f"{{{words.entity}}}"),
        f"One append-only table for each {words.entity} with its rows of bronze. {_one_run(graph)}",
        deps=[keys.bronze],
        partitions_def=keys.partitions,
        metadata=made_by(refresh_silver),
    )
    return _asset(graph, spec, "silver", lambda p, report, games, full: refresh_silver(p, report, games, full=full))


def _one_run(graph: Graph) -> str:
    """How many runs a choice of partitions is: Dagster makes one of each range without a gap (dagster-io/dagster#32335)."""
    words, refresh = graph.settings.names, graph.keys.named("refresh")
    return (
        f"Chosen {words.entities} that follow each other in the list of partitions are one run and one Spark job; each further "
        f"range is a run of its own. Any choice in one run: by the options of the job `{refresh}`."
    )


def _gold(graph: Graph) -> dg.AssetsDefinition:
    words, keys, aggregate = graph.settings.names, graph.keys, player_agg(graph.settings)
    spec = table_spec(
        graph,
        keys.gold,
        gold_name(f"{{{words.entity}}}"),
        f"One table for each {words.entity}. {aggregate.description}. Equal to a full recompute, always. {_one_run(graph)}",
        deps=[keys.silver],
        partitions_def=keys.partitions,
        code_version=aggregate.definition[:VERSION_CHARS] or str(DEFAULT_DEFINITION),
        metadata=made_by(refresh_gold),
    )
    return _asset(graph, spec, "gold", lambda p, report, games, full: refresh_gold(p, report, games, full=full))


def _own_gold(graph: Graph, aggregate: GoldAggregate) -> dg.AssetsDefinition:
    keys = graph.keys
    games = sorted(aggregate.games)
    often = f" At most once in {aggregate.interval_s:g} s." if aggregate.interval_s else ""
    spec = table_spec(
        graph,
        keys.layer(aggregate.layer),
        gold_name(f"{{{graph.settings.names.entity}}}", aggregate.name),
        f"{aggregate.description}\n\nDeclared in {aggregate.where}; {aggregate.mode}.{often}",
        deps=[dg.AssetDep(keys.silver, partition_mapping=dg.SpecificPartitionsPartitionMapping(games) if games else None)],
        partitions_def=partitions_of(keys, aggregate),
        code_version=aggregate.definition[:VERSION_CHARS],
        metadata={"definition": aggregate.definition, **declared_in(aggregate.where)},
    )

    def refresh(pipeline: Pipeline, report: RunReport, games: frozenset[str], full: bool) -> None:
        refresh_gold(pipeline, report, games, full=full, aggregate=aggregate)

    return _asset(graph, spec, aggregate.layer, refresh)


def _asset(graph: Graph, spec: dg.AssetSpec, layer: str, refresh: Refresh) -> dg.AssetsDefinition:
    """An asset with games as the partitions of its spec; `layer`: its tables' entries in the report."""
    name, keys = spec.key.path[-1], graph.keys

    with warnings.catch_warnings():
        # Backfill policies are beta in Dagster 1.13.
        warnings.simplefilter("ignore", dg.BetaWarning)

        @dg.multi_asset(
            name=name,
            specs=[spec],
            backfill_policy=dg.BackfillPolicy.single_run(),
            pool=keys.named(layer.partition(":")[0]),
            required_resource_keys={graph.resource},
        )
        def tables_of_games(context: dg.AssetExecutionContext, config: RefreshConfig) -> Iterator[AssetEvent]:
            with graph.lakehouse(context).recorded(context, name) as (pipeline, report):
                games = frozenset(filter(is_game, context.partition_keys))
                for odd in sorted(set(context.partition_keys) - games):
                    # Not by its table: such a name may be a path to any other one.
                    report.add(LayerResult(tables=[TableReport(layer, name, pipeline.lakehouse.root, odd, error=NO_GAME)]))
                if games:  # none would be every game
                    refresh(pipeline, report, games, config.full_refresh)
                idle = games - {t.game for t in report.of(layer)}
                unchanged = [present(layer, game_table(pipeline.lakehouse, layer, game), game) for game in sorted(idle)]
            yield from rule_evaluations(report, keys)
            yield from partition_events(context, report, unchanged, spec.key, layer, keys)

    return tables_of_games
