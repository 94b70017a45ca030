"""The assets: thin wrappers over the pipeline, for lineage and for materializing by hand; here bronze and the unified table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import dagster as dg

from game_events.config.settings import Settings
from game_events.extending import GoldAggregate
from game_events.lakehouse.tables import BRONZE, QUARANTINE, UNIFIED
from game_events.orchestration.assets.external import operations, source_assets
from game_events.orchestration.assets.per_game import RefreshConfig, game_assets
from game_events.orchestration.assets.specs import SPARK_TABLE, made_by, table_spec
from game_events.orchestration.checks.last_known import last_known
from game_events.orchestration.checks.tables import check_evaluation
from game_events.orchestration.checks.whole_run import changes
from game_events.orchestration.events.materializations import AssetEvent, fail_for
from game_events.orchestration.events.metadata import table_metadata
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import Keys
from game_events.orchestration.runs.tags import CARRIES_ALL, REASON
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.registry import check_after_run
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.tables import present
from game_events.pipeline.runs.refresh import refresh_downstream
from game_events.pipeline.silver.admission import new_games

#: Dagster accepts no shorter window of freshness.
SHORTEST_WINDOW_S = 60


def build_tables(graph: Graph, own: Iterable[GoldAggregate] = ()) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """All assets for the source of the settings, external ones included, and those of the user's own aggregates."""
    external = source_assets(graph)
    sources = [asset.key for asset in external]
    return [
        *external,
        _bronze(sources, graph),
        *game_assets(graph, own),
        _unified(graph),
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
                automation_condition=_carry_condition(keys),
                metadata=made_by(refresh_unified),
            )
        ],
        pool=keys.named("gold"),
        required_resource_keys={graph.resource},
    )
    def gold_unified_player_agg(context: dg.AssetExecutionContext, config: RefreshConfig) -> Iterator[AssetEvent]:
        """Bring the unified table up to the games' gold tables."""
        with graph.lakehouse(context).recorded(context, keys.unified.path[-1]) as (pipeline, report):
            if CARRIES_ALL.items() <= context.run.tags.items():
                refresh_downstream(pipeline, report)
                check_after_run(pipeline, report)
            else:
                refresh_unified(pipeline, report, full=config.full_refresh)
            unified = [t for t in report.of("unified") if t.error is None]
            found = unified[0] if unified else present("unified", pipeline.lakehouse.table(UNIFIED))
        # Its own materialization is the output; the layers above have an event for each game.
        others = replace(report, tables=[t for t in report.tables if t not in unified])
        yield from changes(context, others, keys)
        yield from (check_evaluation(found, keys) for found in report.checks)
        yield from last_known(context, pipeline)
        yield dg.MaterializeResult(keys.unified, metadata=table_metadata(found, report, keys) if found is not None else None)
        fail_for(others.errors)

    return gold_unified_player_agg


def _carry_condition(keys: Keys) -> dg.AutomationCondition[Any]:
    """True when a layer above was updated by a run that did not itself carry on, until a run that does is requested.

    Held back while a layer is being written, as runs plan it (`PlannedLayers`), and while a blocking check of one fails.
    """
    condition = dg.AutomationCondition
    # Of the newest run that updated it: whatever came before that one, it has carried on too. Dagster 1.13 knows that of one
    # partition of an asset alone, so of the others all updates since the last tick count. (That is never true on the first tick
    # after an empty event log.)
    newest, all_new = condition.executed_with_tags, condition.all_new_updates_have_run_tags
    by_carrier = newest(tag_values=CARRIES_ALL) | all_new(tag_values=CARRIES_ALL)
    by_hand = condition.newly_updated() & ~by_carrier

    def any_of(wanted: dg.AutomationCondition[Any]) -> dg.AutomationCondition[Any]:
        """True if it is for any layer above."""
        bronze, silver, gold = (condition.asset_matches(key, wanted) for key in (keys.bronze, keys.silver, keys.gold))
        return bronze | silver | gold

    blocked = condition.any_checks_match(condition.check_failed(), blocking_only=True)
    # Of a carrier and bronze by hand between two looks, it is not known which came first: rather a run too many than none. (Not
    # of silver and gold: after an empty event log the tags of some partitions are not known.)
    done = condition.newly_requested() | (condition.newly_updated() & by_carrier)
    carried = done & ~condition.asset_matches(keys.bronze, by_hand)
    return any_of(by_hand).since(carried) & ~any_of(condition.in_progress()) & ~condition.in_progress() & ~any_of(blocked)


def build_automation(graph: Graph) -> dg.AutomationConditionSensorDefinition:
    """Declarative automation: what is materialized by hand is carried down to the unified table with no further click.

    One condition, on the last table. Its run brings silver, gold and the unified table up to date for every game that has news,
    and logs those games only. Conditions on the partitioned assets themselves would start a run for each contiguous range of
    changed games and layer, mark every game of a range as materialized, and let one failed game hold up the rest of its range.
    """
    keys = graph.keys
    return dg.AutomationConditionSensorDefinition(
        keys.named("automation"),
        # The export is asked for by a sensor of its own.
        target=dg.AssetSelection.assets(keys.unified),
        default_status=graph.sensor_status,
        minimum_interval_seconds=15,
        run_tags={**graph.tags, **CARRIES_ALL, REASON: "a layer was materialized by hand"},
        description="Carries what was materialized by hand down to the unified table, in one run.",
    )
