"""Several reports as one: the cycles of a run that goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from game_events.lakehouse.layers import Layer, is_gold
from game_events.pipeline.reporting.latency import Histogram
from game_events.pipeline.reporting.lineage_result import LineageAccount
from game_events.pipeline.reporting.report import RunReport, TableReport

#: Notices that a sum keeps, the newest: of a run that goes on for days not every one is told at its end.
NOTICES_KEPT = 100


def _replaced(layer: str) -> bool:
    """Whether a layer's tables are replaced: rows of two refreshes are no sum."""
    return layer == Layer.UNIFIED or is_gold(layer)


def report_sum(reports: Sequence[RunReport]) -> RunReport:
    """The reports added up, in their order.

    Rows, counters, seconds and latencies are sums; offsets reach from the first to the last; lag, versions, checks and what
    waits for a layer or its interval are the newest. A notice that several have is told once, and the newest are kept.
    """
    whole = RunReport()
    tables: dict[str, TableReport] = {}
    for report in reports:
        for entry in report.tables:
            before = tables.get(entry.table)
            tables[entry.table] = _later(before, entry) if before is not None else replace(entry)
        for lane, (start, end) in report.offsets.items():
            whole.offsets[lane] = (whole.offsets.get(lane, (start, end))[0], end)
        # Of a topic that was made anew, or is gone, nothing waits any more.
        whole.lag = dict(report.lag or whole.lag)
        whole.batches += report.batches
        whole.schema_ids |= report.schema_ids
        whole.new_schemas |= report.new_schemas
        whole.rejected += report.rejected
        whole.other_types += report.other_types
        whole.unrouted += report.unrouted
        whole.replayed += report.replayed
        whole.readmitted += report.readmitted
        for key, rule in report.rules.items():
            so_far = whole.rules.get(key)
            counts = (so_far.rows + rule.rows, so_far.violated + rule.violated) if so_far else (rule.rows, rule.violated)
            whole.rules[key] = replace(rule, rows=counts[0], violated=counts[1])
        whole.gaps += report.gaps
        whole.expired += report.expired
        # What waits is as it was seen last.
        whole.files = Counter({k: n for k, n in whole.files.items() if k != "waiting"}) + report.files
        whole.add_upkeep(report.upkeep.values())
        whole.suppressed += report.suppressed
        whole.registered += report.registered
        if report.lineage is not None:
            whole.lineage = whole.lineage or LineageAccount()
            whole.lineage.add(report.lineage)
        whole.notices = list(dict.fromkeys([*whole.notices, *report.notices]))[-NOTICES_KEPT:]
        for layer, seconds in report.seconds.items():
            whole.seconds[layer] = whole.seconds.get(layer, 0.0) + seconds
        for layer, times in report.latency.items():
            whole.latency.setdefault(layer, Histogram()).merge(times)
        whole.waiting = report.waiting
        if Layer.GOLD in report.seconds:
            whole.postponed = list(report.postponed)
    whole.tables = list(tables.values())
    whole.checks = list({check.name: check for report in reports for check in report.checks}.values())
    return whole


def _later(before: TableReport, after: TableReport) -> TableReport:
    """Two entries of one table. A failure stays only until the table has changed again."""
    if after.error is not None:
        return replace(before, error=after.error)
    rows = after.rows if _replaced(after.layer) else before.rows + after.rows
    columns = list(dict.fromkeys([*before.new_columns, *after.new_columns]))
    if before.violations is not None:
        after = replace(after, violations=before.violations + (after.violations or Counter()))
    after = replace(after, dropped=before.dropped + after.dropped, quarantined=before.quarantined + after.quarantined)
    return replace(after, rows=rows, new=before.new or after.new, new_columns=columns)
