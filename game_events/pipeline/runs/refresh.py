"""One run over all layers, or over selected ones, for Dagster's jobs and assets and the command line."""

from __future__ import annotations

from collections.abc import Callable

from game_events.lakehouse.layers import Layer
from game_events.lakehouse.storage.errors import storage_named
from game_events.pipeline.bronze.full_refresh import replace_bronze
from game_events.pipeline.bronze.full_refresh_guard import refuse_unless_allowed
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.refresh import refresh_gold, refresh_own_gold
from game_events.pipeline.gold.unified import refresh_unified
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing.auto_replay import replay_what_became_known
from game_events.pipeline.runs.lost_tables import find_lost_tables
from game_events.pipeline.runs.selection import EVERYTHING, Selection
from game_events.pipeline.silver.refresh import refresh_silver
from game_events.sources.core.source import SourceSnapshot


def refresh(
    pipeline: Pipeline,
    report: RunReport | None = None,
    selection: Selection = EVERYTHING,
    *,
    ignore_intervals: bool = False,
) -> RunReport:
    """Triggered mode: read the source up to its current end, then refresh the selected layers.

    The report gets the result of each step, so that it is complete if a later step fails. `ignore_intervals`: refresh custom
    aggregates before their interval has passed, too.

    Raises:
        ConfigurationError: a full refresh of bronze is not allowed; nothing was changed.
        GameEventsError: the run cannot continue (broker, registry, settings); what was committed stays, and the next run
            continues from there. A game that fails alone is in the report instead.
    """
    report = RunReport() if report is None else report
    with storage_named(pipeline.lakehouse.root):
        if selection == EVERYTHING:
            find_lost_tables(pipeline, report)
            cycle(pipeline, report, ignore_intervals=ignore_intervals)
        else:
            _selected(pipeline, report, selection, ignore_intervals=ignore_intervals)
    return report


def _selected(pipeline: Pipeline, report: RunReport, selection: Selection, *, ignore_intervals: bool) -> None:
    report.warn(*selection.notices)
    if Layer.BRONZE in selection.full:
        refuse_unless_allowed(pipeline)
        replace_bronze(pipeline, report)
    if Layer.BRONZE in selection.update:
        load_bronze(pipeline, report)
        replay_what_became_known(pipeline, report)
    refresh_selected(pipeline, report, selection, ignore_intervals=ignore_intervals)


def cycle(
    pipeline: Pipeline,
    report: RunReport,
    *,
    until: SourceSnapshot | None = None,
    slices: int | None = None,
    gold: bool = True,
    ignore_intervals: bool = False,
    go_on: Callable[[], bool] = lambda: True,
) -> None:
    """One cycle of both modes: micro-batches to bronze, bronze to silver, silver to gold and the unified table.

    Args:
        pipeline: the parts.
        report: gets the result of each step.
        until: a recent snapshot of the source; None: take one.
        slices: most commits of bronze; None: up to `until`.
        gold: False leaves gold and the unified table for later.
        ignore_intervals: refresh custom aggregates before their interval has passed, too.
        go_on: called between the steps; False ends the cycle there. The next cycle or run continues from its commits.
    """
    load_bronze(pipeline, report, until, slices)
    if not go_on():
        return
    replay_what_became_known(pipeline, report)
    refresh_downstream(pipeline, report, gold=gold, ignore_intervals=ignore_intervals, just_loaded=True, go_on=go_on)


def refresh_downstream(
    pipeline: Pipeline,
    report: RunReport,
    *,
    full: bool = False,
    gold: bool = True,
    ignore_intervals: bool = False,
    just_loaded: bool = False,
    go_on: Callable[[], bool] = lambda: True,
) -> None:
    """Refresh silver, gold and the unified table; `full`: replace every game's rows from bronze.

    Gold detects a replaced silver table, after a crash too. `gold` and `go_on` as for `cycle`, `just_loaded` as for
    `refresh_silver`.
    """
    refresh_silver(pipeline, report, full=full, just_loaded=just_loaded)
    report.visible(Layer.SILVER)
    if gold and go_on():
        refresh_gold(pipeline, report)
        report.visible(Layer.GOLD)
        refresh_unified(pipeline, report)
        report.visible(Layer.UNIFIED)
        refresh_own_gold(pipeline, report, ignore_intervals=ignore_intervals)


def refresh_selected(pipeline: Pipeline, report: RunReport, selection: Selection, *, ignore_intervals: bool = False) -> None:
    """Refresh the selected layers after bronze, in order: per layer first the full refreshes."""
    update, full = selection.update, selection.full
    # Latencies are measured only if all games are refreshed.
    whole = all(layer in update and update[layer] is None for layer in (Layer.SILVER, Layer.GOLD))
    # After a full refresh of bronze, silver is replaced in any case.
    if Layer.SILVER in full and not (Layer.BRONZE in full and full[Layer.SILVER] is None):
        refresh_silver(pipeline, report, full[Layer.SILVER], full=True)
    if Layer.SILVER in update:
        refresh_silver(pipeline, report, update[Layer.SILVER])
        if update[Layer.SILVER] is None:
            report.visible(Layer.SILVER)
    if Layer.GOLD in full:
        refresh_gold(pipeline, report, full[Layer.GOLD], full=True)
    if Layer.GOLD in update:
        refresh_gold(pipeline, report, update[Layer.GOLD])
        if whole:
            report.visible(Layer.GOLD)
    if Layer.UNIFIED in update:
        refresh_unified(pipeline, report, full=Layer.UNIFIED in full)
        if whole:
            report.visible(Layer.UNIFIED)
    for aggregate in pipeline.extensions.aggregates:
        if aggregate.layer in full:
            refresh_gold(pipeline, report, full[aggregate.layer], full=True, aggregate=aggregate)
    chosen = None if selection == EVERYTHING else update
    refresh_own_gold(pipeline, report, chosen, ignore_intervals=ignore_intervals)
