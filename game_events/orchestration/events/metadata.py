"""A run's report as Dagster metadata; nothing is computed here."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import dagster as dg

from game_events.decoding.core.wire_format import ordered
from game_events.lakehouse.layers import REPORTED
from game_events.orchestration.events.texts import as_text
from game_events.orchestration.keys import DEFAULT, Keys
from game_events.pipeline.reporting.latency import Histogram
from game_events.pipeline.reporting.result import RunResult
from game_events.pipeline.reporting.tables import TableReport
from game_events.sources.core.source import Split

#: Reasons, or rules, with a plot of their own.
PLOTTED = 5


def table_metadata(entry: TableReport, report: RunResult, keys: Keys = DEFAULT, *, whole: bool = True) -> dict[str, Any]:
    """Metadata of one table's materialization: Dagster's standard keys, then this pipeline's own.

    `whole`: with the columns even if the run did not change them, and with the layer's duration. Both are half of an event.
    """
    metadata: dict[str, Any] = {
        "dagster/row_count": entry.table_rows,
        "rows_committed": entry.rows,
        "dagster/uri": dg.MetadataValue.path(entry.location),
        "dagster/table_name": keys.table_name(entry.table),
        "dagster/size_bytes": entry.table_bytes,
        "delta_version": entry.version,
    }
    if whole or entry.new or entry.new_columns:
        columns = [dg.TableColumn(name, type=kind, description=_comment(entry, name)) for name, kind in entry.columns]
        metadata["dagster/column_schema"] = dg.TableSchema(columns)
    if entry.batch is not None:
        metadata["bronze_batch"] = entry.batch
    if entry.new_columns:
        metadata["new_columns"] = ", ".join(entry.new_columns)
    if entry.violations is not None:
        metadata["violations"] = dict(entry.violations)
        metadata |= _plotted("violations", entry.violations)
        if entry.layer == "silver":
            metadata |= {"rows_dropped": entry.dropped, "rows_quarantined": entry.quarantined}
    if entry.layer == "bronze":
        metadata |= read_metadata(report)
    if entry.layer == "quarantine":
        metadata["reasons"] = dict(report.rejected)
        metadata |= _plotted("rejected", report.rejected)
        metadata["rejected_rows"] = sum(report.rejected.values())
    for f in fields(report):
        asset, value = f.metadata["asset"], getattr(report, f.name)
        if asset is not None and asset[0] == entry.layer and value:
            metadata[asset[1]] = asset[2](value)
    if whole and entry.layer in report.seconds:
        seconds = report.seconds[entry.layer]
        metadata["layer_seconds"] = round(seconds, 3)
        metadata["layer_rows_per_second"] = round(report.rows(entry.layer) / seconds, 1) if seconds else None
    return {key: value for key, value in metadata.items() if value is not None}


def _comment(entry: TableReport, column: str) -> str | None:
    found = entry.comments.get(column)
    return None if found is None else as_text(found)


def _plotted(name: str, counts: Mapping[str, int]) -> Mapping[str, int]:
    """The largest counts as numbers of their own: Dagster plots numbers, and shows mappings as text."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:PLOTTED]
    return {f"{name}_{key}": count for key, count in most}


def read_metadata(report: RunResult) -> Mapping[str, Any]:
    """What was read from Kafka."""
    return {
        "offsets": partition_table(
            ("from", "to", "lag"), {p: (*ends, report.lag.get(p, 0)) for p, ends in sorted(report.offsets.items())}
        ),
        "lag": sum(report.lag.values()),
        "rejected_rows": sum(report.rejected.values()),
        "schema_ids": sorted(report.schema_ids, key=ordered),
        "batches": report.batches,
        **latency_metadata(report.latency),
    }


def partition_table(names: Sequence[str], numbers: Mapping[Split, Sequence[int]]) -> dg.TableMetadataValue:
    """Numbers of partitions, a column for each name."""
    columns = ("topic", "partition", *names)
    rows = [dg.TableRecord(dict(zip(columns, (p.topic, p.partition, *found), strict=True))) for p, found in numbers.items()]
    kinds = [dg.TableColumn(column, type="string" if column == "topic" else "int") for column in columns]
    return dg.MetadataValue.table(rows, schema=dg.TableSchema(kinds))


def latency_metadata(latency: Mapping[str, Histogram]) -> Mapping[str, float]:
    """How long records took from Kafka's timestamp to each layer: one number each, so that Dagster plots them."""
    found = {}
    for layer, times in latency.items():
        for share, name in ((0.5, "p50"), (0.95, "p95")):
            seconds = times.percentile(share)
            if seconds is not None:
                found[f"produce_to_{layer}_{name}_s"] = round(seconds, 2)
    return found


def latency_table(latency: Mapping[str, Histogram]) -> str:
    """The histograms as Markdown: rows that became visible within so many seconds."""
    bounds = (0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 30, 60, 300, float("inf"))
    layers = [layer for layer in REPORTED if layer in latency and latency[layer].total]
    if not layers:
        return "no rows"
    lines = [f"| seconds | {' | '.join(layers)} |", "|---" * (len(layers) + 1) + "|"]
    for name, share in (("p50", 0.5), ("p95", 0.95)):
        lines.append(f"| {name} | " + " | ".join(f"{latency[layer].percentile(share):.1f}" for layer in layers) + " |")
    below = 0.0
    for bound in bounds:
        cells = []
        for layer in layers:
            rows = sum(n for upper, n in latency[layer].buckets() if below < upper <= bound)
            share = rows / latency[layer].total
            cells.append(f"{'█' * round(20 * share)} {share:.1%}" if rows else "")
        if any(cells):
            lines.append(f"| {below:g} to {bound:g} | " + " | ".join(cells) + " |")
        below = bound
    return "\n".join(lines)
