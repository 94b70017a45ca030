"""A look whether a run over everything would find anything to do, by the run's own steps on tables that are read only."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from game_events.config.settings import Settings
from game_events.errors import ReadOnlyError
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import TriggeredRun
from game_events.sources.core.source import FILES


def idle_report(
    settings: Settings, *, ignore_intervals: bool = False, if_not: Callable[[Pipeline], None] = lambda _: None
) -> RunReport | None:
    """The report of a run that finds nothing to do; None: it may have to do something, or to say something.

    `if_not`: called with the pipeline of the look, which is read only, if there is something to do.

    Guarantee: nothing was changed, and no Spark session was asked for. What a run would do is not decided here: its steps are
    made, and the first one that needs Spark or would change a table ends the look. So does any error: the run reports it.

    With files as the source, or a catalog, there is always something: files are taken in, tables are registered.
    """
    met: list[str] = []

    def no_session() -> SparkSession:
        met.append("Spark")
        raise ReadOnlyError("a Spark session is needed")

    if settings.source == FILES or settings.catalog is not None:
        return None
    pipeline, report = Pipeline(settings, no_session, read_only=True, quiet=True), RunReport()
    try:
        for step in TriggeredRun(pipeline, report, ignore_intervals=ignore_intervals).steps.values():
            step()
    except ReadOnlyError:
        met.append("a change")
    except Exception:  # noqa: BLE001 - whatever it is, the run meets it again, and records it
        return None
    if not met and report.is_empty:
        return report
    if_not(pipeline)
    return None
