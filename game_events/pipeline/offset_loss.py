"""Records that Kafka does not have any more and bronze has not read: the run stops, or goes on and says what is missing.

Guarantee: never in silence. Which of the two is a setting; with `record_gap` the commit that passes over the offsets carries
them in its note, and lands only if bronze still stands where the gap begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.pipeline.context import Pipeline
from game_events.pipeline.topic_identity import offsets_of, partition_app, topic_id_read
from game_events.settings import Settings
from game_events.sources.kafka import Gap, Offsets, Slice, TopicOffsets
from game_events.sources.slices import plan_slice

SETTING = "GAME_EVENTS_ON_DATA_LOSS"
#: Gaps that a message names one by one.
SHOWN = 8


def next_offsets(handle: DeltaTable | None, topic: TopicOffsets) -> Offsets:
    """Partition -> next offset, as a table's own progress has it; partitions it never saw are left out."""
    found: Offsets = {}
    if handle is not None:
        for partition in topic.latest:
            offset = handle.transaction_version(partition_app(topic.topic, topic.topic_id, partition))
            if offset is not None:
                found[partition] = offset
    return found


def next_slice(settings: Settings, handle: DeltaTable, now: TopicOffsets, until: Offsets, most: int) -> Slice | None:
    """The next slice of the topic for bronze, past what is gone if the setting says so.

    Args:
        settings: the settings.
        handle: bronze.
        now: the topic as it is.
        until: partition -> where the run is to stop.
        most: records of the slice.

    Raises:
        DataError: offsets are gone that bronze has not read, and the setting says `stop`; or the topic lost its newest records.
    """
    reached = next_offsets(handle, now)
    rest = () if reached else _rest_of_the_topic_before(handle, now)
    part = plan_slice(now, reached, until, most)
    if rest:
        # Even if the new topic is empty: the commit that says so is what makes bronze know it.
        part = part or Slice(now.topic, now.topic_id, dict(now.earliest), dict(now.earliest), now.latest)
        part = replace(part, gaps=(*rest, *part.gaps))
    if part is not None and part.gaps:
        refuse_unless_recorded(settings, part.gaps, now)
    return part


def _rest_of_the_topic_before(handle: DeltaTable, now: TopicOffsets) -> tuple[Gap, ...]:
    """What a topic of the same name may have had behind the offsets that bronze has read."""
    before = topic_id_read(handle, now.topic)
    if before is None or before == now.topic_id:
        return ()
    reached = offsets_of(handle, now.topic, before, now.latest)
    return tuple(Gap(now.topic, before, p, offset, None) for p, offset in reached.items())


def refuse_unless_recorded(
    settings: Settings, gaps: tuple[Gap, ...], now: TopicOffsets, what: str = "records are gone"
) -> None:
    """Stop before records are passed over, unless the setting says to go on.

    Raises:
        DataError: names what is lost, and the setting.
    """
    if settings.on_data_loss == "record_gap":
        return
    named = "; ".join(str(gap) for gap in gaps[:SHOWN]) + (f"; and {len(gaps) - SHOWN} more" if len(gaps) > SHOWN else "")
    again = f" It was made again, with id {now.topic_id}." if any(gap.end is None for gap in gaps) else ""
    raise DataError(
        f"{what} that Kafka does not have any more and bronze has not: {named}.{again} Nothing was read. To go on with what "
        f"there is and have the gap recorded, set {SETTING}=record_gap; so that it does not happen again, raise the topic's "
        "retention"
    )


def told(gaps: tuple[Gap, ...]) -> list[str]:
    """Sentences for a run that went on past them."""
    return [f"lost before they were read: {gap}" for gap in gaps]


def went_meanwhile(pipeline: Pipeline, part: Slice) -> bool:
    """Whether a slice can no longer be read as it was planned: its first records expired, or the topic is another one.

    Raises:
        ConfigurationError, TransientError: the topic is gone, or the broker does not answer.
    """
    now = pipeline.topic.offsets()
    if now.topic_id != part.topic_id:
        return True
    read: Mapping[int, int] = {p: start for p, start in part.start.items() if part.end[p] > start}
    return any(start < now.earliest[p] for p, start in read.items())
