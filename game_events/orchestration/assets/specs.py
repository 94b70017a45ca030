"""What every asset's page says: description, group, kinds, owners, tags; of tables also where they are and how to read them."""

from typing import Any

import dagster as dg

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.labels import EVERY, Labels
from game_events.lakehouse.tables import Lakehouse, gold_name, layer_of, silver_name
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import OWNERS

SPARK_TABLE = {"spark", "deltalake"}
#: Of the hash of an aggregate's definition, as its code version.
VERSION_CHARS = 12


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
    """The asset of a table, by the table's key; of the tables of all games by `silver_of_each` or `gold_of_each`."""
    name, layer = graph.settings.names.name_of(table), layer_of(table)
    lakehouse = lakehouse_of(graph.settings)
    metadata = {"dagster/table_name": graph.keys.table_name(name), **more.pop("metadata", {})}
    if lakehouse is not None:
        metadata["dagster/uri"] = lakehouse.table(table).uri
    options = {"group_name": str(layer), "kinds": {*SPARK_TABLE, str(layer)}} | more
    return asset_spec(graph, key, f"{description}\n\n{_how_to_read(name)}", layer, metadata=metadata, **options)


def silver_of_each(graph: Graph) -> str:
    """Key of the games' silver tables, with `{game}` for the game."""
    return silver_name(f"{{{graph.settings.names.entity}}}")


def gold_of_each(graph: Graph, aggregate: str) -> str:
    """Key of an aggregate's tables, with `{game}` for the game."""
    return gold_name(f"{{{graph.settings.names.entity}}}", aggregate)


def lakehouse_of(settings: Settings) -> Lakehouse | None:
    """The lakehouse; None where it cannot be one: the project loads all the same, and each run says what is wrong."""
    try:
        return Lakehouse.of(settings)
    except ConfigurationError:
        return None


def _how_to_read(table: str) -> str:
    """SQL to copy. The documents are files of the project: there is no address to link to."""
    query = f"SELECT * FROM {table} LIMIT 10"  # noqa: S608 - shown, not run
    return f'```sql\n{query}\n```\n\nWith `game-events sql "{query}"`, or any reader of Delta tables (docs/reading.md).'
