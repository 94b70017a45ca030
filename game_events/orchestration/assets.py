"""The assets: thin wrappers over the pipeline, for lineage and for materializing by hand.

Those of games' tables have a partition for each game, any set of them in one run and one Spark job. External ones are what
bronze is made from (topics and subjects, files, a table), and tables about the pipeline itself. Every asset's page has its
description, group, kinds, owners, tags, the code that makes it, and how to read the table.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import dagster as dg
import pyarrow as pa
from pydantic import Field

from game_events.config.settings import Settings
from game_events.config.sources.several import settings_or_each
from game_events.config.type_names import SEPARATOR, TYPE_MARK, of_type
from game_events.decoding.columns import type_name
from game_events.extending import GoldAggregate
from game_events.lakehouse.data.columns import comments_of, described
from game_events.lakehouse.system_tables import event_log_table
from game_events.lakehouse.tables import (
    BRONZE,
    EVERY,
    QUARANTINE,
    UNIFIED,
    Labels,
    Table,
    gold_name,
    is_game,
    layer_of,
    silver_name,
)
from game_events.orchestration.checks import changes, check_evaluation, last_known, rule_evaluations
from game_events.orchestration.events import AssetEvent, fail_for, game_table, partition_events, partitions_of, table_metadata
from game_events.orchestration.keys import OWNERS, Keys, key_of
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import CARRIES_ALL, REASON, lakehouse_of
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.checks.table_checks import check_after_run
from game_events.pipeline.gold.plan import DEFAULT_DEFINITION, player_agg
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.result import LayerResult, TableReport, present
from game_events.pipeline.runs.refresh import refresh_downstream
from game_events.pipeline.schemas.archive import SchemaArchive
from game_events.pipeline.silver.admission import new_games
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.sources.factory import class_of

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
        *_silver_types(graph),
        _gold(graph),
        *(_own_gold(graph, aggregate) for aggregate in own),
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
    settings = graph.settings
    keys = graph.keys

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
            entry = unified[0] if unified else present("unified", pipeline.lakehouse.table(UNIFIED))
        # Its own materialization is the output; the layers above have an event for each game.
        others = replace(report, tables=[t for t in report.tables if t not in unified])
        yield from changes(context, others, keys)
        yield from (check_evaluation(entry, keys) for entry in report.checks)
        yield from last_known(context, pipeline)
        yield dg.MaterializeResult(keys.unified, metadata=table_metadata(entry, report, keys) if entry is not None else None)
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
    newest = condition.executed_with_tags
    all_new = condition.all_new_updates_have_run_tags
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


#: Of the hash of an aggregate's definition, as its code version.
VERSION_CHARS = 12
#: Why a partition that somebody has added by hand fails.
NO_GAME = "no game may have this name (README.md, Limits): delete the partition"


class RefreshConfig(dg.Config):
    """Options of a materialization by hand."""

    full_refresh: bool = Field(default=False, description="Replace the tables by everything that the layer before has of them.")


def _one_run(graph: Graph) -> str:
    """How many runs a choice of partitions is: Dagster makes one of each range without a gap (dagster-io/dagster#32335)."""
    entities = graph.settings.names.entities
    return (
        f"Chosen {entities} that follow each other in the list of partitions are one run and one Spark job; each further range "
        f"is a run of its own. Any choice in one run: by the options of the job `{graph.keys.named('refresh')}`."
    )


def _silver(graph: Graph) -> dg.AssetsDefinition:
    entity = graph.settings.names.entity
    spec = table_spec(
        graph,
        graph.keys.silver,
        silver_name(f"{{{entity}}}"),
        f"One append-only table for each {entity} with its rows of bronze. {_one_run(graph)}",
        deps=[graph.keys.bronze],
        partitions_def=graph.keys.partitions,
        metadata=made_by(refresh_silver),
    )
    return _asset(graph, spec, "silver", refresh_silver)


def _silver_types(graph: Graph) -> list[dg.AssetSpec]:
    """The tables of message types, which the runs of silver write; nothing where no type has one."""
    if graph.settings.type_tables is None:
        return []
    entity = graph.settings.names.entity
    about = (
        f"One append-only table for each message type of each {entity}, with its columns alone. The partitions of "
        f"`{graph.keys.silver.path[-1]}` refresh them together with the {entity}'s own table."
    )
    key = silver_name(of_type(f"{{{entity}}}", "{type}"))
    parts = {"deps": [graph.keys.bronze], "partitions_def": graph.keys.type_partitions, "metadata": made_by(refresh_silver)}
    return [table_spec(graph, graph.keys.silver_types, key, about, **parts)]


def _silver_deps(graph: Graph) -> list[dg.AssetKey | dg.AssetDep]:
    """What gold is made from."""
    if graph.settings.type_tables is None:
        return [graph.keys.silver]
    return [graph.keys.silver, dg.AssetDep(graph.keys.silver_types, partition_mapping=dg.AllPartitionMapping())]


def _gold(graph: Graph) -> dg.AssetsDefinition:
    entity = graph.settings.names.entity
    aggregate = player_agg(graph.settings)
    spec = table_spec(
        graph,
        graph.keys.gold,
        gold_name(f"{{{entity}}}"),
        f"One table for each {entity}. {aggregate.description}. Equal to a full recompute, always. {_one_run(graph)}",
        deps=_silver_deps(graph),
        partitions_def=graph.keys.partitions,
        code_version=aggregate.definition[:VERSION_CHARS] or str(DEFAULT_DEFINITION),
        metadata=made_by(refresh_gold),
    )
    return _asset(graph, spec, "gold", refresh_gold)


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
    return _asset(graph, spec, aggregate.layer, partial(refresh_gold, aggregate=aggregate))


def _asset(graph: Graph, spec: dg.AssetSpec, layer: str, refresh: Callable[..., object]) -> dg.AssetsDefinition:
    """An asset with games as the partitions of its spec; `layer`: its tables' entries in the report.

    `refresh`: brings the tables of some games up to date, or (`full`) replaces them.
    """
    name = spec.key.path[-1]
    keys = graph.keys

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
                    refresh(pipeline, report, games, full=config.full_refresh)
                idle = games - {t.game for t in report.of(layer)}
                unchanged = [present(layer, game_table(pipeline.lakehouse, layer, game), game) for game in sorted(idle)]
            yield from rule_evaluations(report, keys)
            yield from partition_events(context, report, filter(None, unchanged), spec.key, layer, keys)

    return tables_of_games


SPARK_TABLE = {"spark", "deltalake"}


def asset_spec(
    graph: Graph,
    key: dg.AssetKey,
    description: str,
    labels: str = EVERY,
    **more: Any,  # noqa: ANN401 - Dagster's own
) -> dg.AssetSpec:
    """An asset with owners and tags of the settings; `labels`: layer whose tags it has."""
    owners, tags = Labels.of(graph.settings).of_layer(labels)
    return dg.AssetSpec(key, description=description, owners=list(owners) or OWNERS, tags=dict(tags), **more)


def table_spec(
    graph: Graph,
    key: dg.AssetKey,
    table: str,
    description: str,
    **more: Any,  # noqa: ANN401 - Dagster's own
) -> dg.AssetSpec:
    """The asset of a table, by the table's key; of the tables of all games with `{game}` in it."""
    name = graph.settings.names.name_of(table).replace(TYPE_MARK, SEPARATOR)
    layer = layer_of(table)
    lakehouse = lakehouse_of(graph.settings)
    metadata = {"dagster/table_name": graph.keys.table_name(name), **more.pop("metadata", {})}
    if lakehouse is not None:
        metadata["dagster/uri"] = lakehouse.table(table).uri
    options = {"group_name": str(layer), "kinds": {*SPARK_TABLE, str(layer)}} | more
    if "group_name" not in more:
        # What Dagster cannot show with an asset: a sensor is listed there only if its job is one of assets.
        refresh, kafka_lag, schema_versions = map(graph.keys.named, ("refresh", "kafka_lag", "schema_versions"))
        description += (
            f"\n\nKept up to date by the job `{refresh}`, which the sensors `{kafka_lag}` and `{schema_versions}` start."
        )
    # SQL to copy. The documents are files of the project: there is no address to link to.
    query = f"SELECT * FROM {name} LIMIT 10"  # noqa: S608 - shown, not run
    description += (
        f'\n\n```sql\n{query}\n```\n\nWith `game-events sql "{query}"`, or any reader of Delta tables (docs/reading.md).'
    )
    return asset_spec(graph, key, description, layer, metadata=metadata, **options)


def own_table_spec(
    graph: Graph, table: Table, schema: pa.Schema, description: str, deps: Sequence[dg.AssetKey]
) -> dg.AssetSpec:
    """The asset of a table of the pipeline's own, with its columns; `deps`: what its rows are about."""
    comments = comments_of(described(table, schema))
    columns = [dg.TableColumn(f.name, type=type_name(f.type), description=comments.get(f.name)) for f in schema]
    return table_spec(
        graph,
        dg.AssetKey([table.name]),
        table.key,
        f"{description}. Written by the pipeline's own runs.",
        group_name="operations",
        kinds={"deltalake"},
        deps=list(deps),
        metadata={"dagster/column_schema": dg.TableSchema(columns)},
    )


def made_by(function: Callable[..., object]) -> dict[str, dg.CodeReferencesMetadataValue]:
    """Metadata by which the page opens a function; Dagster's `with_source_code_references` would name the wrapper of all."""
    code = inspect.unwrap(function).__code__
    return declared_in(f"{code.co_filename}:{code.co_firstlineno}")


def declared_in(place: str) -> dict[str, dg.CodeReferencesMetadataValue]:
    """Metadata by which the page opens `file:line`."""
    path, _, line = place.rpartition(":")
    with warnings.catch_warnings():
        # Both classes are beta in Dagster 1.13.
        warnings.filterwarnings("ignore", "Class `(LocalFile|)CodeReference", dg.BetaWarning)
        source = dg.LocalFileCodeReference(file_path=path, line_number=int(line))
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[source])}


def source_assets(graph: Graph) -> list[dg.AssetSpec]:
    """What bronze is made from: topics and their subjects, or what another source has instead."""
    return [
        asset_spec(graph, key_of(one.key), one.description, group_name="sources", kinds=set(one.kinds))
        for one in class_of(graph.settings).upstreams(graph.settings)
    ]


def operations(graph: Graph, sources: Sequence[dg.AssetKey]) -> list[dg.AssetSpec]:
    """The event log, the schema archive, and what the source keeps; nothing without a lakehouse."""
    lakehouse = lakehouse_of(graph.settings)
    if lakehouse is None:
        return []
    specs = [
        (event_log_table(lakehouse), [graph.keys.unified]),
        (SchemaArchive(lakehouse).declaration, sources),
    ]
    specs += [(table, sources) for one in settings_or_each(graph.settings) for table in class_of(one).tables(lakehouse)]
    return [own_table_spec(graph, made.table, made.schema, made.description, deps) for made, deps in specs]
