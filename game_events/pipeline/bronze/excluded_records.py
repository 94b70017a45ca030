"""Records that go to quarantine without being decoded: too large ones, and ones that crash a worker.

Large records are cut in the JVM: no worker, no Arrow batch and no file ever holds one whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.decoding.core.reasons import KEPT_BYTES, Reason, too_large
from game_events.lakehouse.event_columns import no_headers
from game_events.sources.core.source import Split

#: Columns with a record's reason and detail for quarantine; NULL: it is to be decoded.
WHY = ("reason", "detail")
#: Split and offset of a record that crashes a worker -> detail for quarantine.
Deadly = Mapping[tuple[Split, int], str]


def mark_excluded(records: DataFrame, most: int, deadly: Deadly) -> DataFrame:
    """A source's records with the columns `WHY`; of those that are too large only the first bytes.

    Args:
        records: columns `RAW_COLUMNS`.
        most: bytes of value, key and headers together that a record may have.
        deadly: records that crash a worker.
    """
    value, key, headers = (F.col(name) for name in ("value", "key", "headers"))
    in_headers = _bytes_of(headers)
    size = F.coalesce(F.length(value), F.lit(0)) + F.coalesce(F.length(key), F.lit(0)) + in_headers
    large = size > most
    before, after = too_large("\0", most).split("\0")
    reason = F.when(large, F.lit(str(Reason.TOO_LARGE)))
    detail = F.when(large, F.concat(F.lit(before), F.format_number(size, 0), F.lit(after)))
    for (split, offset), why in deadly.items():
        here = (F.col("topic_id") == split.topic_id) & (F.col("partition") == split.partition) & (F.col("offset") == offset)
        reason, detail = reason.when(here, F.lit(str(Reason.MALFORMED))), detail.when(here, F.lit(why))

    def kept(column: Column) -> Column:
        return F.when(large, F.substring(column, 1, KEPT_BYTES)).otherwise(column)

    return records.withColumns(
        {
            "value": kept(value),
            "key": kept(key),
            "headers": F.when(large & (in_headers > min(most, KEPT_BYTES)), no_headers()).otherwise(headers),
            WHY[0]: reason,
            WHY[1]: detail,
        }
    )


def _bytes_of(headers: Column) -> Column:
    """Bytes of a record's headers, as one text: Spark compiles that, and does not compile a function for each header."""
    texts = F.concat(headers["key"], headers["value"].cast("array<string>"))
    return F.when(F.size(headers) > 0, F.octet_length(F.array_join(texts, ""))).otherwise(0)
