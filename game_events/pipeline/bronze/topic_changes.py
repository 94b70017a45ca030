"""Changes of the set of topics: new, recreated and deleted ones.

Guarantee: a new topic is read from its first offset; a deleted one is a gap like any other, never silent.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, DataError
from game_events.pipeline.state.commit_info import bronze_commit
from game_events.pipeline.state.offsets import offsets_of, topic_id_read
from game_events.sources.core.source import FILES, TABLE, Gap, Offsets, SourceSnapshot, Split

#: Newest commits that are searched for one that names the topics: nearly always one small file is read.
HISTORY = (1, 8, 100)


@dataclass
class Changes:
    """Changes of the topics since bronze's last micro-batch.

    Attributes:
        joined: names of topics that bronze has never read.
        start: split -> first offset, of splits without an offset in bronze that do not start at 0.
        settle: splits that a commit has to give an offset, whether it reads them or not.
        gaps: offsets after those that bronze has read, of topics that were deleted or recreated. Topics that the settings do
            not name any more have none: they can be named again.
    """

    joined: list[str] = field(default_factory=list)
    start: Offsets = field(default_factory=dict)
    settle: list[Split] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        """Whether a commit has to record a change."""
        return bool(self.settle or self.gaps)


def changes(settings: Settings, handle: DeltaTable, now: SourceSnapshot, reached: Offsets) -> Changes:
    """Compare the source's topics with bronze's (`reached`: its next offsets); at most a small file is read."""
    read = {_topic_of(split) for split in reached}
    new = {topic: list(splits) for topic, splits in groupby(sorted(now.latest), _topic_of) if topic not in read}
    # Topics that are named and all there need no history: only with a pattern may a topic be deleted unnoticed.
    known = topics_known(handle) if new or settings.kafka_topic_pattern is not None else {}
    if known:
        _refuse_another_source(known, now)
    # An added partition is read from 0; a newly assigned one, or one of a new topic, from its first offset.
    added = now.latest.keys() - reached.keys() if settings.kafka_assign else set()
    found = Changes(start={split: now.earliest[split] for split in added if _topic_of(split) in read})
    for (topic, topic_id, kind), splits in new.items():
        before = topic_id_read(handle, topic, kind)
        if before == topic_id:
            continue
        found.settle += splits
        if before is None:
            found.joined.append(topic)
            found.start |= {split: now.earliest[split] for split in splits}
        elif not known or (topic in known and known[topic].topic_id == before):
            found.gaps += _rest(handle, topic, before, splits)
    there = {split.topic for split in now.latest}
    for topic, split in sorted(known.items()):
        if topic not in there and _wanted(settings, topic):
            found.gaps += _rest(handle, topic, split.topic_id)
    return found


def _refuse_another_source(known: Mapping[str, Split], now: SourceSnapshot) -> None:
    """Refuse a topic beside a table that was made from it: bronze would have the records twice.

    Raises:
        ConfigurationError: the settings name another table than bronze was made from, or a table instead of topics.
        DataError: the table has other rows than those that bronze was made from.
    """
    before = {(split.kind, split.topic): split.topic_id for split in known.values()}
    tables = {(split.kind, split.topic): split.topic_id for split in now.latest if split.kind == TABLE}
    if not tables and not any(kind == TABLE for kind, _ in before):
        return
    if tables.keys() != before.keys():
        raise ConfigurationError(
            f"bronze_events was made from {', '.join(sorted(name for _, name in before))}, and the settings name "
            f"{', '.join(sorted({split.topic for split in now.latest}))}: one bronze has one source. Set "
            "GAME_EVENTS_LAKEHOUSE to another folder, or GAME_EVENTS_SOURCE_TABLE and the topics back"
        )
    changed = [name for (kind, name), topic_id in tables.items() if before[kind, name] != topic_id]
    if changed:
        raise DataError(
            f"{changed[0]} has other rows than those that bronze_events was made from: it was refreshed fully, restored or "
            "recreated. Nothing was read: replace this pipeline's bronze, too (`game-events run --full-refresh bronze`, "
            "with GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH=true)"
        )


def topics_known(handle: DeltaTable) -> Mapping[str, Split]:
    """Topic -> one of its splits, by the information of bronze's newest commit that names topics; empty if none is left."""
    for limit in HISTORY:
        for entry in handle.history(limit):
            note = bronze_commit(entry)
            if note is not None and note.known:
                return note.known
    return {}


def _topic_of(split: Split) -> tuple[str, str, str]:
    return split.topic, split.topic_id, split.kind


def _wanted(settings: Settings, topic: str) -> bool:
    """Whether the settings name a topic of Kafka."""
    if settings.source_table is not None or settings.source == FILES:
        return False
    pattern = settings.kafka_topic_pattern
    return topic in settings.kafka_topics if pattern is None else re.fullmatch(pattern, topic) is not None


def _rest(handle: DeltaTable, topic: str, topic_id: str, splits: list[Split] | None = None) -> list[Gap]:
    """Gaps for the offsets of a deleted topic after those that bronze has read."""
    reached = offsets_of(handle, topic, topic_id, (split.partition for split in splits or ()))
    return [Gap(topic, topic_id, split.partition, offset, None) for split, offset in reached.items()]
