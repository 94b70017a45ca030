"""Several sources as one, by name (`SOURCES`): one bronze, one micro-batch, one commit.

Partitions carry the name of their source; their progress does not depend on it, as the id of a topic is unique among all
clusters: the broker draws 122 random bits for it.

Guarantee: a source that fails does not hold up the others, and is named in the result of each run that went on without it. One
that does not answer when it is asked for its offsets is left out of the plan. If reading or decoding a micro-batch fails, for
whatever reason, each source is read alone (its turn); the one that fails alone is set aside for a while. What it has is read
later, from bronze's offsets on, as after any pause.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import ClassVar, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.config.masking import without_secrets
from game_events.config.network import begin_call
from game_events.config.settings import Settings
from game_events.config.sources.several import registry_names, settings_of_each
from game_events.decoding.decoder import TypeKey
from game_events.decoding.frame import RegistrySchema, named
from game_events.errors import ConfigurationError, GameEventsError, TransientError, first_line
from game_events.schema_registry import SchemaLookup
from game_events.sources.factory import class_of, since
from game_events.sources.several.reader import NamedReading, SeveralReadings
from game_events.sources.several.registries import SeveralRegistries, subject_in
from game_events.sources.source import (
    REGISTRY,
    Gap,
    MicroBatch,
    Offsets,
    Partition,
    Source,
    SourceContext,
    SourceSnapshot,
    Upstream,
    plan_micro_batch,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds for which a source is left alone that has failed: each time twice as long as the last one.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 240.0
#: Characters of what a report says of a source that failed.
REASON_CHARS = 500


@dataclass
class Failure:
    """A source that is left out: why, when it is asked again, and the question that waits for its answer."""

    error: BaseException
    again_at: float
    pause_s: float
    asked: Future[SourceSnapshot] | None = None


class SeveralSources(Source):
    """The sources of the settings; those that fail are left out."""

    kind: ClassVar[str] = "several"
    check_name = "sources"
    loss_advice = "keep records longer in that source"

    def __init__(self, context: SourceContext, clock: Callable[[], float] = time.monotonic) -> None:
        """Connects to nothing yet; ConfigurationError for settings that cannot be."""
        self._settings = context.settings
        self._clock = clock
        self._registries = registry_names(context.settings)
        self._of = {
            name: class_of(one)(replace(context, settings=one, name=name))
            for name, one in settings_of_each(context.settings).items()
        }
        self._failed: dict[str, Failure] = {}
        self._last: dict[str, Failure] = {}
        #: Sources that are read alone, the next one first; empty: all are read together.
        self._turns: list[str] = []

    # --- which sources there are, and which fail

    @property
    def one_by_one(self) -> bool:  # type: ignore[override]
        """Of those that are read now."""
        return all(self._of[name].one_by_one for name in self._in_play())

    @property
    def failures(self) -> dict[str, str]:
        """Source that is left out now -> why, without secrets."""
        return {name: self._why(failure.error) for name, failure in sorted(self._failed.items())}

    def _why(self, error: BaseException) -> str:
        return without_secrets(first_line(error), self._settings, most=REASON_CHARS)

    def _in_play(self) -> list[str]:
        """The sources that are read now."""
        return self._turns[:1] or [name for name in self._of if name not in self._failed] or list(self._of)

    def sets_aside(self, error: BaseException) -> bool:
        """See `Source.sets_aside`: first each source gets a turn alone; the one that fails then is left out."""
        in_play = self._in_play()
        if len(in_play) > 1:
            log.warning("sources=%s read=each_alone cause=%r", ",".join(in_play), self._why(error))
            self._turns = in_play
            return True
        for name in in_play:
            self._fail(name, error)
        self._turns = self._turns[1:]
        return len(self._failed) < len(self._of)

    def next_turn(self) -> bool:
        """See `Source.next_turn`."""
        had_turn = bool(self._turns)
        self._turns = self._turns[1:]
        return had_turn

    @property
    def takes_turns(self) -> bool:
        """See `Source.takes_turns`."""
        return bool(self._turns)

    def _fail(self, name: str, error: BaseException) -> None:
        now = self._clock()
        before = self._last.get(name)
        is_again = before is not None and now < before.again_at + 2 * before.pause_s
        pause_s = min(2 * before.pause_s, LONGEST_PAUSE_S) if before is not None and is_again else FIRST_PAUSE_S
        self._failed[name] = self._last[name] = Failure(error, now + pause_s, pause_s)
        log.warning("source=%s left_out=true again_in_s=%.0f cause=%r", name, pause_s, self._why(error))

    # --- what there is to read

    def snapshot(self, *, take_in: bool = True, full_refresh: bool = False) -> SourceSnapshot:
        """All sources that answer, asked at once; during turns the one whose turn it is.

        Raises:
            ConfigurationError: two sources read one topic.
            GameEventsError: none answers; or, for a full refresh, one does not: its rows would be lost.
        """
        look = partial(_look, take_in=take_in, full_refresh=full_refresh)
        if full_refresh:
            self._turns = []
            self._failed = {}
        if not self._turns:
            self._look_after_failed()
        seen: dict[str, SourceSnapshot] = {}
        for name, asked in {name: begin_call(partial(look, self._of[name]), name) for name in self._in_play()}.items():
            try:
                seen[name] = asked.result()
                self._failed.pop(name, None)
            except GameEventsError as error:
                if full_refresh:
                    lost = f"source {name}: {error}. A full refresh needs every source: its rows would be lost"
                    raise type(error)(lost) from error
                self._fail(name, error)
        self._turns = [name for name in self._turns if name not in self._failed]
        if not seen:
            if len(self._failed) < len(self._of):
                return self.snapshot(take_in=take_in)
            raise min((failure.error for failure in self._failed.values()), key=_is_lasting)
        self._refuse_twice(seen)
        return _united(seen.values(), {source.kind: source.unit for source in self._of.values()})

    def _look_after_failed(self) -> None:
        """Ask those that failed again, without waiting for their answers; one that answers is read again."""
        for name, failure in list(self._failed.items()):
            if failure.asked is not None and failure.asked.done():
                error = failure.asked.exception()
                if error is None:
                    log.warning("source=%s left_out=false", name)
                    del self._failed[name]
                else:
                    self._fail(name, error)
            elif failure.asked is None and self._clock() >= failure.again_at:
                failure.asked = begin_call(partial(_look, self._of[name], take_in=False, full_refresh=False), name)

    def _refuse_twice(self, seen: Mapping[str, SourceSnapshot]) -> None:
        """Refuse an archive, and one partition in two sources: its records would count as those of both."""
        for name in seen:
            if self._of[name].archive is not None:
                raise ConfigurationError(
                    f"GAME_EVENTS_SOURCES: {name} is an archive, which is read alone, before other sources are set "
                    "(docs/sources.md)"
                )
        owners: dict[str, str] = {}
        for name, now in seen.items():
            for partition in now.latest:
                other = owners.setdefault(partition.app, name)
                if other != name:
                    raise ConfigurationError(
                        f"GAME_EVENTS_SOURCES: {other} and {name} both read {partition.topic}[{partition.number}] (topic "
                        f"id {partition.topic_id}): leave it out of one of them. A cluster that was copied with its topics' "
                        "ids is the same to bronze"
                    )

    def plan(self, now: SourceSnapshot, start: Offsets, until: Offsets, limit: int | None = None) -> MicroBatch | None:
        """The topics of all sources share the room by their backlog; files have their own."""
        parts: list[MicroBatch] = []
        reached: dict[Partition, int] = {}
        for kind in sorted({partition.kind for partition in now.latest}):
            part = now.of(lambda partition, kind=kind: partition.kind == kind)  # type: ignore[misc]
            begin = {p: offset for p, offset in start.items() if p in part.latest}
            source = next(source for source in self._of.values() if source.kind == kind)
            planned = plan_micro_batch(part, begin, until, limit or source.batch_limit(begin))
            reached |= {p: start.get(p, part.earliest[p]) for p in part.latest}
            if planned is not None:
                parts.append(planned)
                reached |= planned.reached
        if not parts:
            return None
        gaps = tuple(gap for part in parts for gap in part.gaps)
        return MicroBatch(
            _merged(part.start for part in parts),
            _merged(part.end for part in parts),
            now.latest,
            gaps,
            reached,
            unit=now.unit,
            units=now.units,
        )

    def batch_limit(self, reached: Offsets) -> int:  # noqa: ARG002
        """Of topics."""
        return self._settings.max_records_per_batch

    def offsets_at(self, partitions: Iterable[Partition], when: datetime) -> Offsets:
        """Raises as that of a source."""
        return _merged(source.offsets_at(mine, when) for source, mine in self._by_source(partitions))

    def reading(self, batch: MicroBatch) -> SeveralReadings:
        """The tasks of all sources with records in the batch."""
        readings = []
        for name, source in self._of.items():
            mine = batch.of(lambda partition, name=name: partition.source == name)  # type: ignore[misc]
            gone = sum(gap.is_planned and gap.topic.startswith(f"{name}/") for gap in batch.gaps)
            if mine.records > gone:
                readings.append(NamedReading(name, self._registries[name], source.reading(mine)))
        return SeveralReadings(readings)

    # --- what is asked of each source about its own partitions

    def _by_source(self, partitions: Iterable[Partition]) -> list[tuple[Source, list[Partition]]]:
        """The sources with their partitions among these."""
        mine: dict[str, list[Partition]] = {}
        for partition in partitions:
            mine.setdefault(partition.source, []).append(partition)
        return [(self._of[name], some) for name, some in mine.items() if name in self._of]

    def _parts(self, batch: MicroBatch) -> list[tuple[Source, MicroBatch]]:
        """The sources with their parts of a micro-batch."""
        return [(source, batch.of(set(mine).__contains__)) for source, mine in self._by_source(batch.end)]

    def epochs_before(self, now: SourceSnapshot, offsets: Offsets) -> Offsets:
        """See `Source.epochs_before`."""
        return _merged(source.epochs_before(now, {p: offsets[p] for p in mine}) for source, mine in self._by_source(offsets))

    def missing(self, batch: MicroBatch) -> tuple[Gap, ...]:
        """See `Source.missing`."""
        return tuple(gap for source, part in self._parts(batch) for gap in source.missing(part))

    def changed(self, batch: MicroBatch) -> str | None:
        """See `Source.changed`."""
        return next(filter(None, (source.changed(part) for source, part in self._parts(batch))), None)

    def wants(self, topic: str) -> bool:
        """Whether a source that is read now names the topic of a place; others may have it."""
        source, _, name = topic.partition("/")
        return source in self._in_play() and self._of[source].wants(name)

    def lost_rows(self, now: SourceSnapshot, origins: Offsets | None) -> Column | None:
        """Rows of topics before the first offset of their partition; of files by the files."""
        lost = ~since({p: offset for p, offset in now.earliest.items() if p.has_record_offsets})
        for source, mine in self._by_source(now.earliest):
            if not all(partition.has_record_offsets for partition in mine):
                of_files = source.lost_rows(now.of(set(mine).__contains__), origins)
                lost = lost if of_files is None else F.when(F.col("_file_path").isNotNull(), of_files).otherwise(lost)
        return lost

    def subjects(self, partitions: Iterable[Partition]) -> tuple[str, ...]:
        """Subjects by their registry, where it is not that of the top level."""
        named_subjects: dict[str, None] = {}
        for source, mine in self._by_source(partitions):
            registry = self._registries[mine[0].source]
            named_subjects |= dict.fromkeys(subject_in(registry, subject) for subject in source.subjects(mine))
        return tuple(named_subjects)

    def schemas(self) -> list[RegistrySchema]:
        """Under ids of their registries."""
        found = []
        for name in self._in_play():
            registry = self._registries[name]
            for schema in self._of[name].schemas():
                found.append(replace(schema, schema_id=named(registry, schema.schema_id)))
        return found

    def expected_types(self) -> list[TypeKey]:
        """Likewise."""
        types = [(self._registries[name], key) for name in self._in_play() for key in self._of[name].expected_types()]
        return [(named(registry, schema_id), path) for registry, (schema_id, path) in types]

    def commit_group_offsets(self, offsets: Offsets) -> None:
        """To the group of each source, at its brokers; raises one error for all that fail."""
        errors = []
        for source, mine in self._by_source(offsets):
            try:
                source.commit_group_offsets({p: offsets[p] for p in mine})
            except GameEventsError as error:
                errors.append(str(error))
        if errors:
            raise TransientError("; ".join(errors))

    def file_counts(self) -> Counter[str]:
        """Of the source of files, if there is one."""
        return next((source.file_counts() for source in self._of.values() if not source.one_by_one), Counter())

    def check(self) -> str:
        """Those of the sources, one after the other."""
        return "; ".join(f"{name}: {source.check()}" for name, source in self._of.items())

    # --- what the settings alone tell

    @classmethod
    def lookup(cls, settings: Settings, connect: Callable[[Settings], SchemaLookup]) -> SchemaLookup:
        """The registries of all sources."""
        return SeveralRegistries(settings, connect)

    @classmethod
    def named_subjects(cls, settings: Settings) -> tuple[str, ...] | None:
        """Of all sources; None if those of one are not known from the settings."""
        registries = registry_names(settings)
        subjects: dict[str, None] = {}
        for name, one in settings_of_each(settings).items():
            of_source = class_of(one).named_subjects(one)
            if of_source is None:
                return None
            subjects |= dict.fromkeys(subject_in(registries[name], subject) for subject in of_source)
        return tuple(subjects)

    @classmethod
    def named_topics(cls, settings: Settings) -> tuple[str, ...]:
        """Those at the brokers of the top level."""
        here = [s for s in settings_of_each(settings).values() if s.kafka_bootstrap_servers == settings.kafka_bootstrap_servers]
        return tuple(dict.fromkeys(topic for one in here for topic in class_of(one).named_topics(one)))

    @classmethod
    def name(cls, settings: Settings) -> str:
        """What each reads, with its name."""
        return "; ".join(f"{name}: {class_of(one).name(one)}" for name, one in settings_of_each(settings).items())

    @classmethod
    def holder(cls, settings: Settings) -> str:  # noqa: ARG003
        """For messages."""
        return "the source"

    @classmethod
    def unencrypted(cls, settings: Settings) -> list[str]:
        """Of each source."""
        each = settings_of_each(settings).items()
        return [f"source {name}: {text}" for name, one in each for text in class_of(one).unencrypted(one)]

    @classmethod
    def _of_place(cls, settings: Settings, place: str) -> tuple[str, Settings, str]:
        """Name and settings of the source of a topic's place, and the topic; the top level's of one that is not named."""
        name, _, topic = place.partition("/")
        each = settings_of_each(settings)
        return (name, each[name], topic) if topic and name in each else ("", settings.model_copy(update={"sources": {}}), place)

    @classmethod
    def address(cls, settings: Settings, topic: str) -> str:
        """That of its source."""
        _, one, inner = cls._of_place(settings, topic)
        return class_of(one).address(one, inner)

    @classmethod
    def asset_key(cls, settings: Settings, topic: str) -> tuple[str, ...]:
        """That of its source, with the source's name in it."""
        name, one, inner = cls._of_place(settings, topic)
        return _with_name(name, class_of(one).asset_key(one, inner))

    @classmethod
    def subject_key(cls, settings: Settings, subject: str) -> tuple[str, ...]:
        """That of the source which has named its registry first."""
        name, one, inner = cls._of_place(settings, subject)
        return _with_name(name, class_of(one).subject_key(one, inner))

    @classmethod
    def upstreams(cls, settings: Settings) -> list[Upstream]:
        """Those of all sources: topics by source, subjects by registry."""
        registries = registry_names(settings)
        found: dict[tuple[str, ...], Upstream] = {}
        for name, one in settings_of_each(settings).items():
            for upstream in class_of(one).upstreams(one):
                key = _with_name(registries[name] if upstream.key[0] == REGISTRY else name, upstream.key)
                found.setdefault(key, upstream._replace(key=key, description=f"{upstream.description} Source `{name}`."))
        return list(found.values())


def _look(source: Source, *, take_in: bool, full_refresh: bool) -> SourceSnapshot:
    return source.snapshot(take_in=take_in, full_refresh=full_refresh)


def _is_lasting(error: BaseException) -> bool:
    """Whether a retry cannot help."""
    return not isinstance(error, TransientError)


def _merged(parts: Iterable[Mapping[Partition, T]]) -> dict[Partition, T]:
    """All of them; each has other partitions."""
    return {partition: value for part in parts for partition, value in part.items()}


def _united(seen: Iterable[SourceSnapshot], units: Mapping[str, int]) -> SourceSnapshot:
    """The snapshots of several sources as one."""
    each = list(seen)
    return SourceSnapshot(
        _merged(now.earliest for now in each),
        _merged(now.latest for now in each),
        epochs=_merged(now.epochs for now in each),
        units=units,
    )


def _with_name(name: str, key: tuple[str, ...]) -> tuple[str, ...]:
    """The key of an asset with the name of its source behind the kind."""
    return (key[0], name, *key[1:]) if name else key
