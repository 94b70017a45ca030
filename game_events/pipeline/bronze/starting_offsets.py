"""First offsets of a new bronze."""

from collections.abc import Mapping

from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import QUARANTINE, game_of_silver
from game_events.pipeline.bronze.data_loss import refuse_unless_recorded
from game_events.pipeline.context import Pipeline
from game_events.sources.core.source import KAFKA, Gap, Offsets, SourceSnapshot

#: Offsets with a special meaning, as in Spark's Kafka source.
FIRST, END = -2, -1


def starting_point(pipeline: Pipeline, now: SourceSnapshot) -> Offsets:
    """Split -> first offset of a new bronze, by the settings `starting_timestamp` or `starting_offsets`.

    Raises:
        ConfigurationError: the setting names a topic, a partition or an offset that does not exist.
    """
    wanted = pipeline.settings.starting_offsets
    if pipeline.settings.starting_timestamp is not None or wanted == "earliest":
        return all_there_is(pipeline, now)
    return dict(now.latest) if wanted == "latest" else _named(wanted, now)


def all_there_is(pipeline: Pipeline, now: SourceSnapshot) -> Offsets:
    """Split -> first existing offset, of records that are not older than the starting time if one is set."""
    when = pipeline.settings.starting_timestamp
    if when is None:
        return dict(now.earliest)
    found = pipeline.source.offsets_at(now.latest, when)
    # Records may arrive between the two requests: a split without one since the starting time begins at its old end.
    return {p: min(max(found.get(p, end), now.earliest[p]), end) for p, end in now.latest.items()}


def _named(wanted: Mapping[str, Mapping[int, int]], now: SourceSnapshot) -> Offsets:
    """Offsets named one by one; other partitions start at their first offset."""
    start = dict(now.earliest)
    splits = {(split.topic, split.partition): split for split in now.latest}
    for topic, offsets in wanted.items():
        for partition, offset in offsets.items():
            split = splits.get((topic, partition))
            if split is None:
                raise ConfigurationError(
                    f"GAME_EVENTS_STARTING_OFFSETS names {topic}[{partition}], which is not among what is read: "
                    f"{', '.join(map(str, sorted(now.latest)))}"
                )
            if offset > now.latest[split]:
                raise ConfigurationError(f"GAME_EVENTS_STARTING_OFFSETS: {split} ends at {now.latest[split]}, before {offset}")
            start[split] = {FIRST: now.earliest[split], END: now.latest[split]}.get(offset, offset)
    return start


def is_gone(pipeline: Pipeline) -> bool:
    """Whether bronze was deleted: tables that are made from it exist. One listing."""
    return any(name == QUARANTINE or game_of_silver(name) is not None for name in pipeline.lakehouse.names())


def not_there_any_more(pipeline: Pipeline, now: SourceSnapshot) -> tuple[Gap, ...]:
    """Gaps for records that a deleted bronze may have had and that have expired in Kafka.

    With a starting time, expired records cannot be distinguished from skipped ones, so no gap is reported.

    Raises:
        DataError: there is a gap, and the setting does not allow to skip it.
    """
    if pipeline.settings.starting_timestamp is not None:
        return ()
    first = {split: at for split, at in sorted(now.earliest.items()) if at and split.kind == KAFKA}
    gaps = tuple(Gap(split.topic, split.topic_id, split.partition, 0, at) for split, at in first.items())
    if gaps:
        what = f"{pipeline.bronze.name} is gone (put the table back, if there is a copy), and so are records"
        refuse_unless_recorded(pipeline.settings, gaps, None, what)
    return gaps
