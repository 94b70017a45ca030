"""External assets of the tables about the pipeline itself that people query."""

from collections.abc import Sequence

import dagster as dg
import pyarrow as pa

from game_events.decoding.core.column_types import type_name
from game_events.lakehouse.descriptions import comments_of, described
from game_events.lakehouse.system_tables.event_log import event_log_table
from game_events.lakehouse.system_tables.schema_archive import SchemaArchive
from game_events.lakehouse.tables import Table
from game_events.orchestration.assets.specs import lakehouse_of, table_spec
from game_events.orchestration.graph import Graph
from game_events.sources.files.file_log import FileLog

OPERATIONS = "operations"


def operations(graph: Graph, sources: Sequence[dg.AssetKey]) -> list[dg.AssetSpec]:
    """The event log, the schema archive and, with files as the source, the list of files; nothing without a lakehouse."""
    lakehouse = lakehouse_of(graph.settings)
    if lakehouse is None:
        return []
    found = [
        (event_log_table(lakehouse), [graph.keys.unified]),
        (SchemaArchive(lakehouse).declaration, sources),
    ]
    if graph.settings.source == "files":
        found.append((FileLog(lakehouse).declaration, sources))
    return [own_table_spec(graph, made.table, made.schema, made.description, deps) for made, deps in found]


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
        group_name=OPERATIONS,
        kinds={"deltalake"},
        deps=list(deps),
        metadata={"dagster/column_schema": dg.TableSchema(columns)},
    )
