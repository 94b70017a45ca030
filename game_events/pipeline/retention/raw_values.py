"""Raw values of bronze's older rows become NULL (`RETENTION_DAYS: {raw: ...}`): the rows and their columns stay.

A file is rewritten once a value in it is older than the limit by a day. Whoever would put rows with these values back (a
redecode, a full refresh) compares `Txn.RAW_EXPIRED`. A redecode keeps the columns of rows without a raw value as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.config.retention import RetentionDays
from game_events.errors import ConflictError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import EXPIRED_INFO, MAINTENANCE_INFO, Txn, counter, txns
from game_events.lakehouse.data.columns import MESSAGE_TYPE
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.data.rewriting import Rewriting
from game_events.lakehouse.maintenance import MOST_BYTES
from game_events.lakehouse.tables import Table, table_id
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.result import TableMaintenance
from game_events.pipeline.retention.ages import DAY_US, Ages, Numbers
from game_events.pipeline.retention.files import File, Removal, candidates
from game_events.pipeline.retention.settled import ARRIVAL

RAW = "_raw_value"


@dataclass
class OldValues:
    """Files with raw values that go, and how many of these go; `left`: files for the next time."""

    files: list[str] = field(default_factory=list)
    values: int = 0
    left: int = 0


def drop_raw_values(
    pipeline: Pipeline, days: RetentionDays, bronze: DeltaTable, now_us: int, done: TableMaintenance
) -> DeltaTable:
    """Take the older raw values away; returns bronze's newest version."""
    table = pipeline.bronze
    ages = _ages(pipeline, days, now_us)
    found = find_raw_values(pipeline, days, bronze, now_us)
    done.raw_values = found.values
    if not found.files:
        return bronze
    try:
        table.writable(bronze, replaced=True)
        commit(_plan(pipeline, table, bronze, ages, found))
    except ConflictError as error:
        done.raw_values = 0
        done.skipped = str(error)
    else:
        failpoints.reach("raw_values_dropped")
    return table.open() or bronze


def _ages(pipeline: Pipeline, days: RetentionDays, now_us: int) -> Ages:
    return Ages("raw", days, now_us, (ARRIVAL,), game_column=pipeline.settings.entity_column, type_column=MESSAGE_TYPE)


def find_raw_values(
    pipeline: Pipeline, days: RetentionDays, bronze: DeltaTable, now_us: int, removal: Removal | None = None
) -> OldValues:
    """The files to rewrite, the oldest first, at most `MOST_BYTES` of them; `removal`: rows that would be gone by then."""
    removal = removal or Removal()
    found = OldValues()
    size = 0
    values_in = partial(_values_in, pipeline.bronze, bronze, _ages(pipeline, days, now_us), removal)
    for file in candidates(bronze, _ages(pipeline, days, now_us), RAW):
        if file.path in removal.whole or file.nulls == file.rows:
            continue
        values, is_overdue = values_in(file)
        if not (values and is_overdue):
            continue
        if size and size + file.size > MOST_BYTES:
            found.left += 1
            continue
        size += file.size
        found.files.append(file.path)
        found.values += values
    return found


def _values_in(table: Table, bronze: DeltaTable, ages: Ages, removal: Removal, file: File) -> tuple[int, bool]:
    """How many raw values of a file are too old, and whether one of them is so by a day; mostly its raw values are not read."""
    older = overdue = 0
    rows_of = partial(_rows_of, table, bronze, ages, removal, file)
    for time_us, limit_us, _ in rows_of(ages.columns()):
        older += int((time_us < limit_us).sum())
        overdue += int(((time_us < limit_us) & (time_us < limit_us - DAY_US)).sum())
    if not overdue or file.nulls == 0:
        return older, overdue > 0
    values = 0
    is_overdue = False
    for time_us, limit_us, rows in rows_of([*ages.columns(), RAW]):
        goes = (time_us < limit_us) & np.asarray(pc.is_valid(rows.column(RAW)).to_numpy())
        values += int(goes.sum())
        is_overdue |= bool((goes & (time_us < limit_us - DAY_US)).any())
    return values, is_overdue


def _rows_of(
    table: Table, bronze: DeltaTable, ages: Ages, removal: Removal, file: File, columns: list[str]
) -> Iterator[tuple[Numbers, Numbers, pa.Table]]:
    stays = removal.stays if file.path in removal.changed else None
    wanted = {*columns, *(removal.columns if stays is not None else ())}
    schema = pa.schema([item for item in pa.schema(bronze.schema()) if item.name in wanted])
    for rows in read_parts(table, schema, [file.path]):
        left = rows if stays is None else stays(rows)
        yield (*ages.time_and_limit(left), left)


def _plan(pipeline: Pipeline, table: Table, bronze: DeltaTable, ages: Ages, found: OldValues) -> Commit:
    def without(rows: pa.Table) -> pa.Table:
        time_us, limit_us = ages.time_and_limit(rows)
        column = rows.column(RAW)
        kept = pc.if_else(pa.array(time_us < limit_us), pa.scalar(None, column.type), column)
        return rows.set_column(rows.column_names.index(RAW), rows.schema.field(RAW), kept)

    files = Rewriting(table, bronze).one_by_one(found.files, without)
    failpoints.reach("raw_values_staged")
    advance: dict[str, int] = {Txn.RAW_EXPIRED: max(ages.latest_limit // 1_000, counter(bronze, Txn.RAW_EXPIRED) + 1)}
    return Commit(
        table,
        pa.schema([]),
        files,
        txns(bronze, (Txn.RAW_EXPIRED, Txn.INCARNATION)),
        advance,
        table_id(bronze),
        bronze.version(),
        rewritten=frozenset(found.files),
        info={MAINTENANCE_INFO: "raw values by age", EXPIRED_INFO: "0", "run_id": pipeline.run_id},
    )
