"""A bronze that was deleted: it is made again from the topic, and what Kafka has forgotten is not passed over in silence."""

from __future__ import annotations

from game_events.lakehouse.tables import QUARANTINE, game_of_silver
from game_events.pipeline.context import Pipeline
from game_events.pipeline.offset_loss import refuse_unless_recorded
from game_events.sources.kafka import Gap, TopicOffsets


def is_gone(pipeline: Pipeline) -> bool:
    """Whether there was a bronze: tables that are made from it are there. One listing."""
    return any(name == QUARANTINE or game_of_silver(name) is not None for name in pipeline.lakehouse.names())


def not_there_any_more(pipeline: Pipeline, topic: TopicOffsets) -> tuple[Gap, ...]:
    """What the old bronze may have had and Kafka does not have any more.

    With a starting time nobody knows what is older than it and what has expired: then there is no gap to tell of.

    Raises:
        DataError: there is some, and the setting does not say to go on without it.
    """
    if pipeline.settings.starting_timestamp is not None:
        return ()
    gaps = tuple(Gap(topic.topic, topic.topic_id, p, 0, first) for p, first in sorted(topic.earliest.items()) if first)
    if gaps:
        what = f"{pipeline.bronze.name} is gone (put the table back, if there is a copy), and so are records"
        refuse_unless_recorded(pipeline.settings, gaps, topic, what)
    return gaps
