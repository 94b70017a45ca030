"""From where on a new bronze reads the topic."""

from __future__ import annotations

from game_events.pipeline.context import Pipeline
from game_events.sources.kafka import Offsets, TopicOffsets


def starting_point(pipeline: Pipeline, topic: TopicOffsets) -> Offsets:
    """Partition -> first offset of a new bronze: of the starting time, or where `starting_offsets` says."""
    if pipeline.settings.starting_timestamp is not None or pipeline.settings.starting_offsets == "earliest":
        return all_there_is(pipeline, topic)
    return topic.latest


def all_there_is(pipeline: Pipeline, topic: TopicOffsets) -> Offsets:
    """Partition -> first offset that Kafka still has, of records that are not older than the starting time if there is one."""
    when = pipeline.settings.starting_timestamp
    if when is None:
        return topic.earliest
    found = pipeline.topic.offsets_at(when)
    # Records may come between the two questions: a partition without one since then has its end as it was.
    return {p: min(max(found.get(p, end), topic.earliest[p]), end) for p, end in topic.latest.items()}
