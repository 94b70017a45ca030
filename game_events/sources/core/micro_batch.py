"""The next slice of a source: contiguous, bounded, fair between lanes, whichever topics they are of.

Guarantee: slice after slice, each planned from the end of the one before, covers every offset once; what cannot be read any
more is a gap of the slice, never left out in silence.
"""

from __future__ import annotations

from game_events.errors import DataError
from game_events.sources.core.source import Gap, MicroBatch, Offsets, SourceSnapshot, Split


def plan_micro_batch(now: SourceSnapshot, start: Offsets, until: Offsets, max_records: int) -> MicroBatch | None:
    """The next slice: from `start` towards `until`, shared between lanes by their backlog.

    Args:
        now: the source.
        start: lane -> next position to read; of a lane that is not in it, all: its partition was added, or the topic is new.
        until: lane -> where to stop; of a lane that is not in it, the source's end.
        max_records: positions of the slice at most, all lanes together. With fewer than there are lanes to read, they take
            turns.

    Returns:
        the slice with its gaps, for whoever decides whether to go on past them; None if there is nothing to read or pass.

    Raises:
        DataError: a topic is shorter than `start`, as after a broker lost data: what comes now would have old offsets.
    """
    gaps: list[Gap] = []
    begin: Offsets = {}
    for lane, end in sorted(now.latest.items()):
        wanted = start.get(lane, 0)
        if wanted > end:
            raise DataError(
                f"{lane}: bronze is at {wanted}, the topic ends at {end}: the broker has lost records, and "
                "new ones get offsets that bronze has already. Restore the broker's data, or make the topic anew (delete and "
                "create it): that is recognised by its id"
            )
        begin[lane] = max(wanted, now.earliest[lane])
        if begin[lane] > wanted:
            gaps.append(Gap(lane.topic, lane.topic_id, lane.partition, wanted, begin[lane]))
    backlog = {p: max(0, min(until.get(p, end), end) - begin[p]) for p, end in now.latest.items()}
    take = _share({p: waiting for p, waiting in sorted(backlog.items()) if waiting}, max_records, sum(begin.values()))
    read = sorted(take.keys() | {Split(gap.topic, gap.topic_id, gap.partition) for gap in gaps})
    if not read:
        return None
    ends = {p: begin[p] + take.get(p, 0) for p in read}
    return MicroBatch({p: begin[p] for p in read}, ends, now.latest, tuple(gaps), begin, unit=now.unit)


def _share(backlog: Offsets, most: int, turn: int) -> Offsets:
    """Split -> positions to take: by backlog, each at least one, never more than `most` together."""
    total = sum(backlog.values())
    if total <= most:
        return backlog
    if most < len(backlog):
        # `turn` goes on by as many offsets as are read, so the next slice begins behind the lanes of this one.
        names = list(backlog)
        return dict.fromkeys((names[(turn + n) % len(names)] for n in range(most)), 1)
    take = {p: max(1, waiting * most // total) for p, waiting in backlog.items()}
    over = sum(take.values()) - most
    for lane in sorted(take, key=lambda p: -take[p]):
        cut = min(max(0, over), take[lane] - 1)
        take[lane] -= cut
        over -= cut
    return take
