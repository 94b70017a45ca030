"""From where on bronze reads a source: when it is new, and when a topic joins those that it reads."""

from __future__ import annotations

from collections.abc import Mapping

from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import QUARANTINE, game_of_silver
from game_events.pipeline.bronze.data_loss import refuse_unless_recorded
from game_events.pipeline.context import Pipeline
from game_events.sources.core.source import KAFKA, Gap, Offsets, SourceSnapshot

#: Offsets that stand for a place, as Spark's Kafka source has them.
FIRST, END = -2, -1


def starting_point(pipeline: Pipeline, now: SourceSnapshot) -> Offsets:
    """Lane -> first position of a new bronze: of the starting time, or where `starting_offsets` says.

    Raises:
        ConfigurationError: it names a topic, a partition or an offset that there is not.
    """
    wanted = pipeline.settings.starting_offsets
    if pipeline.settings.starting_timestamp is not None or wanted == "earliest":
        return all_there_is(pipeline, now)
    return dict(now.latest) if wanted == "latest" else _named(wanted, now)


def all_there_is(pipeline: Pipeline, now: SourceSnapshot) -> Offsets:
    """Lane -> first position that there still is, of records that are not older than the starting time if there is one."""
    when = pipeline.settings.starting_timestamp
    if when is None:
        return dict(now.earliest)
    found = pipeline.source.offsets_at(now.latest, when)
    # Records may come between the two questions: a lane without one since then has its end as it was.
    return {p: min(max(found.get(p, end), now.earliest[p]), end) for p, end in now.latest.items()}


def _named(wanted: Mapping[str, Mapping[int, int]], now: SourceSnapshot) -> Offsets:
    """Offsets that are named one by one; partitions that are not start at their first offset, so that nothing is missed."""
    start = dict(now.earliest)
    lanes = {(lane.topic, lane.partition): lane for lane in now.latest}
    for topic, offsets in wanted.items():
        for partition, offset in offsets.items():
            lane = lanes.get((topic, partition))
            if lane is None:
                raise ConfigurationError(
                    f"GAME_EVENTS_STARTING_OFFSETS names {topic}[{partition}], which is not among what is read: "
                    f"{', '.join(map(str, sorted(now.latest)))}"
                )
            if offset > now.latest[lane]:
                raise ConfigurationError(f"GAME_EVENTS_STARTING_OFFSETS: {lane} ends at {now.latest[lane]}, before {offset}")
            start[lane] = {FIRST: now.earliest[lane], END: now.latest[lane]}.get(offset, offset)
    return start


def is_gone(pipeline: Pipeline) -> bool:
    """Whether there was a bronze: tables that are made from it are there. One listing."""
    return any(name == QUARANTINE or game_of_silver(name) is not None for name in pipeline.lakehouse.names())


def not_there_any_more(pipeline: Pipeline, now: SourceSnapshot) -> tuple[Gap, ...]:
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
