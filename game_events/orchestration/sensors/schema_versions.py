"""The sensor that reports new schema versions, and starts a run for them."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import dagster as dg

from game_events.decoding.core.kept_columns import kept_columns
from game_events.errors import DataError
from game_events.lakehouse.tables import Lakehouse
from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import schema_key
from game_events.orchestration.runs.tags import REASON, unused_run_key
from game_events.orchestration.sensors.ticks import Jobs, sensor
from game_events.pipeline.schemas.history import SchemaHistory, as_line, as_markdown
from game_events.schema_registry import SchemaRegistry, SubjectVersion
from game_events.sources.factory import subjects

#: Versions with their changes in one event: a tick has to stay short.
MAX_DIFFS = 10
#: Longest wait for one answer of the broker, which is asked if a pattern names the topics.
TIMEOUT_S = 5.0


#: Subject -> version number -> schema id.
Cursor = dict[str, dict[int, int]]


def read_cursor(cursor: str | None, subjects: Sequence[str]) -> Cursor:
    """What was seen. A cursor of when there was one subject only had its versions."""
    found = json.loads(cursor) if cursor else {}
    if not isinstance(found, dict):
        return {}
    if found and not any(isinstance(versions, dict) for versions in found.values()):
        found = {subjects[0]: found} if subjects else {}
    return {name: {int(number): i for number, i in versions.items()} for name, versions in found.items()}


class Difference(NamedTuple):
    """What a version changed against the one before it: in one line, and as a Markdown table."""

    line: str
    table: str


def changes_by_version(
    history: SchemaHistory, versions: list[SubjectVersion], new: list[SubjectVersion]
) -> dict[int, Difference]:
    """Version -> what it changed; of a flood of versions the newest."""
    texts = {}
    before = {later.version: earlier for earlier, later in pairwise(versions)}
    for version in new[-MAX_DIFFS:]:
        if version.version in before:
            try:
                compared = before[version.version], version
                changes = history.changes(*compared)
                said = (as_markdown(changes), history.left_out(*compared))
                texts[version.version] = Difference(as_line(changes), "\n\n".join(filter(None, said)))
            except DataError as error:
                texts[version.version] = Difference(f"not comparable: {error}", f"not comparable: {error}")
    return texts


def build_schema_versions(graph: Graph, jobs: Jobs) -> dg.SensorDefinition:
    """The sensor: it asks the registry once for each subject; `jobs`: the job that it starts first."""

    @sensor(
        graph, "A new version of a topic's subject becomes an event of its asset, and starts the job `refresh`.", 30, jobs=jobs
    )
    def schema_versions(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        events, new_texts, keys = [], [], []
        settings = graph.source.read()
        names = subjects(settings, TIMEOUT_S)
        seen = read_cursor(context.cursor, names)
        registry = SchemaRegistry(settings)
        for subject in names:
            if subject in seen and registry.newest(subject) == max(seen[subject].items(), default=None):
                continue
            versions = registry.versions(subject)
            # A number with another schema (a recreated registry) is new.
            new = [v for v in versions if seen.get(subject, {}).get(v.version) != v.schema_id]
            seen[subject] = {v.version: v.schema_id for v in versions}
            if new:
                changes = changes_by_version(
                    SchemaHistory(registry, Lakehouse.of(settings), subject, kept_columns(settings)), versions, new
                )
                events.append(_event(schema_key(settings, subject), new, changes, registry.url))
                new_texts.append(f"{subject} version {new[-1].version}")
                keys.append(f"{subject}-{'-'.join(str(v.schema_id) for v in new)}-{new[-1].version}")
        cursor = json.dumps({subject: seen[subject] for subject in names})
        if not events:
            context.update_cursor(cursor)
            known = ", ".join(f"subject {s} still has {len(seen[s])} versions" for s in names)
            return dg.SkipReason(f"no new version: {known}")
        key = "+".join(keys)
        request = dg.RunRequest(
            run_key=unused_run_key(context.instance, key),
            job_name=graph.keys.named("refresh"),
            tags={REASON: f"schema: {', '.join(new_texts)}"[:200]},
        )
        return dg.SensorResult(asset_events=events, run_requests=[request], cursor=cursor)

    return schema_versions


def _event(
    key: dg.AssetKey, new: list[SubjectVersion], changes: Mapping[int, Difference], registry: str
) -> dg.AssetMaterialization:
    newest = new[-1]
    metadata: dict[str, Any] = {
        "subject": newest.subject,
        "versions": [v.version for v in new],
        "schema_ids": [v.schema_id for v in new],
        "registry": registry,
    }
    metadata |= {f"changes_in_version_{number}": dg.MetadataValue.md(found.table) for number, found in changes.items()}
    said = "; ".join(f"version {number}: {found.line}" for number, found in changes.items())
    return dg.AssetMaterialization(
        key, description=said or None, metadata=metadata, tags={"dagster/data_version": f"{newest.version}-{newest.schema_id}"}
    )
