"""Detection of a partition that lost its newest records and has grown past bronze's offset since: offsets do not show that.

An unclean election, or a broker that was restored from a copy, cuts a partition's log; producers then give the same offsets to
other records. Each record keeps the epoch of the leader that wrote it, and epochs only grow. Bronze stores, for each partition,
the leader's epoch when a micro-batch was planned: no record before its end can have a later one. If the leader has changed
since, the epoch of the last record before bronze's offset is read once.

Guarantee: such a loss stops the run, where the broker returns epochs and has kept its own count of them.
"""

from collections.abc import Iterable

from deltalake import DeltaTable

from game_events.errors import DataError
from game_events.sources.core.source import Offsets, SourceSnapshot, Split
from game_events.sources.kafka.source import KafkaSource

#: Kafka's epochs are 32-bit integers.
LAST_EPOCH = 2**31 - 1


def epochs_noted(now: SourceSnapshot, splits: Iterable[Split]) -> dict[str, int]:
    """`txn` -> epoch that a commit of bronze sets, for the partitions that it reads."""
    return {split.epoch_app: now.epochs[split] for split in splits if split in now.epochs}


def epochs_unknown(splits: Iterable[Split]) -> dict[str, int]:
    """`txn` -> the highest possible epoch, for partitions with records that a commit read from an archive.

    They are not checked until a micro-batch from the broker sets an epoch.
    """
    return {split.epoch_app: LAST_EPOCH for split in splits}


def refuse_cut_log(source: KafkaSource, bronze: DeltaTable, now: SourceSnapshot, reached: Offsets) -> None:
    """Stop before records are skipped that have offsets of lost ones; the broker is asked only if a leader has changed.

    Raises:
        DataError: a partition's log was cut below bronze's offset, and is longer by now.
        ConfigurationError, TransientError: the broker refuses or does not answer.
    """
    known = {split: bronze.transaction_version(split.epoch_app) for split in reached if split in now.epochs}
    changed = {split: reached[split] for split, epoch in known.items() if epoch is not None and now.epochs[split] > epoch}
    if not changed:
        return
    later = {split: epoch for split, epoch in source.epochs_before(now, changed).items() if epoch > int(known[split] or 0)}
    if later:
        named = "; ".join(
            f"{split}: bronze is at {changed[split]} and has read up to leader epoch {known[split]}, "
            f"the record before it is of epoch {epoch}"
            for split, epoch in sorted(later.items())
        )
        raise DataError(
            f"{named}. So the broker has lost records that bronze has (an unclean election, or a restored copy), and others "
            "have their offsets, which bronze has passed. Nothing was read. Restore the broker's data; or delete and recreate "
            "the topic; or replace bronze by what is there now (`game-events run --full-refresh bronze`)"
        )
