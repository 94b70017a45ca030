"""Statistics of data files, by which readers leave out files and row groups: in Delta's log, and in each file's own footer.

Guarantee: the bounds that there are exclude no row that a predicate selects, in any reader. Two faults of others decide their
form:

- Arrow leaves NaN out of a footer's bounds, and readers for which NaN is the greatest number (Spark, DuckDB, DataFusion) then
  skip rows that match. Spark also misses -0.0 in a column with a dictionary when it is compared with 0.0. So floating-point
  columns have neither bounds nor dictionaries.
- arrow-json (delta-rs, delta-kernel, and so Polars and DuckDB) decodes characters from U+20000 on wrongly if they are escaped.
  So Delta's statistics are UTF-8 without escapes, but for control characters.

Files of earlier releases have both faults. Their names differ (`is_current`), so that maintenance finds them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from game_events.lakehouse.tables import is_person

#: Delta's own default of columns with statistics.
STATISTICS_COLUMNS = 32
#: Longer strings get no statistics instead of truncated ones.
STATISTICS_CHARS = 64
#: In the name of each file with statistics as this module describes them. Copies have the name of their file at the end.
_FORM = "v2"
_CURRENT = re.compile(rf"\.{_FORM}\.\w+\.parquet")


def new_name(codec: str) -> str:
    """Name of a new file, compressed by a codec."""
    return f"part-{uuid.uuid4()}.{_FORM}.{codec}.parquet"


def is_current(path: str) -> bool:
    """Whether a file's name says that its statistics are as this module describes them."""
    return _CURRENT.search(PurePosixPath(path).name) is not None


def leaves(field: pa.Field) -> Iterator[tuple[str, pa.DataType]]:
    """Path and type of each Parquet column of a field. Source: Parquet format, "LogicalTypes.md", nested types."""
    kind = field.type
    if pa.types.is_struct(kind):
        inner = [("", part) for part in kind]
    elif pa.types.is_map(kind):
        inner = [("key_value.", kind.key_field), ("key_value.", kind.item_field)]
    elif pa.types.is_nested(kind):
        inner = [("list.", kind.value_field.with_name("element"))]
    else:
        yield field.name, kind
        return
    for between, part in inner:
        yield from ((f"{field.name}.{between}{path}", leaf) for path, leaf in leaves(part))


def floating_columns(schema: pa.Schema) -> frozenset[str]:
    """Paths of the Parquet columns with floating-point numbers, in nested columns, too."""
    return frozenset(
        path
        for field in schema
        if pa.types.is_floating(field.type) or pa.types.is_nested(field.type)
        for path, kind in leaves(field)
        if pa.types.is_floating(kind)
    )


def exact_columns(schema: pa.Schema, floating: frozenset[str]) -> list[str] | bool:
    """Paths of all other Parquet columns than the floating-point ones; True: of all columns."""
    return [path for field in schema for path, _ in leaves(field) if path not in floating] if floating else True


def statistics_text(metadata: pq.FileMetaData, person: str | None = None, nulls: Mapping[str, int] | None = None) -> str:
    """Delta's per-file statistics as JSON, from a Parquet file's own, for the first flat columns.

    `person`: the data subject's columns have no bounds: these would be values in a log that outlives the rows. No reader needs
    them, and in a file of many subjects' events they exclude next to nothing. `nulls`: number of NULLs by column, of columns
    without statistics in the file.

    Source: Delta Lake protocol, "Per-file Statistics".
    """
    return json.dumps(_delta_statistics(metadata, person, nulls or {}), ensure_ascii=False)


def _delta_statistics(metadata: pq.FileMetaData, person: str | None, known: Mapping[str, int]) -> dict[str, Any]:
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    paths = tuple(metadata.schema.column(index).path for index in range(metadata.num_columns))
    for index, name, has_bounds in _columns_with_statistics(paths, person):
        if name in known:
            nulls[name] = known[name]
            continue
        parts = [group.column(index).statistics for group in groups]
        if any(p is None or not p.has_null_count for p in parts):
            continue
        nulls[name] = sum(p.null_count for p in parts)
        bounded = [p for p in parts if p.has_min_max] if has_bounds else []
        if not bounded or any(not p.has_min_max and p.num_values for p in parts):
            continue
        try:
            lowest, highest = _plain(min(p.min for p in bounded)), _plain(max(p.max for p in bounded))
        except OverflowError:  # a time outside the years 1 to 9999, as a Kafka timestamp may be
            continue
        if lowest is not None and highest is not None:
            low[name], high[name] = lowest, highest
    return {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


@lru_cache
def _columns_with_statistics(paths: tuple[str, ...], person: str | None) -> list[tuple[int, str, bool]]:
    """The first flat columns of a file with these Parquet columns: index, name, and whether bounds may be noted."""
    flat = [(index, path, not is_person(path, person)) for index, path in enumerate(paths) if "." not in path]
    return flat[:STATISTICS_COLUMNS]


def _plain(value: object) -> str | int | bool | None:
    """A statistic as JSON, or None for what Delta has no form for, and for floating-point numbers."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value if len(value) <= STATISTICS_CHARS else None
    if isinstance(value, datetime):
        # Not strftime: its %Y has no leading zeros. A time without a zone is none of this machine's.
        utc = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return utc.isoformat(timespec="microseconds") + ("Z" if value.tzinfo is not None else "")
    return value.isoformat() if isinstance(value, date) else None
