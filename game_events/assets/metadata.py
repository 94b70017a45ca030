"""A run's report as Dagster metadata; nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from game_events.decoding.frames import ordered
from game_events.pipeline.report import RunReport, TableReport


def table_metadata(entry: TableReport, report: RunReport) -> dict[str, Any]:
    """Metadata of one table's materialization: Dagster's standard keys, then this pipeline's own."""
    metadata: dict[str, Any] = {
        "dagster/row_count": entry.table_rows,
        "rows_committed": entry.rows,
        "dagster/uri": dg.MetadataValue.path(entry.location),
        "dagster/table_name": entry.table,
        "dagster/column_schema": dg.TableSchema([dg.TableColumn(name, type=kind) for name, kind in entry.columns]),
        "table_bytes": entry.table_bytes,
        "delta_version": entry.version,
    }
    if entry.batch is not None:
        metadata["bronze_batch"] = entry.batch
    if entry.new_columns:
        metadata["new_columns"] = ", ".join(entry.new_columns)
    if entry.layer == "bronze":
        metadata |= read_metadata(report)
    if entry.layer == "quarantine":
        metadata["reasons"] = dict(report.rejected)
        metadata["rejected_rows"] = sum(report.rejected.values())
    if entry.layer in report.seconds:
        seconds = report.seconds[entry.layer]
        metadata["layer_seconds"] = round(seconds, 3)
        metadata["layer_rows_per_second"] = round(report.rows(entry.layer) / seconds, 1) if seconds else None
    return {key: value for key, value in metadata.items() if value is not None}


def read_metadata(report: RunReport) -> Mapping[str, Any]:
    """What was read from Kafka."""
    offsets = [
        dg.TableRecord({"partition": p, "from": start, "to": end, "lag": report.lag.get(p, 0)})
        for p, (start, end) in sorted(report.offsets.items())
    ]
    return {
        "offsets": dg.MetadataValue.table(
            offsets, schema=dg.TableSchema([dg.TableColumn(c, type="int") for c in ("partition", "from", "to", "lag")])
        ),
        "lag": sum(report.lag.values()),
        "rejected_rows": sum(report.rejected.values()),
        "schema_ids": sorted(report.schema_ids, key=ordered),
        "batches": report.batches,
    }
