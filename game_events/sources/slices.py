"""The next slice of a topic: contiguous, bounded, fair between partitions.

Guarantee: slice after slice, each planned from the end of the one before, covers every offset once; what cannot be read any
more is a gap of the slice, never left out in silence.
"""

from __future__ import annotations

from game_events.errors import DataError
from game_events.sources.kafka import Gap, Offsets, Slice, TopicOffsets


def plan_slice(now: TopicOffsets, start: Offsets, until: Offsets, max_records: int) -> Slice | None:
    """The next slice: from `start` towards `until`, shared between partitions by their backlog.

    Args:
        now: the topic.
        start: partition -> next offset to read; of a partition that is not in it, all: it was added, or the topic is new.
        until: partition -> where to stop; of a partition that is not in it, the topic's end.
        max_records: offsets of the slice at most, all partitions together. With fewer than there are partitions to read,
            they take turns.

    Returns:
        the slice with its gaps, for whoever decides whether to go on past them; None if there is nothing to read or pass.

    Raises:
        DataError: the topic is shorter than `start`, as after a broker lost data: what comes now would have old offsets.
    """
    gaps: list[Gap] = []
    begin: Offsets = {}
    for partition, end in sorted(now.latest.items()):
        wanted = start.get(partition, 0)
        if wanted > end:
            raise DataError(
                f"{now.topic}[{partition}]: bronze is at {wanted}, the topic ends at {end}: the broker has lost records, and "
                "new ones get offsets that bronze has already. Restore the broker's data, or make the topic anew (delete and "
                "create it): that is recognised by its id"
            )
        begin[partition] = max(wanted, now.earliest[partition])
        if begin[partition] > wanted:
            gaps.append(Gap(now.topic, now.topic_id, partition, wanted, begin[partition]))
    backlog = {p: max(0, min(until.get(p, end), end) - begin[p]) for p, end in now.latest.items()}
    take = _share({p: waiting for p, waiting in sorted(backlog.items()) if waiting}, max_records, sum(begin.values()))
    read = sorted(take.keys() | {gap.partition for gap in gaps})
    if not read:
        return None
    ends = {p: begin[p] + take.get(p, 0) for p in read}
    return Slice(now.topic, now.topic_id, {p: begin[p] for p in read}, ends, now.latest, tuple(gaps), begin)


def _share(backlog: Offsets, most: int, turn: int) -> Offsets:
    """Partition -> offsets to take: by backlog, each partition at least one, never more than `most` together."""
    total = sum(backlog.values())
    if total <= most:
        return backlog
    if most < len(backlog):
        # `turn` goes on by as many offsets as are read, so the next slice begins behind the partitions of this one.
        names = list(backlog)
        return dict.fromkeys((names[(turn + n) % len(names)] for n in range(most)), 1)
    take = {p: max(1, waiting * most // total) for p, waiting in backlog.items()}
    over = sum(take.values()) - most
    for partition in sorted(take, key=lambda p: -take[p]):
        cut = min(max(0, over), take[partition] - 1)
        take[partition] -= cut
        over -= cut
    return take
