"""Plan of the next micro-batch of a source: contiguous, bounded, shared fairly between the splits of all topics.

Guarantee: consecutive batches, each planned from the end of the one before, cover every offset once; unreadable offsets
become gaps of the batch and are never skipped silently.
"""

from game_events.errors import DataError
from game_events.sources.core.source import Gap, MicroBatch, Offsets, SourceSnapshot, Split


def plan_micro_batch(now: SourceSnapshot, start: Offsets, until: Offsets, max_records: int) -> MicroBatch | None:
    """Plan the next batch: from `start` towards `until`, shared between splits by their backlog; None: nothing to read, no gap.

    Args:
        now: the source.
        start: split -> next offset to read; splits that are not in it (a new topic or partition) are read from 0.
        until: split -> where to stop; default: the source's end.
        max_records: offsets of the batch at most, all splits together. With fewer than there are splits, they take turns.

    Raises:
        DataError: a topic is shorter than `start`, as after a broker lost data: new records would get old offsets.
    """
    gaps: list[Gap] = []
    begin: Offsets = {}
    for split, end in sorted(now.latest.items()):
        wanted = start.get(split, 0)
        if wanted > end:
            raise DataError(
                f"{split}: bronze is at {wanted}, the topic ends at {end}: the broker has lost records, and "
                "new ones get offsets that bronze has already. Restore the broker's data, or delete and recreate the topic: "
                "that is recognised by its id"
            )
        begin[split] = max(wanted, now.earliest[split])
        if begin[split] > wanted:
            gaps.append(Gap(split.topic, split.topic_id, split.partition, wanted, begin[split]))
    backlog = {p: max(0, min(until.get(p, end), end) - begin[p]) for p, end in now.latest.items()}
    take = _share({p: waiting for p, waiting in sorted(backlog.items()) if waiting}, max_records, sum(begin.values()))
    read = sorted(take.keys() | {Split(gap.topic, gap.topic_id, gap.partition) for gap in gaps})
    if not read:
        return None
    ends = {p: begin[p] + take.get(p, 0) for p in read}
    return MicroBatch({p: begin[p] for p in read}, ends, now.latest, tuple(gaps), begin, unit=now.unit)


def _share(backlog: Offsets, most: int, turn: int) -> Offsets:
    """Split -> offsets to take: by backlog, each at least one, never more than `most` together."""
    total = sum(backlog.values())
    if total <= most:
        return backlog
    if most < len(backlog):
        # `turn` grows by as many offsets as are read, so the next batch begins behind the splits of this one.
        names = list(backlog)
        return dict.fromkeys((names[(turn + n) % len(names)] for n in range(most)), 1)
    take = {p: max(1, waiting * most // total) for p, waiting in backlog.items()}
    over = sum(take.values()) - most
    for split in sorted(take, key=lambda p: -take[p]):
        cut = min(max(0, over), take[split] - 1)
        take[split] -= cut
        over -= cut
    return take
