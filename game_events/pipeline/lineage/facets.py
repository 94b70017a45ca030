"""Tables as OpenLineage datasets with facets, named by the specification's conventions.

Source: OpenLineage 2-0-2 and its facets; "Naming Conventions" for datasets.
"""

from urllib.parse import urlsplit

from openlineage.client import facet_v2 as ol
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.naming.dataset import Kafka, LocalFileSystem

from game_events.config.gold_columns import simple_call
from game_events.config.settings import Settings
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse, gold_name, silver_name
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.aggregates import expressions
from game_events.pipeline.reporting.result import RunResult
from game_events.pipeline.reporting.tables import TableReport
from game_events.sources.core.source import FILES

#: Most inputs in the column lineage of the unified table: with thousands of games an event would have megabytes.
COLUMN_INPUTS = 50
_PORT = "9092"


def _place(uri: str) -> tuple[str, str]:
    """Namespace and name of a table's files: `file` and the path, or the store's bucket and the path in it."""
    parts = urlsplit(uri)
    if "://" not in uri:
        local = LocalFileSystem(uri)
        return local.get_namespace(), local.get_name()
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _source_input(settings: Settings, topic: str, report: RunResult) -> InputDataset:
    """Input that was read: a topic, a folder of files, or another pipeline's table."""
    if settings.source == FILES or settings.source_table is not None:
        namespace, name = _place(topic)
    else:
        host, _, port = settings.kafka_bootstrap_servers.split(",")[0].strip().rpartition("://")[2].rpartition(":")
        named = Kafka(host or port, port if host else _PORT, topic)
        namespace, name = named.get_namespace(), named.get_name()
    rows = sum(end - start for split, (start, end) in report.offsets.items() if split.topic == topic)
    statistics = ol.input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=rows)
    source = ol.datasource_dataset.DatasourceDatasetFacet(namespace, namespace)
    return InputDataset(namespace, name, facets={"dataSource": source}, inputFacets={"inputStatistics": statistics})


def _table_input(lakehouse: Lakehouse, name: str) -> InputDataset:
    """A table as input of another one."""
    return InputDataset(*_place(lakehouse.table(name).uri), facets={"storage": _storage()})


def output(pipeline: Pipeline, entry: TableReport, inputs: list[InputDataset]) -> OutputDataset:
    """A table that changed, as output."""
    table = pipeline.lakehouse.table(pipeline.lakehouse.key(entry.table))
    namespace, name = _place(table.uri)
    root = pipeline.lakehouse.root
    facets: dict[str, ol.DatasetFacet] = {
        "schema": ol.schema_dataset.SchemaDatasetFacet(
            [
                ol.schema_dataset.SchemaDatasetFacetFields(column, kind, entry.comments.get(column), number)
                for number, (column, kind) in enumerate(entry.columns, start=1)
            ]
        ),
        "dataSource": ol.datasource_dataset.DatasourceDatasetFacet(namespace, root if "://" in root else f"file://{root}"),
        "storage": _storage(),
        "version": ol.dataset_version_dataset.DatasetVersionDatasetFacet(str(entry.version)),
    }
    if entry.new:
        changed = ol.lifecycle_state_change_dataset.LifecycleStateChange.CREATE
        facets["lifecycleStateChange"] = ol.lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(changed)
    if table.owners:
        facets["ownership"] = ol.ownership_dataset.OwnershipDatasetFacet([ol.ownership_dataset.Owner(o) for o in table.owners])
    if table.tags:
        tags = [ol.tags_dataset.TagsDatasetFacetFields(key, value, "USER") for key, value in table.tags]
        facets["tags"] = ol.tags_dataset.TagsDatasetFacet(tags)
    columns = _column_lineage(pipeline, entry, inputs)
    if columns:
        facets["columnLineage"] = ol.column_lineage_dataset.ColumnLineageDatasetFacet(columns)
    statistics = ol.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=entry.rows)
    return OutputDataset(namespace, name, facets=facets, outputFacets={"outputStatistics": statistics})


def inputs_of(pipeline: Pipeline, entry: TableReport, report: RunResult) -> list[InputDataset]:
    """Inputs of a table's new rows; of the unified table: gold tables that this run changed."""
    lakehouse = pipeline.lakehouse
    if entry.layer in ("bronze", "quarantine"):
        found = [_source_input(pipeline.settings, topic, report) for topic in report.topics]
        replayed = entry.layer == "bronze" and report.replayed
        return [*found, _table_input(lakehouse, QUARANTINE)] if replayed else found
    if entry.layer == Layer.SILVER:
        return [_table_input(lakehouse, BRONZE)]
    if entry.layer == Layer.UNIFIED:
        games = [t.game for t in report.of(Layer.GOLD) if t.error is None and t.game is not None]
        return [_table_input(lakehouse, gold_name(game)) for game in games]
    return [_table_input(lakehouse, silver_name(entry.game))] if entry.game is not None else []


def _column_lineage(
    pipeline: Pipeline, entry: TableReport, inputs: list[InputDataset]
) -> dict[str, ol.column_lineage_dataset.Fields]:
    """Input columns of each column; none for custom transformations and aggregates, where they are not known."""
    settings = pipeline.settings
    whole = inputs if len(inputs) <= COLUMN_INPUTS else []
    names = [name for name, _ in entry.columns]
    if entry.layer == Layer.UNIFIED:
        return {name: _fields(whole, name) for name in names if whole and name != settings.entity_column}
    if entry.layer == Layer.SILVER and not any(t.applies_to(entry.game or "") for t in pipeline.extensions.transformations):
        return {name: _fields(whole, name) for name in names}
    if entry.layer == Layer.GOLD:
        key = settings.key_column
        known = {key: _fields(whole, key)}
        for name, sql in (settings.gold_columns or expressions(settings)).items():
            function, of = simple_call(sql) or ("", "")
            if function:
                # Rows are counted by their key.
                of = key if of == "*" or of.isdigit() else of
                known[name] = _fields(whole, of, "AGGREGATION", function.upper())
        return {name: known[name] for name in names if name in known}
    return {}


def _fields(
    inputs: list[InputDataset], column: str, subtype: str = "IDENTITY", description: str = ""
) -> ol.column_lineage_dataset.Fields:
    how = ol.column_lineage_dataset.Transformation(type="DIRECT", subtype=subtype, description=description, masking=False)
    return ol.column_lineage_dataset.Fields(
        [ol.column_lineage_dataset.InputField(i.namespace, i.name, column, [how]) for i in inputs]
    )


def _storage() -> ol.storage_dataset.StorageDatasetFacet:
    return ol.storage_dataset.StorageDatasetFacet("delta", "parquet")
