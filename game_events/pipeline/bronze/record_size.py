"""Records that are too large are cut before they leave the JVM: no worker, no Arrow batch and no file ever holds one whole."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from game_events.decoding.core.reasons import KEPT_BYTES, Reason, too_large
from game_events.lakehouse.event_columns import no_headers

#: Columns that say of a record what quarantine says of it; NULL: it is not too large.
WHY = ("reason", "detail")


def cut(records: DataFrame, most: int) -> DataFrame:
    """A source's records with the columns `WHY`; of those that are too large only the first bytes.

    Args:
        records: columns `RAW_COLUMNS`.
        most: bytes of value, key and headers together that a record may have.
    """
    value, key, headers = (F.col(name) for name in ("value", "key", "headers"))
    in_headers = _bytes_of(headers)
    size = F.coalesce(F.length(value), F.lit(0)) + F.coalesce(F.length(key), F.lit(0)) + in_headers
    large = size > most
    before, behind = too_large("\0", most).split("\0")
    told = F.concat(F.lit(before), F.format_number(size, 0), F.lit(behind))

    def kept(column: Column) -> Column:
        return F.when(large, F.substring(column, 1, KEPT_BYTES)).otherwise(column)

    return records.withColumns(
        {
            "value": kept(value),
            "key": kept(key),
            "headers": F.when(large & (in_headers > min(most, KEPT_BYTES)), no_headers()).otherwise(headers),
            WHY[0]: F.when(large, F.lit(str(Reason.TOO_LARGE))),
            WHY[1]: F.when(large, told),
        }
    )


def _bytes_of(headers: Column) -> Column:
    """Bytes of a record's headers: of them as one text, as Spark compiles that, and a function for each header it does not."""
    texts = F.concat(headers["key"], headers["value"].cast("array<string>"))
    return F.when(F.size(headers) > 0, F.octet_length(F.array_join(texts, ""))).otherwise(0)
