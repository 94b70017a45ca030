"""From which offsets to which bronze reads, at its start and next; what the source has lost is detected here.

Guarantee: before records that are gone and that bronze has not read (a gap) the run stops, or it continues and reports the gap,
by a setting. With `record_gap` the commit that skips the offsets has them in its information, and fails unless bronze's offset
is still the start of the gap. A log that lost its newest records stops the run always. A new topic is read from its first
offset; a deleted one is a gap like any other, never silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from deltalake import DeltaTable

from game_events.config.settings import SETTING, Settings
from game_events.config.sources.several import settings_by_source
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.commits.transactions import Txn, counter, txn
from game_events.lakehouse.tables import QUARANTINE, is_silver
from game_events.pipeline.context import Pipeline
from game_events.pipeline.offsets import bronze_commit, next_offsets, offsets_of, topic_id_read
from game_events.sources.factory import class_of, kind_of
from game_events.sources.source import Gap, MicroBatch, Offsets, Partition, Source, SourceSnapshot

#: Newest commits that are searched for one that names the topics: nearly always one small file is read.
HISTORY = (1, 8, 100)


@dataclass
class Changes:
    """Changes of the topics since bronze's last micro-batch.

    Attributes:
        joined: names of topics that bronze has never read.
        start: partition -> first offset, of partitions without an offset in bronze that do not start at 0.
        settle: partitions that a commit has to give an offset, whether it reads them or not.
        gaps: offsets after those that bronze has read, of topics that were deleted or recreated. Topics that the settings do
            not name any more have none: they can be named again.
    """

    joined: list[str] = field(default_factory=list)
    start: Offsets = field(default_factory=dict)
    settle: list[Partition] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        """Whether a commit has to record a change."""
        return bool(self.settle or self.gaps)


def changes(source: Source, settings: Settings, handle: DeltaTable, now: SourceSnapshot, reached: Offsets) -> Changes:
    """Compare the source's topics with bronze's (`reached`: its next offsets); at most a small file is read."""
    new = _topics_not_read(now, reached)
    # Topics that are named and all there need no history: only with a pattern may a topic be deleted unnoticed.
    each = settings_by_source(settings)
    has_pattern = any(one.kafka_topic_pattern is not None for one in each.values())
    known = topics_known(handle) if new or has_pattern else {}
    if known:
        _refuse_another_source(known, now)
    difference = Changes()
    # Partitions that the settings did not assign before; without the setting an added one is read from 0.
    assigned = {name for name, one in each.items() if one.kafka_assign}
    if assigned:
        difference.start = _starts_of_added(now.of(lambda partition: partition.source in assigned), reached)
    for partitions in new.values():
        _note_new(difference, handle, now, known, partitions)
    _start_new_sources(difference, source, each, handle, now)
    # Read under another name of its source, or none, it is no other topic.
    there = {text for partition in now.latest for text in (partition.place, partition.topic_id)}
    gone = sorted(place for place, partition in known.items() if there.isdisjoint((place, partition.topic_id)))
    for place in filter(source.wants, gone):
        difference.gaps += _rest(handle, known[place])
    return difference


def _start_new_sources(
    difference: Changes, source: Source, each: Mapping[str, Settings], handle: DeltaTable, now: SourceSnapshot
) -> None:
    """Topics of a source that bronze has never read, by its name, begin where the source's settings say."""
    joining = {partition for partition in difference.settle if partition.source and partition in difference.start}
    for name in sorted({partition.source for partition in joining}):
        if not counter(handle, Txn.SOURCE.of(name)):
            of_source = now.of(lambda partition, name=name: partition.source == name)  # type: ignore[misc]
            begin = _start_of(source, each[name], of_source)
            difference.start |= {partition: offset for partition, offset in begin.items() if partition in joining}


def sources_noted(handle: DeltaTable | None, now: SourceSnapshot) -> dict[str, int]:
    """`txn` -> value that a commit sets: the sources by name that it was planned with, if they are new."""
    apps = {Txn.SOURCE.of(partition.source) for partition in now.latest if partition.source}
    return {app: 1 for app in sorted(apps) if not counter(handle, app)}


def known_of_others(settings: Settings, handle: DeltaTable, now: SourceSnapshot) -> list[Partition]:
    """What bronze knows of the topics of sources that do not answer, so that the next commits still tell it."""
    others = settings.sources.keys() - {partition.source for partition in now.latest}
    known = topics_known(handle).values() if others else ()
    return [partition for partition in known if partition.source in others]


def _topics_not_read(now: SourceSnapshot, reached: Offsets) -> dict[tuple[str, str, str], list[Partition]]:
    """The partitions of each topic of which bronze has no offset."""
    read = {_topic_of(partition) for partition in reached}
    return {topic: list(partitions) for topic, partitions in groupby(sorted(now.latest), _topic_of) if topic not in read}


