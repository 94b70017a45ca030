"""One run over all layers: the function that Dagster's job, its assets and the command line call."""

from __future__ import annotations

from game_events.pipeline.bronze import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold import refresh_gold, refresh_own_gold
from game_events.pipeline.replay_due import replay_what_became_known
from game_events.pipeline.report import RunReport
from game_events.pipeline.silver import refresh_silver
from game_events.pipeline.unified import refresh_unified


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
    load_bronze(pipeline, report)
    replay_what_became_known(pipeline, report)
    refresh_downstream(pipeline, report, ignore_intervals=ignore_intervals)
    return report


def refresh_downstream(pipeline: Pipeline, report: RunReport, *, full: bool = False, ignore_intervals: bool = False) -> None:
    """Bring silver, gold and the unified table up to bronze; `full`: replace every game's rows by what bronze has of them.

    Gold follows a replaced silver table by itself, after a crash too: its progress names silver's generation.
    """
    refresh_silver(pipeline, report, full=full)
    refresh_gold(pipeline, report)
    refresh_unified(pipeline, report)
    refresh_own_gold(pipeline, report, ignore_intervals=ignore_intervals)
