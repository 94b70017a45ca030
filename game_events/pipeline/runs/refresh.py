"""One run over all layers, or over those selected: the function that Dagster's job, its assets and the command line call."""

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
    """Triggered mode: read the topic up to the offsets seen now, then bring the selected layers up to date.

    Args:
        pipeline: the parts.
        report: filled as it goes, so that whoever gave it has what was done when it fails.
        selection: what is asked for.
        ignore_intervals: refresh aggregates of one's own whose interval has not passed yet, too.

    Raises:
        ConfigurationError: a full refresh of bronze that is not allowed; nothing was touched.
        GameEventsError: nothing more can be done (broker, registry, settings); what was committed stays, and the next run
            goes on from there. A game that fails alone is in the report instead.
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
    """What both modes repeat: slices of the topic to bronze, bronze to silver, silver to gold and the unified table.

    Args:
        pipeline: the parts.
        report: gets what was done; as it is filled step by step it is right after an error, too.
        until: the source as it was seen just now; None: it is asked.
        slices: so many commits of bronze at most; None: up to `until`.
        gold: False leaves gold and the unified table for later.
        ignore_intervals: refresh aggregates of one's own whose interval has not passed yet, too.
        go_on: asked between the steps; False ends the cycle there. Each step's commits are whole, and the next cycle, or the
            next run, goes on from them.
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
    """Bring silver, gold and the unified table up to bronze; `full`: replace every game's rows by what bronze has of them.

    Gold follows a replaced silver table by itself, after a crash too: its progress names silver's generation. `gold` and
    `go_on` as for `cycle`, `just_loaded` as for `refresh_silver`.
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
    """The layers behind bronze, in their order: what is replaced first, then everything else that is selected."""
    update, full = selection.update, selection.full
    # Latencies are of records that a layer has, whatever their game.
    whole = all(layer in update and update[layer] is None for layer in (Layer.SILVER, Layer.GOLD))
    # A silver made from another bronze is replaced by itself.
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
