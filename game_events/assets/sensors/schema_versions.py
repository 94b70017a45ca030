"""The sensor that tells of new schema versions, and starts a run for them."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import dagster as dg
from deltalake.exceptions import DeltaError

from game_events.assets.keys import subject_key
from game_events.assets.run_tags import REASON
from game_events.assets.sensors.run_keys import unused_run_key
from game_events.errors import DataError, GameEventsError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schema_history import SchemaHistory, as_markdown
from game_events.settings import load_settings
from game_events.sources.registry import SchemaRegistry, SubjectVersion

#: Versions whose changes one event shows: a tick has to stay short.
MAX_DIFFS = 10


@dataclass(frozen=True)
class VersionNews:
    """What a look at the subject has found: versions that are new since the cursor, and the next cursor."""

    new: list[SubjectVersion]
    cursor: str


def seen_versions(cursor: str | None) -> dict[int, int]:
    """A cursor's versions: number -> schema id."""
    found = json.loads(cursor) if cursor else {}
    return {int(number): schema_id for number, schema_id in found.items()} if isinstance(found, dict) else {}


def version_news(cursor: str | None, versions: list[SubjectVersion]) -> VersionNews:
    """Compare a subject's versions with the cursor; a number with another schema (a registry made anew) is new."""
    seen = seen_versions(cursor)
    new = [v for v in versions if seen.get(v.version) != v.schema_id]
    return VersionNews(new, json.dumps({v.version: v.schema_id for v in versions}))


def changes_by_version(history: SchemaHistory, versions: list[SubjectVersion], new: list[SubjectVersion]) -> dict[int, str]:
    """Version -> what it changed against the one before it, as a Markdown table; of a flood of versions the newest."""
    texts = {}
    before = {later.version: earlier for earlier, later in pairwise(versions)}
    for version in new[-MAX_DIFFS:]:
        if version.version in before:
            try:
                texts[version.version] = as_markdown(history.changes(before[version.version], version))
            except DataError as error:
                texts[version.version] = f"not comparable: {error}"
    return texts


@dg.sensor(
    name="schema_versions",
    description="A new version of the topic's subject becomes an event of its asset, and starts the job `refresh`.",
    job_name="refresh",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def schema_versions(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Ask the registry once."""
    try:
        settings = load_settings()
        subject = f"{settings.kafka_topic}-value"
        registry = SchemaRegistry(settings)
        seen = seen_versions(context.cursor)
        newest_now = registry.newest(subject)
        if context.cursor and newest_now == max(seen.items(), default=None):
            return dg.SkipReason(f"subject {subject} still has {len(seen)} versions")
        versions = registry.versions(subject)
        news = version_news(context.cursor, versions)
        changes = changes_by_version(SchemaHistory(registry, Lakehouse.of(settings), subject), versions, news.new)
    except (GameEventsError, DeltaError, OSError) as error:
        return dg.SkipReason(str(error))
    if not news.new:
        context.update_cursor(news.cursor)
        return dg.SkipReason(f"subject {subject} has no new version")
    newest = news.new[-1]
    metadata: dict[str, Any] = {
        "subject": subject,
        "versions": [v.version for v in news.new],
        "schema_ids": [v.schema_id for v in news.new],
        "registry": registry.url,
    }
    metadata |= {f"changes_in_version_{number}": dg.MetadataValue.md(text) for number, text in changes.items()}
    event = dg.AssetMaterialization(
        subject_key(settings.kafka_topic),
        metadata=metadata,
        tags={"dagster/data_version": f"{newest.version}-{newest.schema_id}"},
    )
    key = f"{subject}-{'-'.join(str(v.schema_id) for v in news.new)}-{newest.version}"
    return dg.SensorResult(
        asset_events=[event],
        run_requests=[
            dg.RunRequest(run_key=unused_run_key(context.instance, key), tags={REASON: f"schema version {newest.version}"})
        ],
        cursor=news.cursor,
    )
