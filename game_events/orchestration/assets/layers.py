"""The assets: thin wrappers over the pipeline, for lineage and for materializing by hand."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import dagster as dg

from game_events.config.settings import Settings
from game_events.extending import GoldAggregate
from game_events.lakehouse.tables import UNIFIED
from game_events.orchestration.assets.per_game import game_asset
from game_events.orchestration.checks.rules import rule_evaluations
from game_events.orchestration.checks.tables import check_evaluation
from game_events.orchestration.events.materializations import AssetEvent, fail_for, report_events
from game_events.orchestration.events.metadata import table_metadata
from game_events.orchestration.graph import Graph
from game_events.orchestration.jobs.config import RefreshConfig
from game_events.orchestration.keys import BY_PATTERN, OWNERS, schema_key, source_key
from game_events.orchestration.runs.tags import ALL_LAYERS, CARRIES
from game_events.orchestration.sensors.automation import carry_condition
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.registry import check_after_run
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import player_agg
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.present import present
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh_downstream
from game_events.pipeline.silver.admission import new_games
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.sources.kafka.source import subject_of

SPARK_TABLE = {"spark", "deltalake"}
#: Dagster accepts no shorter window of freshness.
SHORTEST_WINDOW_S = 60


def build_tables(graph: Graph, own: Iterable[GoldAggregate] = ()) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """All assets for the source of the settings, external ones included, and those of the user's own aggregates."""
    external = source_assets(graph.settings)
    return [
        *external,
        _bronze([asset.key for asset in external], graph),
        _silver(graph),
        _gold(graph),
        _unified(graph),
        *build_own_gold(own, graph),
    ]


def _table_spec(key: dg.AssetKey, layer: str, description: str, **more: Any) -> dg.AssetSpec:  # noqa: ANN401 - Dagster's own
    options = {"group_name": layer, "kinds": {*SPARK_TABLE, layer}, "owners": OWNERS} | more
    return dg.AssetSpec(key, description=description, **options)


def _bronze(sources: Sequence[dg.AssetKey], graph: Graph) -> dg.AssetsDefinition:
    keys = graph.keys

    @dg.multi_asset(
        name=keys.bronze.path[-1],
        specs=[
            _table_spec(
                keys.bronze,
                "bronze",
                "Every decodable record of the source, once: columns decoded by its writer's schema, Kafka metadata, schema "
                "id, raw value. Append-only.",
                deps=list(sources),
                freshness_policy=_freshness(graph.settings),
            ),
            _table_spec(
                keys.quarantine,
                "bronze",
                "Every other record, once, with the reason: written in the same pass as bronze.",
                deps=list(sources),
                kinds=SPARK_TABLE,
                skippable=True,
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
    if not settings.freshness_s:
        return None
    fail = timedelta(seconds=max(settings.freshness_s, SHORTEST_WINDOW_S))
    warn = fail / 2 if fail / 2 >= timedelta(seconds=SHORTEST_WINDOW_S) else None
    return dg.FreshnessPolicy.time_window(fail_window=fail, warn_window=warn)


def _silver(graph: Graph) -> dg.AssetsDefinition:
    words, keys = graph.settings.names, graph.keys
    spec = _table_spec(
        keys.silver,
        "silver",
        f"One append-only table for each {words.entity} with its rows of bronze; all requested {words.entities} in "
        "one Spark job.",
        deps=[keys.bronze],
    )
    return game_asset(
        spec, "silver", "silver", graph, lambda p, report, games, full: refresh_silver(p, report, games, full=full)
    )


def _gold(graph: Graph) -> dg.AssetsDefinition:
    settings, keys = graph.settings, graph.keys
    spec = _table_spec(
        keys.gold,
        "gold",
        f"One table for each {settings.names.entity}. {player_agg(settings).description}. Equal to a full recompute, always.",
        deps=[keys.silver],
    )
    return game_asset(spec, "gold", "gold", graph, lambda p, report, games, full: refresh_gold(p, report, games, full=full))


def _unified(graph: Graph) -> dg.AssetsDefinition:
    settings, keys = graph.settings, graph.keys

    @dg.multi_asset(
        name=keys.unified.path[-1],
        specs=[
            _table_spec(
                keys.unified,
                "gold",
                f"All {settings.names.entities}' aggregates in one table, for dashboards. A run of it that automation starts "
                "brings silver and gold up to date first.",
                deps=[dg.AssetDep(keys.gold, partition_mapping=dg.AllPartitionMapping())],
                automation_condition=carry_condition(keys),
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


def build_own_gold(aggregates: Iterable[GoldAggregate], graph: Graph) -> list[dg.AssetsDefinition]:
    """One asset for each."""
    return [_asset(aggregate, graph) for aggregate in aggregates]


def _asset(aggregate: GoldAggregate, graph: Graph) -> dg.AssetsDefinition:
    keys = graph.keys
    only = f" Games: {', '.join(sorted(aggregate.games))}." if aggregate.games else ""
    often = f" At most once in {aggregate.interval_s:g} s." if aggregate.interval_s else ""

    spec = _table_spec(
        keys.layer(aggregate.layer),
        "gold",
        f"{aggregate.description}\n\nDeclared in {aggregate.where}; {aggregate.mode}.{only}{often}",
        deps=[keys.silver],
        metadata={"definition": aggregate.definition, "declared_in": aggregate.where},
    )

    def refresh(pipeline: Pipeline, report: RunReport, games: frozenset[str], full: bool) -> None:
        refresh_gold(pipeline, report, games, full=full, aggregate=aggregate)

    return game_asset(spec, "gold", aggregate.layer, graph, refresh)


def source_assets(settings: Settings) -> list[dg.AssetSpec]:
    """One asset for each topic and one for its subject; with a pattern one for all topics, and one for their subjects."""
    if settings.source_table is not None:
        said = f"Bronze of another pipeline, `{settings.source_table}`. External: that pipeline writes it."
        return [_spec(source_key(settings, settings.source_table), said, "deltalake")]
    pattern = settings.kafka_topic_pattern
    if pattern is not None:
        return [
            _spec(source_key(settings, BY_PATTERN), f"The Kafka topics that match `{pattern}`, those made later too.", "kafka"),
            _spec(schema_key(settings, BY_PATTERN), "The registry subjects of these topics' values. External."),
        ]
    specs = []
    for topic in settings.kafka_topics:
        said = "A Kafka topic that bronze is made from. External: producers write it."
        specs.append(_spec(source_key(settings, topic), said, "kafka"))
        said = "The registry subject with every schema version of the topic's values. External."
        specs.append(_spec(schema_key(settings, subject_of(topic)), said))
    return specs


def _spec(key: dg.AssetKey, description: str, *kinds: str) -> dg.AssetSpec:
    return dg.AssetSpec(key, description=description, group_name="sources", kinds={*kinds, "protobuf"}, owners=OWNERS)
