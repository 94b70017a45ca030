"""Finds sources by their kind, and rows of bronze and quarantine by the partitions and offsets of their records."""

from collections.abc import Collection, Mapping
from functools import cache
from typing import cast

from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.config import network
from game_events.config.settings import Settings
from game_events.config.sources.several import settings_or_each
from game_events.errors import ConfigurationError
from game_events.plugin import Plugin, installed
from game_events.sources.source import Partition, Source, SourceContext

#: What stands for all sources that a mapping names.
SEVERAL = "several"
#: The core's own sources, as a plug-in names its sources.
CORE = Plugin(
    "core",
    sources={
        "kafka": "game_events.sources.kafka.source:KafkaSource",
        SEVERAL: "game_events.sources.several.source:SeveralSources",
    },
)


@cache
def _class_of_kind(kind: str) -> type[Source] | None:
    """The class of a kind of source; None: no installed plug-in brings it."""
    for plugin in (CORE, *installed()):
        if kind in plugin.sources:
            return cast(type[Source], plugin.load(plugin.sources[kind]))
    return None


def kind_of(kind: str) -> type[Source]:
    """The class of a kind that bronze was once read from; of one that is not installed any more, what holds for most."""
    return _class_of_kind(kind) or Source


def class_of(settings: Settings) -> type[Source]:
    """The class of the settings' source; ConfigurationError if it is not installed."""
    kind = SEVERAL if settings.sources else settings.source_kind
    made = _class_of_kind(kind)
    if made is None:
        raise ConfigurationError(f"there is no source `{kind}`: install the plug-in that brings it")
    return made


def make_source(settings: Settings, timeout_s: float | None = None) -> Source:
    """The settings' source, which writes nothing (a pipeline makes its own); connects at its first call.

    `timeout_s`: longest wait for one answer; None: the source's default. Raises ConfigurationError if options that
    exactly-once depends on are set, or the folder of files is not.
    """
    return class_of(settings)(SourceContext(settings, None, timeout_s=timeout_s, read_only=True))


def subjects(settings: Settings, timeout_s: float | None = None) -> tuple[str, ...]:
    """Subjects of the source, which is asked only if the settings do not name them; raises as `Source.snapshot`."""
    named = class_of(settings).named_subjects(settings)
    if named is not None:
        return named
    source = make_source(settings, timeout_s)
    return source.subjects(source.snapshot().latest)


def unencrypted(settings: Settings) -> list[str]:
    """Messages about connections to other machines that can be read and changed on the way."""
    plain = dict.fromkeys(text for one in settings_or_each(settings) for text in network.plain_http(one))
    return [*plain, *class_of(settings).unencrypted(settings)]


def since(offsets: Mapping[Partition, int]) -> Column:
    """Condition on rows: of these topics, at or after these offsets of their partitions."""
    if not offsets:
        return F.lit(False)
    # One map, however many topics and partitions there are.
    pairs = ((F.lit(_place_of(partition)), F.lit(offset).cast("long")) for partition, offset in sorted(offsets.items()))
    firsts = F.create_map(*(column for pair in pairs for column in pair))
    return F.coalesce(F.col("_kafka_offset") >= F.try_element_at(firsts, _place()), F.lit(False))


def not_read(partitions: Collection[Partition], *, sourced: bool = False) -> Column:
    """Condition on rows: of topics or partitions that are not among these, which a full refresh reads: it keeps these rows.

    Rows of a topic of the same name and another id are not kept: the topic was recreated. Of sources without topics exactly the
    rows of the partitions are replaced. Beside a source that is bronze's only one (`Source.alone`) none is kept. `sourced`: the
    rows have the name of their source, and topics of two sources may have one name.
    """
    if not partitions or any(kind_of(partition.kind).alone for partition in partitions):
        return F.lit(False)
    read = F.array(*(F.lit(_place_of(partition)) for partition in sorted(partitions)))
    if not all(partition.has_record_offsets for partition in partitions) and not sourced:
        return ~F.array_contains(read, _place())
    topics = sorted({partition.place for partition in partitions})
    ids = sorted({partition.topic_id for partition in partitions})
    other_partition = F.col("_kafka_topic_id").isin(*ids) & ~F.array_contains(read, _place())
    # Also rows of a topic that was read before its source had a name, or under another one.
    of_topic = place_of(sourced=sourced).isin(*topics) | F.array_contains(read, _place())
    return F.coalesce(~of_topic | other_partition, F.lit(False))


def place_of(*, sourced: bool) -> Column:
    """The place of a row's topic (`Partition.place`); `sourced`: the rows have the name of their source."""
    return F.concat_ws("/", "_source", "_kafka_topic") if sourced else F.col("_kafka_topic")


def _place() -> Column:
    return F.concat_ws(":", F.col("_kafka_topic_id"), F.col("_kafka_partition").cast("string"))


def _place_of(partition: Partition) -> str:
    return f"{partition.topic_id}:{partition.number}"