def _starts_of_added(now: SourceSnapshot, reached: Offsets) -> Offsets:
    """First offsets of the partitions that bronze has not read, of topics that it has."""
    read = {_topic_of(partition) for partition in reached}
    added = (partition for partition in now.latest.keys() - reached.keys() if _topic_of(partition) in read)
    return {partition: now.earliest[partition] for partition in added}


def _note_new(
    difference: Changes,
    handle: DeltaTable,
    now: SourceSnapshot,
    known: Mapping[str, Partition],
    partitions: list[Partition],
) -> None:
    """Note a topic of which bronze has no offset: it joins, or was recreated. Its partitions are read from the first offset."""
    topic = partitions[0]
    place = topic.place
    before = topic_id_read(handle, place if topic.has_record_offsets else topic.topic, topic.kind)
    if before == topic.topic_id:
        return
    difference.settle += partitions
    if before is None:
        difference.joined.append(place)
        difference.start |= {partition: now.earliest[partition] for partition in partitions}
    elif not known or (place in known and known[place].topic_id == before):
        difference.gaps += _rest(handle, topic._replace(topic_id=before), partitions)


def _refuse_another_source(known: Mapping[str, Partition], now: SourceSnapshot) -> None:
    """Refuse a topic beside a table that was made from it: bronze would have the records twice."""
    before = _ids(known.values())
    alone = _ids(partition for partition in now.latest if kind_of(partition.kind).alone)
    if not alone and not any(kind_of(kind).alone for kind, _ in before):
        return
    if alone.keys() != before.keys():
        raise ConfigurationError(
            f"bronze_events was made from {_names(before)}, and the settings name {_names(_ids(now.latest))}: "
            "one bronze has one source. Set "
            "GAME_EVENTS_LAKEHOUSE to another folder, or GAME_EVENTS_SOURCE_TABLE and the topics back"
        )
    changed = [name for (kind, name), topic_id in alone.items() if before[kind, name] != topic_id]
    if changed:
        raise DataError(
            f"{changed[0]} has other rows than those that bronze_events was made from: it was refreshed fully, restored or "
            "recreated. Nothing was read: replace this pipeline's bronze, too (`game-events run --full-refresh bronze`, "
            "with GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH=true)"
        )


def _ids(partitions: Iterable[Partition]) -> dict[tuple[str, str], str]:
    """(Kind, topic) -> id."""
    return {(partition.kind, partition.place): partition.topic_id for partition in partitions}


def _names(ids: Iterable[tuple[str, str]]) -> str:
    """The topics of (kind, topic), for messages."""
    return ", ".join(sorted({name for _, name in ids}))


def topics_known(handle: DeltaTable) -> Mapping[str, Partition]:
    """Place of a topic -> one of its partitions, by bronze's newest commit that names topics; empty if none is left."""
    commits = (bronze_commit(entry) for limit in HISTORY for entry in handle.history(limit))
    return next((commit.known for commit in commits if commit is not None and commit.known), {})


def _topic_of(partition: Partition) -> tuple[str, str, str]:
    return partition.place, partition.topic_id, partition.kind


def _rest(handle: DeltaTable, topic: Partition, partitions: Iterable[Partition] = ()) -> list[Gap]:
    """Gaps of what bronze has not read of a topic that is gone; `partitions`: of the one that is there now."""
    reached = offsets_of(handle, topic.topic, topic.topic_id, (partition.number for partition in partitions))
    return [Gap(topic.place, topic.topic_id, partition.number, offset, None) for partition, offset in reached.items()]


#: Kafka's epochs are 32-bit integers.
LAST_EPOCH = 2**31 - 1

#: Offsets with a special meaning in the setting, as in Spark's Kafka source.
FIRST = -2
END = -1


#: Gaps that a message names one by one.
SHOWN = 8


