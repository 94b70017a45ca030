"""Conditions on rows of bronze and quarantine, by the splits and offsets of their records."""

from collections.abc import Collection, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from game_events.sources.core.source import FILES, TABLE, Split


def since(offsets: Mapping[Split, int]) -> Column:
    """Condition on rows of bronze and quarantine: of these topics, at or after these offsets of their partitions."""
    if not offsets:
        return F.lit(False)
    # One map, however many topics and partitions there are.
    pairs = ((F.lit(f"{split.topic_id}:{split.partition}"), F.lit(at).cast("long")) for split, at in sorted(offsets.items()))
    firsts = F.create_map(*(column for pair in pairs for column in pair))
    place = F.concat_ws(":", F.col("_kafka_topic_id"), F.col("_kafka_partition").cast("string"))
    return F.coalesce(F.col("_kafka_offset") >= F.try_element_at(firsts, place), F.lit(False))


def not_read(splits: Collection[Split]) -> Column:
    """Condition on rows of bronze and quarantine that a full refresh keeps: of topics or partitions that are not read now.

    Rows of a topic of the same name and another id are not kept: the topic was recreated. With files as the source all rows are
    kept but those of the split of files and of the topics' splits in an archive. With a table as the source none is kept.
    """
    kinds = {split.kind for split in splits}
    if not splits or TABLE in kinds:
        return F.lit(False)
    topics, ids = sorted({split.topic for split in splits}), sorted({split.topic_id for split in splits})
    place = F.concat_ws(":", F.col("_kafka_topic_id"), F.col("_kafka_partition").cast("string"))
    read = F.array(*(F.lit(f"{split.topic_id}:{split.partition}") for split in sorted(splits)))
    if FILES in kinds:
        return ~F.array_contains(read, place)
    other_partition = F.col("_kafka_topic_id").isin(*ids) & ~F.array_contains(read, place)
    return F.coalesce(~F.col("_kafka_topic").isin(*topics) | other_partition, F.lit(False))
