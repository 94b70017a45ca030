"""Owners, tags and places of the assets, from the settings."""

from collections.abc import Iterable

import dagster as dg

from game_events.assets.keys import UNIFIED_KEY
from game_events.errors import ConfigurationError
from game_events.lakehouse.labels import Labels
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse, layer_of
from game_events.settings import Settings

#: Assets that are one table each, by their own name.
_ONE_TABLE = frozenset({BRONZE, QUARANTINE, UNIFIED_KEY.path[-1]})


def labelled(
    settings: Settings, assets: Iterable[dg.AssetsDefinition | dg.AssetSpec]
) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """The assets as the settings describe them: what these do not say stays as it is."""
    labels, lakehouse = Labels.of(settings), _lakehouse(settings)

    def label(spec: dg.AssetSpec) -> dg.AssetSpec:
        name = spec.key.path[-1]
        # The topic and its subject are nobody's table.
        layer = layer_of(name) if len(spec.key.path) == 1 else "all"
        owners, tags = labels.of_layer(layer)
        metadata = dict(spec.metadata)
        if lakehouse is not None and name in _ONE_TABLE and len(spec.key.path) == 1:
            metadata |= {"dagster/uri": lakehouse.table(name).uri, "dagster/table_name": qualified(settings, name)}
        return spec.replace_attributes(owners=list(owners) or spec.owners, tags={**spec.tags, **dict(tags)}, metadata=metadata)

    return list(dg.map_asset_specs(label, list(assets)))


def _lakehouse(settings: Settings) -> Lakehouse | None:
    """The lakehouse; None where it cannot be one: the project loads all the same, and each run says what is wrong."""
    try:
        return Lakehouse.of(settings)
    except ConfigurationError:
        return None


def qualified(settings: Settings, table: str) -> str:
    """A table's name as its readers know it: with the catalog's database, where it is registered in one."""
    return f"{settings.catalog}.{table}" if settings.catalog else table
