"""What the lakehouse tests share: small tables, and DuckDB as the reader that is not ours."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.versions import OldVersions
from game_events.lakehouse.data.staging import staged
from game_events.lakehouse.table_properties import Retention
from game_events.lakehouse.tables import table_id
from game_events_tests.support.reconciliation import database

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def put(table, rows, set_transactions=None, info=None, **options):
    """A commit of rows (or their columns) after the newest version, with further attributes of a `Commit`.

    Returns the table after it.
    """
    rows = pa.table(rows)
    files = options.pop("files", None)
    files = staged(table, rows) if files is None else files
    options = {"expect_transactions": {}, "table_id": table_id(table.open()), **options}
    commit(Commit(table, rows.schema, files, set_transactions=set_transactions or {}, info=info or {}, **options))
    return table.open()


def staged_numbers(table, numbers, schema=SCHEMA, **columns):
    """Files with the given numbers, not committed."""
    numbers = list(numbers)
    data = {"n": numbers, "s": [str(n) for n in numbers]} | columns
    return staged(table, pa.table({f.name: pa.array(data[f.name], f.type) for f in schema}, schema=schema))


def plan(table, numbers, before, after, *, app="txn", schema=SCHEMA, **options):
    """A commit that moves one `txn`."""
    files = options.pop("files", None)
    files = staged_numbers(table, numbers, schema) if files is None else files
    options = {"table_id": table_id(table.open()), **options}
    return Commit(table, schema, files, {app: before}, {app: after}, **options)


def rows(table, columns="*"):
    """Rows of the newest version, sorted, as DuckDB reads the files that the log names."""
    files = DeltaTable(table.uri).file_uris()
    if not files:
        return []
    with database().cursor() as cursor:
        found = cursor.execute(f"SELECT {columns} FROM read_parquet(?, union_by_name => true) ORDER BY ALL", [files])
        return found.fetchall()


def numbers(table):
    """The numbers of a table, sorted."""
    return [n for (n,) in rows(table, "n")]


def grow_old(table):
    """Entries and checkpoints of its log are older than a second, in which Delta counts how long they stay."""
    for entry in Path(table.uri, "_delta_log").glob("0*"):
        os.utime(entry, (time.time() - 2,) * 2)


def without_retention(table):
    """The table, of which no older version is to be kept."""
    return replace(table, retention=Retention(every_h=1e-9, kept_h=1e-9, derived_h=1e-9))


def thin_out(table, **options):
    """Thin out its older versions; returns the number of deleted files."""
    return OldVersions(table, **options).thin_out(table.open())


def forget_older(table):
    """Delete entries and checkpoints before the newest checkpoint, whatever their age; returns how many."""
    log = Path(table.uri, "_delta_log")
    newest = max(int(file.name[:20]) for file in log.glob("*.checkpoint.parquet"))
    older = [file for file in log.glob("0*") if int(file.name[:20]) < newest]
    for file in older:
        file.unlink()
    return len(older)


def data_files(table):
    """Names of the Parquet files on disk, committed or not."""
    return {f.name for f in Path(table.uri).glob("*.parquet")}


def committed_files(table):
    """Names of the files of the newest version."""
    return {Path(uri).name for uri in DeltaTable(table.uri).file_uris()}


def fails_before(error):
    """A call that never happens."""

    def call(*_, **__):
        raise error

    return call


def txn(table, app="txn"):
    return DeltaTable(table.uri).transaction_version(app)


def both(*calls):
    """Calls at the same moment; what each returned or raised."""
    start = threading.Barrier(len(calls))

    def one(call):
        start.wait()
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def assert_nothing_left_over(table):
    """Every file on disk is in the log of some version."""
    assert data_files(table) == committed_files(table)
