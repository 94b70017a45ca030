"""The assets: thin wrappers over the pipeline, for lineage and for materializing by hand."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

import dagster as dg

from game_events.config.settings import Settings
from game_events.extending import GoldAggregate
from game_events.lakehouse.tables import BRONZE, QUARANTINE, UNIFIED
from game_events.orchestration.assets.code_references import made_by
from game_events.orchestration.assets.operations import operations
from game_events.orchestration.assets.own_gold import build_own_gold
from game_events.orchestration.assets.per_game import game_asset
from game_events.orchestration.assets.sources import source_assets
from game_events.orchestration.assets.specs import SPARK_TABLE, VERSION_CHARS, gold_of_each, silver_of_each, table_spec
from game_events.orchestration.checks.rules import rule_evaluations
from game_events.orchestration.checks.tables import check_evaluation
from game_events.orchestration.events.materializations import AssetEvent, fail_for, report_events
from game_events.orchestration.events.metadata import table_metadata
from game_events.orchestration.graph import Graph
from game_events.orchestration.jobs.config import RefreshConfig
from game_events.orchestration.runs.tags import ALL_LAYERS, CARRIES
from game_events.orchestration.sensors.automation import carry_condition
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.registry import check_after_run
from game_events.pipeline.gold.aggregates import DEFAULT_DEFINITION, player_agg
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.tables import present
from game_events.pipeline.runs.refresh import refresh_downstream
from game_events.pipeline.silver.admission import new_games
from game_events.pipeline.silver.refresh import refresh_silver

#: Dagster accepts no shorter window of freshness.
SHORTEST_WINDOW_S = 60


def build_tables(graph: Graph, own: Iterable[GoldAggregate] = ()) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """All assets for the source of the settings, external ones included, and those of the user's own aggregates."""
    external = source_assets(graph)
    sources = [asset.key for asset in external]
    return [
        *external,
        _bronze(sources, graph),
        _silver(graph),
        _gold(graph),
        _unified(graph),
        *build_own_gold(own, graph),
        *operations(graph, sources),
    ]


def _bronze(sources: Sequence[dg.AssetKey], graph: Graph) -> dg.AssetsDefinition:
    keys = graph.keys

    @dg.multi_asset(
        name=keys.bronze.path[-1],
        specs=[
            table_spec(
                graph,
                keys.bronze,
                BRONZE,
                "Every decodable record of the source, once: columns decoded by its writer's schema, Kafka metadata, schema "
                "id, raw value. Append-only.",
                deps=list(sources),
                freshness_policy=_freshness(graph.settings),
                metadata=made_by(load_bronze),
            ),
            table_spec(
                graph,
                keys.quarantine,
                QUARANTINE,
                "Every other record, once, with the reason: written in the same pass as bronze.",
                deps=list(sources),
                kinds=SPARK_TABLE,
                skippable=True,
                metadata=made_by(load_bronze),
            ),
        ],
        pool=keys.named("bronze"),
        required_resource_keys={graph.resource},
    )
    def bronze_events(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        with graph.lakehouse(context).recorded(context, keys.bronze.path[-1]) as (pipeline, report):
            load_bronze(pipeline, report)
            names = new_games(pipeline)
            entries = {t.layer: t for t in report.tables}
            bronze = entries.get("bronze") or present("bronze", pipeline.bronze)
        if names:
            context.instance.add_dynamic_partitions(str(keys.partitions.name), names)
        if "quarantine" in entries:
            yield dg.MaterializeResult(keys.quarantine, metadata=table_metadata(entries["quarantine"], report, keys))
        yield dg.MaterializeResult(keys.bronze, metadata=table_metadata(bronze, report, keys) if bronze is not None else None)

    return bronze_events


def _freshness(settings: Settings) -> dg.FreshnessPolicy | None:
    """Dagster's own status of bronze, seen when nothing runs: late after half of `FRESHNESS_S`, overdue after all of it.

    The check `fresh` says more (the topic tells whether producers are silent or the pipeline is late); the policy is on the
    asset's page and evaluated by Dagster's daemon.
    """
    if settings.freshness_s < SHORTEST_WINDOW_S:
        return None
    fail = timedelta(seconds=settings.freshness_s)
    warn = fail / 2 if fail / 2 >= timedelta(seconds=SHORTEST_WINDOW_S) else None
    return dg.FreshnessPolicy.time_window(fail_window=fail, warn_window=warn)


def _silver(graph: Graph) -> dg.AssetsDefinition:
    words, keys = graph.settings.names, graph.keys
    spec = table_spec(
        graph,
        keys.silver,
        silver_of_each(graph),
        f"One append-only table for each {words.entity} with its rows of bronze; all requested {words.entities} in "
        "one Spark job.",
        deps=[keys.bronze],
        partitions_def=keys.partitions,
        metadata=made_by(refresh_silver),
    )
    return game_asset(
        spec, "silver", "silver", graph, lambda p, report, games, full: refresh_silver(p, report, games, full=full)
    )


def _gold(graph: Graph) -> dg.AssetsDefinition:
    settings, keys = graph.settings, graph.keys
    aggregate = player_agg(settings)
    spec = table_spec(
        graph,
        keys.gold,
        gold_of_each(graph, aggregate.name),
        f"One table for each {settings.names.entity}. {aggregate.description}. Equal to a full recompute, always.",
        deps=[keys.silver],
        partitions_def=keys.partitions,
        code_version=aggregate.definition[:VERSION_CHARS] or str(DEFAULT_DEFINITION),
        metadata=made_by(refresh_gold),
    )
    return game_asset(spec, "gold", "gold", graph, lambda p, report, games, full: refresh_gold(p, report, games, full=full))


def _unified(graph: Graph) -> dg.AssetsDefinition:
    settings, keys = graph.settings, graph.keys

    @dg.multi_asset(
        name=keys.unified.path[-1],
        specs=[
            table_spec(
                graph,
                keys.unified,
                UNIFIED,
                f"All {settings.names.entities}' aggregates in one table, for dashboards. A run of it that automation starts "
                "brings silver and gold up to date first.",
                deps=[dg.AssetDep(keys.gold, partition_mapping=dg.AllPartitionMapping())],
                automation_condition=carry_condition(keys),
                metadata=made_by(refresh_unified),
            )
        ],
        pool=keys.named("gold"),
        required_resource_keys={graph.resource},
    )
    def gold_unified_player_agg(context: dg.AssetExecutionContext, config: RefreshConfig) -> Iterator[AssetEvent]:
        """Bring the unified table up to the games' gold tables."""
        with graph.lakehouse(context).recorded(context, keys.unified.path[-1]) as (pipeline, report):
            if context.run.tags.get(CARRIES) == ALL_LAYERS:
                refresh_downstream(pipeline, report)
                check_after_run(pipeline, report)
            else:
                refresh_unified(pipeline, report, full=config.full_refresh)
            unified = [t for t in report.of("unified") if t.error is None]
            found = unified[0] if unified else present("unified", pipeline.lakehouse.table(UNIFIED))
        # Its own materialization is the output; the layers above have an event for each game.
        others = replace(report, tables=[t for t in report.tables if t not in unified])
        yield from report_events(context, others, keys)
        yield from rule_evaluations(report, keys)
        yield from (check_evaluation(found, keys) for found in report.checks)
        yield dg.MaterializeResult(keys.unified, metadata=table_metadata(found, report, keys) if found is not None else None)
        fail_for(others.errors)

    return gold_unified_player_agg
