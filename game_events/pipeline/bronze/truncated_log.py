"""A topic that lost its newest records and has grown past bronze's position since: by offsets alone nobody would see it.

An unclean election, or a broker that was restored from a copy, cuts a partition's log; producers then give the same offsets to
other records. Each record keeps the epoch of the leader that wrote it, and epochs only grow. Bronze notes, for each partition,
the leader's epoch when a slice was planned: no record before the slice's end can have a later one. If the leader has changed
since, the last record before bronze's position is looked at once.

Guarantee: such a loss stops the run, where the broker tells epochs and has kept its own count of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.pipeline.context import Pipeline
from game_events.sources.core.source import Offsets, SourceSnapshot, Split
from game_events.sources.kafka.source import KafkaSource

#: Kafka's epochs are 32-bit integers.
LAST_EPOCH = 2**31 - 1


def epochs_noted(now: SourceSnapshot, lanes: Iterable[Split]) -> dict[str, int]:
    """`txn` -> epoch that a commit of bronze adds, of the partitions that it moves."""
    return {lane.epoch_app: now.epochs[lane] for lane in lanes if lane in now.epochs}


def epochs_unknown(lanes: Iterable[Split]) -> dict[str, int]:
    """`txn` -> the highest epoch that there may be, of partitions that a commit moves by records which are not the broker's.

    Nothing is asked about these until a slice of the broker's own has noted an epoch.
    """
    return {lane.epoch_app: LAST_EPOCH for lane in lanes}


def refuse_cut_log(pipeline: Pipeline, bronze: DeltaTable, now: SourceSnapshot, reached: Offsets) -> None:
    """Stop before records are passed over that have offsets of lost ones; nothing is asked unless a leader has changed.

    Raises:
        DataError: a partition's log was cut below bronze's position, and is longer by now.
        ConfigurationError, TransientError: the broker refuses or does not answer.
    """
    if isinstance(pipeline.source, KafkaSource):
        refuse_other_records(bronze, now, reached, pipeline.source.epochs_before)


def refuse_other_records(
    bronze: DeltaTable, now: SourceSnapshot, reached: Offsets, written: Callable[[SourceSnapshot, Offsets], Offsets]
) -> None:
    """As `refuse_cut_log`.

    Args:
        bronze: its newest version.
        now: the source.
        reached: lane -> next position of bronze.
        written: (source, positions) -> epoch of the last record before each position.
    """
    known = {lane: bronze.transaction_version(lane.epoch_app) for lane in reached if lane in now.epochs}
    changed = {lane: reached[lane] for lane, epoch in known.items() if epoch is not None and now.epochs[lane] > epoch}
    if not changed:
        return
    later = {lane: epoch for lane, epoch in written(now, changed).items() if epoch > int(known[lane] or 0)}
    if later:
        named = "; ".join(
            f"{lane}: bronze is at {changed[lane]} and has read what was written up to leader epoch {known[lane]}, the record "
            f"before it is of epoch {epoch}"
            for lane, epoch in sorted(later.items())
        )
        raise DataError(
            f"{named}. So the broker has lost records that bronze has (an unclean election, or a restored copy), and others "
            "have their offsets, which bronze has passed. Nothing was read. Restore the broker's data; or make the topic anew "
            "(delete and create it); or replace bronze by what is there now (`game-events run --full-refresh bronze`)"
        )
