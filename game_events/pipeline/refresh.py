"""One run over all layers: the function that Dagster's job, its assets and the command line call."""

from __future__ import annotations

from collections.abc import Callable

from game_events.pipeline.bronze import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold import refresh_gold, refresh_own_gold
from game_events.pipeline.replay_due import replay_what_became_known
from game_events.pipeline.report import RunReport
from game_events.pipeline.silver import refresh_silver
from game_events.pipeline.unified import refresh_unified
from game_events.sources.kafka import TopicOffsets


def refresh(pipeline: Pipeline, report: RunReport | None = None, *, ignore_intervals: bool = False) -> RunReport:
    """Triggered mode: read the topic up to the offsets seen now, then bring every layer up to date.

    Args:
        pipeline: the parts.
        report: filled as it goes, so that whoever gave it has what was done when it fails.
        ignore_intervals: refresh aggregates of one's own whose interval has not passed yet, too.

    Raises:
        GameEventsError: nothing more can be done (broker, registry, settings); what was committed stays, and the next run
            goes on from there. A game that fails alone is in the report instead.
    """
    report = RunReport() if report is None else report
    cycle(pipeline, report, ignore_intervals=ignore_intervals)
    return report


def cycle(
    pipeline: Pipeline,
    report: RunReport,
    *,
    until: TopicOffsets | None = None,
    slices: int | None = None,
    gold: bool = True,
    ignore_intervals: bool = False,
    go_on: Callable[[], bool] = lambda: True,
) -> None:
    """What both modes repeat: slices of the topic to bronze, bronze to silver, silver to gold and the unified table.

    Args:
        pipeline: the parts.
        report: gets what was done; as it is filled step by step it is right after an error, too.
        until: the topic as it was seen just now; None: it is asked.
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
    refresh_downstream(pipeline, report, gold=gold, ignore_intervals=ignore_intervals, go_on=go_on)


def refresh_downstream(
    pipeline: Pipeline,
    report: RunReport,
    *,
    full: bool = False,
    gold: bool = True,
    ignore_intervals: bool = False,
    go_on: Callable[[], bool] = lambda: True,
) -> None:
    """Bring silver, gold and the unified table up to bronze; `full`: replace every game's rows by what bronze has of them.

    Gold follows a replaced silver table by itself, after a crash too: its progress names silver's generation. `gold` and
    `go_on` as for `cycle`.
    """
    refresh_silver(pipeline, report, full=full)
    report.visible("silver")
    if gold and go_on():
        refresh_gold(pipeline, report)
        report.visible("gold")
        refresh_unified(pipeline, report)
        report.visible("unified")
        refresh_own_gold(pipeline, report, ignore_intervals=ignore_intervals)
