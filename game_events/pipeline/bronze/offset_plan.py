"""From which offsets to which bronze reads, at its start and next; what the source has lost is detected here.

Guarantee: before records that are gone and that bronze has not read (a gap) the run stops, or it continues and reports the gap,
by a setting. With `record_gap` the commit that skips the offsets has them in its information, and fails unless bronze's offset
is still the start of the gap. A log that lost its newest records stops the run always.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from deltalake import DeltaTable

from game_events.config.settings import SETTING, Settings
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.tables import QUARANTINE, is_silver
from game_events.pipeline.bronze.topic_changes import changes
from game_events.pipeline.context import Pipeline
from game_events.pipeline.state.offsets import next_offsets
from game_events.sources.core.micro_batch import plan_micro_batch
from game_events.sources.core.source import FILES, KAFKA, Gap, MicroBatch, Offsets, Source, SourceSnapshot, Split

#: Kafka's epochs are 32-bit integers.
LAST_EPOCH = 2**31 - 1
#: Offsets with a special meaning in the setting, as in Spark's Kafka source.
FIRST, END = -2, -1
#: What keeps it from happening again.
_TOPICS, _FILES, _TABLE = (
    "raise the topic's retention",
    "leave files where they are until bronze has them",
    "keep that table's rows until bronze has them",
)
#: Gaps that a message names one by one.
SHOWN = 8


@dataclass(frozen=True)
class OffsetPlan:
    """The next micro-batch of the source, and the state it was planned from.

    `reached`: split -> next offset, by bronze's transactions. `until`: split -> where the run stops. `micro_batch`: what to
    read, with gaps that the setting allows to skip; None: there is nothing to read and no gap.
    """

    now: SourceSnapshot
    reached: Offsets
    until: Offsets
    micro_batch: MicroBatch | None

    @classmethod
    def of(
        cls, pipeline: Pipeline, bronze: DeltaTable, now: SourceSnapshot, until: Offsets, limit: int | None = None
    ) -> OffsetPlan:
        """Plan from a version of bronze.

        `until`: split -> where the run stops; the source's end for splits that are not in it. `limit`: offsets of the
        micro-batch at most; None: the source's limit.

        Raises:
            DataError: offsets are gone that bronze has not read, and the setting says `stop`; or a topic lost its newest
                records.
        """
        source, settings = pipeline.source, pipeline.settings
        reached = next_offsets(bronze, now.latest)
        if any(offset > now.latest[p] for p, offset in reached.items()):
            now = source.snapshot()  # a concurrent run has read more since `now`
            reached = next_offsets(bronze, now.latest)
        # `until` is older than a topic that joined, or was recreated, while this run reads.
        until = now.latest | {p: end for p, end in until.items() if p in now.latest}
        refuse_cut_log(source, bronze, now, reached)
        found = changes(settings, bronze, now, reached)
        batch = plan_micro_batch(now, reached | found.start, until, limit or source.batch_limit(reached))
        if found.anything:
            # Even without a record to read: bronze learns of the change by the commit.
            batch = batch or MicroBatch({}, {}, now.latest, (), now.earliest | reached | found.start, unit=now.unit)
            settled = {split: batch.reached[split] for split in found.settle if split not in batch.end}
            gaps = (*found.gaps, *batch.gaps)
            batch = replace(batch, start=batch.start | settled, end=batch.end | settled, gaps=gaps, joined=tuple(found.joined))
        if batch is not None:
            batch = replace(batch, gaps=(*batch.gaps, *pipeline.source.missing(batch)))
        if batch is not None and batch.gaps:
            refuse_unless_recorded(settings, batch.gaps, now)
        return cls(now, reached, until, batch)

    @property
    def ends(self) -> Offsets:
        """Split -> next offset after the micro-batch; also of splits without records, so that each has one from the start."""
        if self.micro_batch is None:
            return {}
        missing = self.now.latest.keys() - self.reached.keys() - self.micro_batch.end.keys()
        return {split: self.micro_batch.reached[split] for split in missing} | self.micro_batch.end

    @property
    def lag(self) -> Offsets:
        """Split -> records that remain after the micro-batch."""
        if self.micro_batch is not None:
            return self.micro_batch.lag
        return {p: max(0, self.now.latest[p] - offset) // self.now.unit for p, offset in self.reached.items()}


def epochs_noted(now: SourceSnapshot, splits: Iterable[Split]) -> dict[str, int]:
    """`txn` -> epoch that a commit of bronze sets, for the partitions that it reads."""
    return {split.epoch_app: now.epochs[split] for split in splits if split in now.epochs}


def epochs_unknown(splits: Iterable[Split]) -> dict[str, int]:
    """`txn` -> the highest epoch, for records from an archive: no check until a micro-batch from the broker sets another."""
    return {split.epoch_app: LAST_EPOCH for split in splits}


def refuse_cut_log(source: Source, bronze: DeltaTable, now: SourceSnapshot, reached: Offsets) -> None:
    """Stop before records are skipped that have offsets of lost ones, where the broker keeps and returns epochs.

    An unclean election, or a broker that was restored from a copy, cuts a partition's log; producers then give the same offsets
    to other records, which offsets do not show once the log has grown past bronze's. Each record keeps the epoch of the leader
    that wrote it, and epochs only grow. Bronze stores, for each partition, the leader's epoch when a micro-batch was planned:
    no record before its end can have a later one. Only if the leader has changed since, the broker is asked for the epoch of
    the last record before bronze's offset.

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


