"""Whether a run over everything would find anything to do, by the run's own steps on tables that are read only."""

import logging
from dataclasses import dataclass

from pyspark.sql import SparkSession

from game_events.config.settings import Settings
from game_events.errors import ReadOnlyError
from game_events.pipeline.context import Pipeline
from game_events.pipeline.observability.event_log import SUCCEEDED
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import TriggeredRun
from game_events.pipeline.runs.state_checks import newest_run
from game_events.sources.core.source import FILES

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingWork:
    """What a run would find; neither `report` nor `work`: that is not known.

    `report`: that of a run that finds nothing to do or to say. `work`: the read-only pipeline of the search, if there is work.
    """

    report: RunReport | None = None
    work: Pipeline | None = None


def find_pending_work(settings: Settings, *, ignore_intervals: bool = False) -> PendingWork:
    """Find out whether a run would have anything to do.

    Guarantee: no table was changed, and no Spark session was made; offsets of a consumer group are committed, as by a run.
    What a run would do is not decided here: its steps are made, and the first one that needs Spark or would change a table
    ends the search. So does an error: the run reports it.

    A run after one that did not succeed is made in any case, as its success shows that the fault is over.
    With files as the source, or a catalog, there is always something: files are taken in, tables are registered.
    """
    if settings.source == FILES or settings.catalog is not None:
        return PendingWork()
    met: list[str] = []

    def no_session() -> SparkSession:
        met.append("Spark")
        raise ReadOnlyError("a Spark session is needed")

    pipeline, report = Pipeline(settings, no_session, read_only=True, quiet=True), RunReport()
    try:
        for step in TriggeredRun(pipeline, report, ignore_intervals=ignore_intervals).steps.values():
            step()
        before = newest_run(pipeline.lakehouse)
    except ReadOnlyError:
        return PendingWork(work=pipeline)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run meets it again, and reports it
        log.debug("error=%s", type(error).__name__)
        return PendingWork()
    if met or not report.is_empty:
        return PendingWork(work=pipeline)
    return PendingWork(report) if before is None or before["status"] == SUCCEEDED else PendingWork()
