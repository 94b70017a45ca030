"""Owners, tags and places of the assets, from the settings."""

from collections.abc import Iterable

import dagster as dg

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.labels import Labels
from game_events.lakehouse.tables import BRONZE, QUARANTINE, UNIFIED, Lakehouse, layer_of
from game_events.orchestration.graph import Graph


def labelled(graph: Graph, assets: Iterable[dg.AssetsDefinition | dg.AssetSpec]) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """The assets as the settings describe them: what these do not say stays as it is."""
    labels, lakehouse, keys = Labels.of(graph.settings), _lakehouse(graph.settings), graph.keys
    #: Assets that are one table each.
    one = {keys.bronze: BRONZE, keys.quarantine: QUARANTINE, keys.unified: UNIFIED}

    def label(spec: dg.AssetSpec) -> dg.AssetSpec:
        # The topic and its subject are not tables.
        layer = next((layer_of(found) for found, key in keys.by_layer.items() if key == spec.key), "gold")
        layer = "gold" if spec.key == keys.unified else layer
        layer = layer if len(spec.key.path) == 1 else "all"
        owners, tags = labels.of_layer(layer)
        metadata = dict(spec.metadata)
        table = lakehouse.table(one[spec.key]) if lakehouse is not None and spec.key in one else None
        if table is not None:
            metadata |= {"dagster/uri": table.uri, "dagster/table_name": keys.table_name(table.name)}
        return spec.replace_attributes(owners=list(owners) or spec.owners, tags={**spec.tags, **dict(tags)}, metadata=metadata)

    return list(dg.map_asset_specs(label, list(assets)))


def _lakehouse(settings: Settings) -> Lakehouse | None:
    """The lakehouse; None where it cannot be one: the project loads all the same, and each run says what is wrong."""
    try:
        return Lakehouse.of(settings)
    except ConfigurationError:
        return None
