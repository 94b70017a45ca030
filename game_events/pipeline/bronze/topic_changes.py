"""Topics that come and go: which join bronze's, which were made anew, which are not there any more.

Guarantee: a topic that joins is read from the first offset it has; one that goes is a gap like any other, never silent.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, DataError
from game_events.pipeline.state.commit_info import bronze_commit
from game_events.pipeline.state.offsets import offsets_of, topic_id_read
from game_events.sources.core.source import FILES, TABLE, Gap, Offsets, SourceSnapshot, Split

#: Newest commits that are looked through for one that names the topics: nearly always one small file is read.
HISTORY = (1, 8, 100)


@dataclass(frozen=True)
class Changes:
    """What is different about the topics since bronze's last slice.

    Attributes:
        joined: names of topics that bronze has never read.
        start: lane -> where it starts, of lanes that bronze has no position of and that do not start at 0.
        settle: lanes that a commit has to give a position to, whether it reads them or not.
        gaps: what topics that are gone, or were made anew, may have had behind what bronze has read. Of topics that the
            settings do not name any more there is none: they can be named again.
    """

    joined: tuple[str, ...] = ()
    start: Offsets = field(default_factory=dict)
    settle: tuple[Split, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def anything(self) -> bool:
        """Whether a commit has to tell of it."""
        return bool(self.settle or self.gaps)


def changes(settings: Settings, handle: DeltaTable, now: SourceSnapshot, reached: Offsets) -> Changes:
    """Compare the topics that there are with those that bronze knows; at most a small file is read.

    Args:
        settings: which topics are wanted.
        handle: bronze.
        now: the source as it is.
        reached: lane -> next position, by bronze's transactions.
    """
    topics = _by_topic(now)
    # What is named and all there has no need of the notes: only with a pattern may a topic go without a word.
    named = settings.kafka_topic_pattern is None and all(any(lane in reached for lane in of) for of in topics.values())
    known = {} if named else topics_known(handle)
    _refuse_another_source(known, now)
    joined: list[str] = []
    start: Offsets = {}
    settle: list[Split] = []
    gaps: list[Gap] = []
    for (topic, topic_id, kind), lanes in topics.items():
        if any(lane in reached for lane in lanes):
            # A partition that was added is read from 0; one that is assigned from now on was not bronze's until now.
            start |= {lane: now.earliest[lane] for lane in lanes if settings.kafka_assign and lane not in reached}
            continue
        before = topic_id_read(handle, topic, kind)
        if before == topic_id:
            continue
        settle += lanes
        if before is None:
            joined.append(topic)
            start |= {lane: now.earliest[lane] for lane in lanes}
        elif not known or (topic in known and known[topic].topic_id == before):
            gaps += _rest(handle, topic, before, lanes)
    there = {lane.topic for lane in now.latest}
    gone = {topic: lane.topic_id for topic, lane in known.items() if topic not in there}
    for topic in sorted(topic for topic in gone if _wanted(settings, topic)):
        gaps += _rest(handle, topic, gone[topic])
    return Changes(tuple(joined), start, tuple(settle), tuple(gaps))


def _refuse_another_source(known: Mapping[str, Split], now: SourceSnapshot) -> None:
    """Records of a topic and of a table that was made from it are the same ones: a bronze with both would have them twice.

    Raises:
        ConfigurationError: the settings name another table than bronze was made from, or a table instead of topics.
        DataError: the table has other rows than those that bronze was made from.
    """
    before = {(lane.kind, lane.topic): lane.topic_id for lane in known.values()}
    tables = {(lane.kind, lane.topic): lane.topic_id for lane in now.latest if lane.kind == TABLE}
    if not before or (not tables and not any(kind == TABLE for kind, _ in before)):
        return
    if tables.keys() != before.keys():
        raise ConfigurationError(
            f"bronze_events was made from {', '.join(sorted(name for _, name in before))}, and the settings name "
            f"{', '.join(sorted({lane.topic for lane in now.latest}))}: one bronze has one source. Set "
            "GAME_EVENTS_LAKEHOUSE to another folder, or GAME_EVENTS_SOURCE_TABLE and the topics back"
        )
    changed = [name for (kind, name), topic_id in tables.items() if before[kind, name] != topic_id]
    if changed:
        raise DataError(
            f"{changed[0]} has other rows than those that bronze_events was made from: it was refreshed fully, restored or "
            "made anew. Nothing was read: replace this pipeline's bronze, too (`game-events run --full-refresh bronze`, "
            "with GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH=true)"
        )


def topics_known(handle: DeltaTable) -> Mapping[str, Split]:
    """Topic -> a lane of it, of those that bronze's newest slice knew of, by its note; none if no note is left."""
    for limit in HISTORY:
        for entry in handle.history(limit):
            note = bronze_commit(entry)
            if note is not None and note.known:
                return note.known
    return {}


def _by_topic(now: SourceSnapshot) -> Mapping[tuple[str, str, str], list[Split]]:
    found: dict[tuple[str, str, str], list[Split]] = defaultdict(list)
    for lane in sorted(now.latest):
        found[lane.topic, lane.topic_id, lane.kind].append(lane)
    return found


def _wanted(settings: Settings, topic: str) -> bool:
    """Whether the settings name a topic of Kafka."""
    if settings.source_table is not None or settings.source == FILES:
        return False
    pattern = settings.kafka_topic_pattern
    return topic in settings.kafka_topics if pattern is None else re.fullmatch(pattern, topic) is not None


def _rest(handle: DeltaTable, topic: str, topic_id: str, lanes: list[Split] | None = None) -> list[Gap]:
    """What a topic may have had behind the offsets that bronze has read."""
    reached = offsets_of(handle, topic, topic_id, (lane.partition for lane in lanes or ()))
    return [Gap(topic, topic_id, lane.partition, offset, None) for lane, offset in reached.items()]
