"""The external assets that bronze is made from: topics with their subjects, or another pipeline's table."""

from __future__ import annotations

import dagster as dg

from game_events.assets.keys import BY_PATTERN, OWNERS, schema_key, source_key
from game_events.settings import Settings
from game_events.sources.kafka import subject_of


def source_assets(settings: Settings) -> list[dg.AssetSpec]:
    """One asset for each topic and one for its subject; with a pattern one for all topics, and one for their subjects."""
    if settings.source_table is not None:
        said = f"Bronze of another pipeline, `{settings.source_table}`. External: that pipeline writes it."
        return [_spec(source_key(settings, settings.source_table), said, "deltalake")]
    pattern = settings.kafka_topic_pattern
    if pattern is not None:
        return [
            _spec(source_key(settings, BY_PATTERN), f"The Kafka topics that match `{pattern}`, those made later too.", "kafka"),
            _spec(schema_key(settings, BY_PATTERN), "The registry subjects of these topics' values. External."),
        ]
    specs = []
    for topic in settings.kafka_topics:
        said = "A Kafka topic that bronze is made from. External: producers write it."
        specs.append(_spec(source_key(settings, topic), said, "kafka"))
        said = "The registry subject with every schema version of the topic's values. External."
        specs.append(_spec(schema_key(settings, subject_of(topic)), said))
    return specs


def _spec(key: dg.AssetKey, description: str, *kinds: str) -> dg.AssetSpec:
    return dg.AssetSpec(key, description=description, group_name="sources", kinds={*kinds, "protobuf"}, owners=OWNERS)
