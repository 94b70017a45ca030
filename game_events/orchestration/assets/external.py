"""External assets: what bronze is made from (topics and subjects, files, a table), and tables about the pipeline itself."""

from collections.abc import Sequence

import dagster as dg

from game_events.lakehouse.system_tables.event_log import event_log_table
from game_events.lakehouse.system_tables.schema_archive import SchemaArchive
from game_events.orchestration.assets.specs import asset_spec, own_table_spec
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import BY_PATTERN, schema_key, source_key
from game_events.orchestration.runs.own_runs import lakehouse_of
from game_events.sources.files.file_log import FileLog
from game_events.sources.files.schemas import SUBJECT
from game_events.sources.kafka.source import subject_of

#: Kind that an asset of the schema registry has; which formats its schemas have only the registry knows.
REGISTRY = "schema_registry"


def source_assets(graph: Graph) -> list[dg.AssetSpec]:
    """One asset for each topic and one for its subject; with a pattern one for all topics, and one for their subjects."""
    settings = graph.settings
    if settings.source == "files":
        return _files(graph)
    if settings.source_table is not None:
        said = f"Bronze of another pipeline, `{settings.source_table}`. External: that pipeline writes it."
        return [_source(graph, source_key(settings, settings.source_table), said, "deltalake")]
    pattern = settings.kafka_topic_pattern
    if pattern is not None:
        said = f"The Kafka topics that match `{pattern}`, those made later too."
        subjects = "The registry subjects of these topics' values. External."
        return [
            _source(graph, source_key(settings, BY_PATTERN), said, "kafka"),
            _source(graph, schema_key(settings, BY_PATTERN), subjects, REGISTRY),
        ]
    specs = []
    for topic in settings.kafka_topics:
        said = "A Kafka topic that bronze is made from. External: producers write it."
        specs += [_source(graph, source_key(settings, topic), said, "kafka"), _subject(graph, subject_of(topic))]
    return specs


def _files(graph: Graph) -> list[dg.AssetSpec]:
    """The folder or prefix, and the registry's subject if its records are decoded by one."""
    settings = graph.settings
    said = f"Files `{settings.files_pattern}` below `{settings.files_path}`. External: others put them there."
    # The kind of the files' format, where the settings name one.
    kind = {"auto": None, "jsonl": "json"}.get(settings.files_format, settings.files_format)
    folder = _source(graph, source_key(settings, settings.source_name), said, "file", *filter(None, [kind]))
    schema = settings.files_schema or ""
    return [folder, _subject(graph, schema.removeprefix(SUBJECT))] if schema.startswith(SUBJECT) else [folder]


def _subject(graph: Graph, subject: str) -> dg.AssetSpec:
    said = "The registry subject with every schema version of the values. External."
    return _source(graph, schema_key(graph.settings, subject), said, REGISTRY)


def _source(graph: Graph, key: dg.AssetKey, description: str, *kinds: str) -> dg.AssetSpec:
    return asset_spec(graph, key, description, group_name="sources", kinds=set(kinds))


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