@dataclass(frozen=True)
class OffsetPlan:
    """The next micro-batch of the source, and the state it was planned from.

    `reached`: partition -> next offset, by bronze's transactions. `until`: where the run stops. `micro_batch`: what to read,
    with gaps that the setting allows to skip; None: there is nothing to read and no gap.
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

        `until`: partition -> where the run stops; the source's end for partitions that are not in it. `limit`: offsets of the
        micro-batch at most; None: the source's limit.

        Raises:
            DataError: offsets are gone that bronze has not read, and the setting says `stop`; or a topic lost its newest ones.
        """
        source = pipeline.source
        settings = pipeline.settings
        reached = next_offsets(bronze, now.latest)
        if any(offset > now.latest[p] for p, offset in reached.items()):
            now = source.snapshot()  # a concurrent run has read more since `now`
            reached = next_offsets(bronze, now.latest)
        # `until` is older than a topic that joined, or was recreated, while this run reads.
        until = now.latest | {p: end for p, end in until.items() if p in now.latest}
        refuse_cut_log(source, bronze, now, reached)
        difference = changes(source, settings, bronze, now, reached)
        batch = source.plan(now, reached | difference.start, until, limit)
        if difference.anything:
            # Even without a record to read: bronze learns of the change by the commit.
            begin = now.earliest | reached | difference.start
            batch = batch or MicroBatch({}, {}, now.latest, (), begin, unit=now.unit, units=now.units)
            batch = _with_changes(batch, difference)
        if batch is not None:
            batch = replace(batch, gaps=(*batch.gaps, *source.missing(batch)))
            refuse_unless_recorded(settings, batch.gaps, now)
        return cls(now, reached, until, batch)

    @property
    def ends(self) -> Offsets:
        """Partition -> next offset after the micro-batch; also of those without records: each has one from the start."""
        if self.micro_batch is None:
            return {}
        missing = self.now.latest.keys() - self.reached.keys() - self.micro_batch.end.keys()
        return {partition: self.micro_batch.reached[partition] for partition in missing} | self.micro_batch.end

    @property
    def lag(self) -> Offsets:
        """Partition -> records that remain after the micro-batch."""
        if self.micro_batch is not None:
            return self.micro_batch.lag
        return {p: max(0, self.now.latest[p] - offset) // self.now.unit_of(p) for p, offset in self.reached.items()}


def epochs_noted(now: SourceSnapshot, partitions: Iterable[Partition]) -> dict[str, int]:
    """`txn` -> epoch that a commit of bronze sets, for the partitions that it reads."""
    return {partition.epoch_app: now.epochs[partition] for partition in partitions if partition in now.epochs}


def epochs_unknown(partitions: Iterable[Partition]) -> dict[str, int]:
    """`txn` -> the highest epoch, for records from an archive: no check until a micro-batch from the broker sets another."""
    return {partition.epoch_app: LAST_EPOCH for partition in partitions}


def _with_changes(batch: MicroBatch, difference: Changes) -> MicroBatch:
    """The micro-batch, whose commit records the changes of the topics, too."""
    settled = {partition: batch.reached[partition] for partition in difference.settle if partition not in batch.end}
    gaps = (*difference.gaps, *batch.gaps)
    joined = tuple(difference.joined)
    return replace(batch, start=batch.start | settled, end=batch.end | settled, gaps=gaps, joined=joined)


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
    known = _epochs_read(bronze, reached.keys() & now.epochs.keys())
    changed = {partition: reached[partition] for partition, epoch in known.items() if now.epochs[partition] > epoch}
    if not changed:
        return
    before = source.epochs_before(now, changed)
    later = {partition: epoch for partition, epoch in before.items() if epoch > known[partition]}
    if later:
        cut = [
            f"{partition}: bronze is at {changed[partition]} and has read up to leader epoch {known[partition]}, "
            f"the record before it is of epoch {epoch}"
            for partition, epoch in sorted(later.items())
        ]
        raise DataError(
            f"{'; '.join(cut)}. So the broker has lost records that bronze has (an unclean election, or a restored copy), and "
            "others have their offsets, which bronze has passed. Nothing was read. Restore the broker's data; or delete and "
            "recreate the topic; or replace bronze by what is there now (`game-events run --full-refresh bronze`)"
        )


def _epochs_read(bronze: DeltaTable, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Partition -> the leader's epoch when bronze has read it last, where bronze stores one."""
    read = {partition: txn(bronze, partition.epoch_app) for partition in partitions}
    return {partition: epoch for partition, epoch in read.items() if epoch is not None}


def starting_point(pipeline: Pipeline, now: SourceSnapshot) -> Offsets:
    """Partition -> first offset of a new bronze, by the settings; ConfigurationError if they name one that does not exist."""
    parts = _by_settings(pipeline.settings, now)
    return {p: at for settings, part in parts for p, at in _start_of(pipeline.source, settings, part).items()}


def _by_settings(settings: Settings, now: SourceSnapshot) -> list[tuple[Settings, SourceSnapshot]]:
    """The parts of the sources with the settings of each."""
    each = settings_by_source(settings).items()
    return [(one, now.of(lambda partition, name=name: partition.source == name)) for name, one in each]  # type: ignore[misc]


def _start_of(source: Source, settings: Settings, now: SourceSnapshot) -> Offsets:
    wanted = settings.starting_offsets
    if settings.starting_timestamp is not None or wanted == "earliest":
        return _since_start(source, settings, now)
    return dict(now.latest) if wanted == "latest" else _named(wanted, now)


def all_there_is(pipeline: Pipeline, now: SourceSnapshot) -> Offsets:
    """Partition -> first existing offset, of records that are not older than the starting time if one is set."""
    parts = _by_settings(pipeline.settings, now)
    return {p: at for settings, part in parts for p, at in _since_start(pipeline.source, settings, part).items()}


def _since_start(source: Source, settings: Settings, now: SourceSnapshot) -> Offsets:
    when = settings.starting_timestamp
    if when is None:
        return dict(now.earliest)
    first = source.offsets_at(now.latest, when)
    # Records may arrive between the two requests: a partition without one since the starting time begins at its old end.
    return {p: min(max(first.get(p, end), now.earliest[p]), end) for p, end in now.latest.items()}


def _named(wanted: Mapping[str, Mapping[int, int]], now: SourceSnapshot) -> Offsets:
    """Offsets named one by one; other partitions start at their first offset."""
    start = dict(now.earliest)
    partitions = {(partition.topic, partition.number): partition for partition in now.latest}
    for topic, offsets in wanted.items():
        for number, offset in offsets.items():
            partition = partitions.get((topic, number))
            if partition is None:
                raise ConfigurationError(
                    f"GAME_EVENTS_STARTING_OFFSETS names {topic}[{number}], which is not among what is read: "
                    f"{', '.join(map(str, sorted(now.latest)))}"
                )
            if offset > now.latest[partition]:
                raise ConfigurationError(
                    f"GAME_EVENTS_STARTING_OFFSETS: {partition} ends at {now.latest[partition]}, before {offset}"
                )
            start[partition] = {FIRST: now.earliest[partition], END: now.latest[partition]}.get(offset, offset)
    return start


def is_gone(pipeline: Pipeline) -> bool:
    """Whether bronze was deleted: tables that are made from it exist. One listing."""
    return any(name == QUARANTINE or is_silver(name) for name in pipeline.lakehouse.names())


def not_there_any_more(pipeline: Pipeline, now: SourceSnapshot) -> tuple[Gap, ...]:
    """Gaps for records that a deleted bronze may have had and that have expired in Kafka.

    With a starting time, expired records cannot be distinguished from skipped ones, so no gap is reported. DataError: there is
    a gap, and the setting does not allow to skip it.
    """
    parts = [part for settings, part in _by_settings(pipeline.settings, now) if settings.starting_timestamp is None]
    earliest = sorted((partition, offset) for part in parts for partition, offset in part.earliest.items())
    first = {partition: offset for partition, offset in earliest if offset and partition.has_record_offsets}
    gaps = tuple(Gap(partition.place, partition.topic_id, partition.number, 0, offset) for partition, offset in first.items())
    what = f"{pipeline.bronze.name} is gone (put the table back, if there is a copy), and so are records"
    refuse_unless_recorded(pipeline.settings, gaps, None, what)
    return gaps


def refuse_unless_recorded(
    settings: Settings, gaps: tuple[Gap, ...], now: SourceSnapshot | None, what: str = "records are gone"
) -> None:
    """Stop before records are skipped, unless the setting allows it: DataError names what is lost, and the setting."""
    if not gaps or settings.on_data_loss == "record_gap":
        return
    named = "; ".join(str(gap) for gap in gaps[:SHOWN]) + (f"; and {len(gaps) - SHOWN} more" if len(gaps) > SHOWN else "")
    again = _recreated(gaps, now.latest) if now is not None else ""
    holder = class_of(settings).holder(settings)
    raise DataError(
        f"{what} that {holder} does not have any more and bronze has not: {named}.{again} Nothing was read. To "
        f"go on with what there is and have the gap recorded, set {SETTING}=record_gap; so that it does not happen again, "
        f"{class_of(settings).loss_advice}"
    )


def _recreated(gaps: tuple[Gap, ...], there: Iterable[Partition]) -> str:
    """Sentences about the topics of the gaps that are there again, with other ids."""
    gone = {gap.topic for gap in gaps if gap.end is None}
    ids = sorted({(partition.place, partition.topic_id) for partition in there if partition.place in gone})
    return "".join(f" {topic} was recreated, with id {topic_id}." for topic, topic_id in ids)


def loss_messages(gaps: tuple[Gap, ...]) -> list[str]:
    """One message for each gap that a run skipped."""
    return [f"lost before they were read: {gap}" for gap in gaps]


def went_meanwhile(pipeline: Pipeline, part: MicroBatch) -> bool:
    """Whether a micro-batch cannot be read as planned any more: its first records expired, or the topic was recreated."""
    if pipeline.source.changed(part) is not None:
        return True
    now = pipeline.source.snapshot()
    if len(pipeline.source.missing(part)) > len(part.gaps):
        return True
    read: Mapping[Partition, int] = {p: start for p, start in part.start.items() if part.end[p] > start}
    return any(start < now.earliest[p] for p, start in read.items() if p in now.earliest)
