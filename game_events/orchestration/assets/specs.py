"""What every asset's page says: description, group, kinds, owners, tags, the code that makes it; and how to read a table."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from game_events.decoding.core.column_types import type_name
from game_events.lakehouse.descriptions import comments_of, described
from game_events.lakehouse.labels import EVERY, Labels
from game_events.lakehouse.tables import Table, layer_of
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import OWNERS
from game_events.orchestration.runs.own_runs import lakehouse_of

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
    name, layer = graph.settings.names.name_of(table), layer_of(table)
    lakehouse = lakehouse_of(graph.settings)
    metadata = {"dagster/table_name": graph.keys.table_name(name), **more.pop("metadata", {})}
    if lakehouse is not None:
        metadata["dagster/uri"] = lakehouse.table(table).uri
    options = {"group_name": str(layer), "kinds": {*SPARK_TABLE, str(layer)}} | more
    if "group_name" not in more:
        description += f"\n\n{_kept_by(graph)}"
    return asset_spec(graph, key, f"{description}\n\n{_how_to_read(name)}", layer, metadata=metadata, **options)


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


def _kept_by(graph: Graph) -> str:
    """What Dagster cannot show with an asset: a sensor is listed there only if its job is one of assets."""
    refresh, kafka_lag, schema_versions = map(graph.keys.named, ("refresh", "kafka_lag", "schema_versions"))
    return f"Kept up to date by the job `{refresh}`, which the sensors `{kafka_lag}` and `{schema_versions}` start."


def _how_to_read(table: str) -> str:
    """SQL to copy. The documents are files of the project: there is no address to link to."""
    query = f"SELECT * FROM {table} LIMIT 10"  # noqa: S608 - shown, not run
    return f'```sql\n{query}\n```\n\nWith `game-events sql "{query}"`, or any reader of Delta tables (docs/reading.md).'
