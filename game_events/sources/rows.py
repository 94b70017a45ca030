"""Conditions on rows of bronze and quarantine, by the partitions and offsets of their records."""

from collections.abc import Collection, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.sources.factory import kind_of
from game_events.sources.source import Partition


def since(offsets: Mapping[Partition, int]) -> Column:
    """Of these topics, at or after these offsets of their partitions."""
    if not offsets:
        return F.lit(False)
    # One map, however many topics and partitions there are.
    pairs = ((F.lit(_place_of(partition)), F.lit(offset).cast("long")) for partition, offset in sorted(offsets.items()))
    firsts = F.create_map(*(column for pair in pairs for column in pair))
    return F.coalesce(F.col("_kafka_offset") >= F.try_element_at(firsts, _place()), F.lit(False))


def not_read(partitions: Collection[Partition]) -> Column:
    """Of topics or partitions that are not among these, which a full refresh reads: it keeps these rows.

    Rows of a topic of the same name and another id are not kept: the topic was recreated. Of sources without topics exactly the
    rows of the partitions are replaced. Beside a source that is bronze's only one (`Source.alone`) none is kept.
    """
    if not partitions or any(kind_of(partition.kind).alone for partition in partitions):
        return F.lit(False)
    topics = sorted({partition.topic for partition in partitions})
    ids = sorted({partition.topic_id for partition in partitions})
    read = F.array(*(F.lit(_place_of(partition)) for partition in sorted(partitions)))
    if not all(partition.has_record_offsets for partition in partitions):
        return ~F.array_contains(read, _place())
    other_partition = F.col("_kafka_topic_id").isin(*ids) & ~F.array_contains(read, _place())
    return F.coalesce(~F.col("_kafka_topic").isin(*topics) | other_partition, F.lit(False))


def _place() -> Column:
    return F.concat_ws(":", F.col("_kafka_topic_id"), F.col("_kafka_partition").cast("string"))


def _place_of(partition: Partition) -> str:
    return f"{partition.topic_id}:{partition.number}"
