"""A bronze that was deleted: it is made again from the topic, and what Kafka has forgotten is not passed over in silence."""

from __future__ import annotations

from game_events.lakehouse.tables import QUARANTINE, game_of_silver
from game_events.pipeline.context import Pipeline
from game_events.pipeline.offset_loss import refuse_unless_recorded
from game_events.sources.source import KAFKA, Gap, Seen


def is_gone(pipeline: Pipeline) -> bool:
    """Whether there was a bronze: tables that are made from it are there. One listing."""
    return any(name == QUARANTINE or game_of_silver(name) is not None for name in pipeline.lakehouse.names())


def not_there_any_more(pipeline: Pipeline, now: Seen) -> tuple[Gap, ...]:
    """What the old bronze may have had and Kafka does not have any more.

    With a starting time nobody knows what is older than it and what has expired: then there is no gap to tell of.

    Raises:
        DataError: there is some, and the setting does not say to go on without it.
    """
    if pipeline.settings.starting_timestamp is not None:
        return ()
    first = {lane: at for lane, at in sorted(now.earliest.items()) if at and lane.kind == KAFKA}
    gaps = tuple(Gap(lane.topic, lane.topic_id, lane.partition, 0, at) for lane, at in first.items())
    if gaps:
        what = f"{pipeline.bronze.name} is gone (put the table back, if there is a copy), and so are records"
        refuse_unless_recorded(pipeline.settings, gaps, None, what)
    return gaps