def starting_point(pipeline: Pipeline, now: SourceSnapshot) -> Offsets:
    """Split -> first offset of a new bronze, by the settings; ConfigurationError if they name one that does not exist."""
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
    return any(name == QUARANTINE or is_silver(name) for name in pipeline.lakehouse.names())


def not_there_any_more(pipeline: Pipeline, now: SourceSnapshot) -> tuple[Gap, ...]:
    """Gaps for records that a deleted bronze may have had and that have expired in Kafka.

    With a starting time, expired records cannot be distinguished from skipped ones, so no gap is reported. DataError: there is
    a gap, and the setting does not allow to skip it.
    """
    if pipeline.settings.starting_timestamp is not None:
        return ()
    first = {split: at for split, at in sorted(now.earliest.items()) if at and split.kind == KAFKA}
    gaps = tuple(Gap(split.topic, split.topic_id, split.partition, 0, at) for split, at in first.items())
    if gaps:
        what = f"{pipeline.bronze.name} is gone (put the table back, if there is a copy), and so are records"
        refuse_unless_recorded(pipeline.settings, gaps, None, what)
    return gaps


def refuse_unless_recorded(
    settings: Settings, gaps: tuple[Gap, ...], now: SourceSnapshot | None, what: str = "records are gone"
) -> None:
    """Stop before records are skipped, unless the setting allows it: DataError names what is lost, and the setting."""
    if settings.on_data_loss == "record_gap":
        return
    named = "; ".join(str(gap) for gap in gaps[:SHOWN]) + (f"; and {len(gaps) - SHOWN} more" if len(gaps) > SHOWN else "")
    gone = {gap.topic for gap in gaps if gap.end is None}
    ids = sorted({(split.topic, split.topic_id) for split in (now.latest if now is not None else ()) if split.topic in gone})
    again = "".join(f" {topic} was recreated, with id {topic_id}." for topic, topic_id in ids)
    advice = _FILES if settings.source == FILES else _TABLE if settings.source_table is not None else _TOPICS
    raise DataError(
        f"{what} that {settings.source_holder} does not have any more and bronze has not: {named}.{again} Nothing was read. To "
        f"go on with what there is and have the gap recorded, set {SETTING}=record_gap; so that it does not happen again, "
        f"{advice}"
    )


def loss_messages(gaps: tuple[Gap, ...]) -> list[str]:
    """One message for each gap that a run skipped."""
    return [f"lost before they were read: {gap}" for gap in gaps]


def went_meanwhile(pipeline: Pipeline, part: MicroBatch) -> bool:
    """Whether a micro-batch cannot be read as planned any more: its first records expired, or the topic was recreated.

    Raises as `Source.snapshot`: the topic is gone, or the broker does not answer.
    """
    if pipeline.source.changed(part) is not None:
        return True
    now = pipeline.source.snapshot()
    if len(pipeline.source.missing(part)) > len(part.gaps):
        return True
    read: Mapping[Split, int] = {p: start for p, start in part.start.items() if part.end[p] > start}
    return any(start < now.earliest[p] for p, start in read.items() if p in now.earliest)
