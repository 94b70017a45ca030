"""Tables as Iceberg's own library reads them, beside the files that Delta's log names, as DuckDB reads them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile

from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.iceberg.catalog import open_catalog
from game_events.plugins.iceberg.current import KnownTables, tables_of
from game_events.plugins.iceberg.observer import IcebergObserver
from game_events.plugins.iceberg.settings import IcebergSettings
from game_events.plugins.iceberg.work import IcebergResult, catch_up
from game_events_tests.support.reconciliation import database


def run_ended(pipeline, job="refresh") -> RunReport:
    """What the plug-in reports at the end of a run."""
    report = RunReport()
    IcebergObserver(pipeline, job, False).close(report, None, stopped=False)
    return report


def caught_up(pipeline, *, forget=False) -> IcebergResult:
    """Commit what tables have become, in this thread."""
    known = KnownTables(pipeline.settings, pipeline.lakehouse)
    tables = tables_of(pipeline.lakehouse)
    return catch_up(pipeline, known, tables if forget else known.due(tables), forget=forget)


def iceberg_table(pipeline, table):
    """The Iceberg table, loaded anew."""
    namespace = IcebergSettings.of(pipeline.settings).iceberg_namespace
    return open_catalog(pipeline.settings, pipeline.lakehouse).load_table((namespace, table.name))


def rows_in_iceberg(held, where=None, snapshot=None) -> list[str]:
    """Rows of the current snapshot of an Iceberg table, or of another one, sorted, as texts."""
    return sorted_rows(held.scan(row_filter=where or AlwaysTrue(), snapshot_id=snapshot).to_arrow())


def rows_in_delta(table, where="true") -> list[str]:
    """Rows of the newest version, likewise; files are read by DuckDB, columns that no file has are NULL."""
    handle = DeltaTable(table.uri)
    names = [field.name for field in handle.schema().fields]
    schema = pa.schema(handle.schema())
    files = handle.file_uris()
    if not files:
        return []
    with database().cursor() as connection:
        # The columns are Delta's, so that a predicate may name any of them.
        connection.register("none_of_it", pa.table({f.name: pa.array([], f.type) for f in schema}, schema=schema))
        options = "union_by_name => true, hive_partitioning => true"
        read = f"SELECT * FROM none_of_it UNION ALL BY NAME SELECT * FROM read_parquet(?, {options})"
        chosen = ", ".join(f'"{name}"' for name in names)
        rows = connection.sql(f"SELECT {chosen} FROM ({read}) WHERE {where}", params=[files]).to_arrow_table()
    return sorted_rows(rows.cast(schema))


def sorted_rows(rows: pa.Table) -> list[str]:
    """Rows as texts, sorted."""
    return sorted(repr(sorted(row.items())) for row in rows.to_pylist())


def metadata_files(table) -> set[str]:
    """Names of the files of Iceberg's metadata on disk."""
    return {file.name for file in Path(table.uri, "_iceberg").iterdir()}


def entries_in_history(held) -> list[DataFile]:
    """Entries of all snapshots, those of removed files, too."""
    lists = [manifest for snapshot in held.metadata.snapshots for manifest in snapshot.manifests(held.io)]
    return [entry.data_file for each in lists for entry in each.fetch_manifest_entry(held.io, discard_deleted=False)]
