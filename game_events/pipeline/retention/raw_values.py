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
from game_events.errors import ConflictError, LostFileError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import EXPIRED_INFO, MAINTENANCE_INFO, Txn, counter, txns
from game_events.lakehouse.data.columns import MESSAGE_TYPE
from game_events.lakehouse.data.reading import read_parts
from game_events.lakehouse.data.rewriting import BATCH_ROWS
from game_events.lakehouse.tables import Table, table_id
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.result import TableMaintenance
from game_events.pipeline.retention.ages import DAY_US, Ages, Numbers
from game_events.pipeline.retention.files import File, Turn, candidates, rewritten
from game_events.pipeline.retention.settled import ARRIVAL

RAW = "_raw_value"


@dataclass
class OldValues:
    """Files with raw values that go, and how many of these go; `lost`: why a file could not be read."""

    files: dict[str, int] = field(default_factory=dict)
    lost: str | None = None

    @property
    def values(self) -> int:
        """Values that go."""
        return sum(self.files.values())


def drop_raw_values(
    pipeline: Pipeline, days: RetentionDays, bronze: DeltaTable, turn: Turn, done: TableMaintenance
) -> DeltaTable:
    """Take the older raw values away, or count them; returns bronze's newest version."""
    table = pipeline.bronze
    ages = Ages("raw", days, turn.now_us, (ARRIVAL,), game_column=pipeline.settings.entity_column, type_column=MESSAGE_TYPE)
    found = _find(table, bronze, ages, turn)
    done.error = found.lost or done.error
    if turn.dry_run or not found.files:
        done.raw_values = found.values
        turn.changed.update(found.files)
        return bronze
    try:
        table.writable(bronze, replaced=True)
        plan = _plan(pipeline, table, bronze, ages, found)
        done.error = found.lost or done.error
        if plan is not None:
            commit(plan)
            failpoints.reach("raw_values_dropped")
            done.raw_values = found.values
    except ConflictError as error:
        done.skipped = str(error)
    return table.open() or bronze


def _find(table: Table, bronze: DeltaTable, ages: Ages, turn: Turn) -> OldValues:
    """The files to write again, the oldest first."""
    found = OldValues()
    for file in candidates(bronze, ages, RAW):
        if file.path in turn.whole or file.nulls == file.rows:
            continue
        try:
            values, is_overdue = _values_in(table, bronze, ages, turn, file)
        except LostFileError as error:
            found.lost = str(error)
            continue
        if values and is_overdue and turn.takes(file.size):
            found.files[file.path] = values
    return found


def _values_in(table: Table, bronze: DeltaTable, ages: Ages, turn: Turn, file: File) -> tuple[int, bool]:
    """How many raw values of a file are too old, and whether one of them is so by a day; mostly its raw values are not read."""
    older = overdue = 0
    rows_of = partial(_rows_of, table, bronze, ages, turn, file)
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
    table: Table, bronze: DeltaTable, ages: Ages, turn: Turn, file: File, columns: list[str]
) -> Iterator[tuple[Numbers, Numbers, pa.Table]]:
    stays = turn.stays if file.path in turn.changed else None
    wanted = {*columns, *(turn.columns if stays is not None else ())}
    schema = pa.schema([item for item in pa.schema(bronze.schema()) if item.name in wanted])
    for rows in read_parts(table, schema, [file.path], BATCH_ROWS if RAW in columns else None):
        left = rows if stays is None else stays(rows)
        yield (*ages.time_and_limit(left), left)


def _plan(pipeline: Pipeline, table: Table, bronze: DeltaTable, ages: Ages, found: OldValues) -> Commit | None:
    """The commit of the files without the values; None: all of them are lost."""

    def without(rows: pa.Table) -> pa.Table:
        time_us, limit_us = ages.time_and_limit(rows)
        column = rows.column(RAW)
        kept = pc.if_else(pa.array(time_us < limit_us), pa.scalar(None, column.type), column)
        return rows.set_column(rows.column_names.index(RAW), rows.schema.field(RAW), kept)

    files, lost = rewritten(table, bronze, found.files, without)
    found.lost = next(iter(lost.values()), found.lost)
    found.files = {path: values for path, values in found.files.items() if path not in lost}
    failpoints.reach("raw_values_staged")
    if not found.files:
        return None
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
