"""Every check on the whole: what it is about, what it proves, whether a failure means wrong rows, and how to run it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.config.masking import without_secrets
from game_events.errors import GameEventsError
from game_events.pipeline.checks.freshness import FRESH, fresh
from game_events.pipeline.checks.gaps import LOST, offsets_lost
from game_events.pipeline.checks.gold_recompute import RECOMPUTED, gold_equals_recompute
from game_events.pipeline.checks.offsets import CONTINUOUS, RECENT_COMMITS, UNIQUE, offsets_continuous, offsets_unique
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.schema_drift import DRIFT, schema_drift
from game_events.pipeline.checks.volume import VOLUME, volume
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.null_values import KNOWN, keys_and_times_known
from game_events.pipeline.metastore import REGISTERED, tables_registered
from game_events.pipeline.reporting.check_result import CheckResult
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import LayerResult

CONSERVED = "rows_conserved"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WholeCheck:
    """One check.

    Attributes:
        name: its name; `layer` is the layer whose asset it belongs to.
        description: what it proves.
        run: makes it, in full.
        in_run: makes it at the end of every run that changed something: cheap; None: only on request.
        blocking: a failure means that rows are wrong, and nothing should be made from them.
    """

    name: str
    layer: str
    description: str
    run: Callable[[Pipeline], CheckResult]
    in_run: Callable[[Pipeline], CheckResult] | None = None
    blocking: bool = False


def rows_conserved(pipeline: Pipeline) -> CheckResult:
    """The books (`reconcile`)."""
    found = reconcile(pipeline)
    return CheckResult(CONSERVED, "silver", found.passed, found.summary(), found.metadata(), wrong_rows=True)


CHECKS = (
    WholeCheck(
        CONTINUOUS,
        "bronze",
        "The offsets that bronze's commits read follow each other without a gap and end where the table's progress stands; "
        "the table holds every row they committed.",
        offsets_continuous,
        partial(offsets_continuous, recent=RECENT_COMMITS),
        blocking=True,
    ),
    WholeCheck(
        UNIQUE,
        "bronze",
        "No record, by topic id, partition and offset, is in bronze or quarantine twice, none in both (but replayed ones).",
        offsets_unique,
        blocking=True,
    ),
    WholeCheck(
        LOST,
        "bronze",
        "No records expired, or went with a deleted topic, before they were read; with GAME_EVENTS_ON_DATA_LOSS=record_gap "
        "runs go on past them. Warns.",
        offsets_lost,
        partial(offsets_lost, recent=RECENT_COMMITS),
    ),
    WholeCheck(FRESH, "bronze", "Bronze's last commit is not older than GAME_EVENTS_FRESHNESS_S allows.", fresh, fresh),
    WholeCheck(
        DRIFT,
        "bronze",
        "Bronze's columns are those of the last look: a producer that adds fields or changes their kind is seen.",
        schema_drift,
        schema_drift,
    ),
    WholeCheck(
        REGISTERED,
        "bronze",
        "Every table is registered in the catalog's database that GAME_EVENTS_CATALOG names. Warns.",
        tables_registered,
    ),
    WholeCheck(
        CONSERVED,
        "silver",
        "bronze = silver + kept out by rules + unrouted + pending, in all and for each game: nothing lost, nothing doubled.",
        rows_conserved,
        rows_conserved,
        blocking=True,
    ),
    WholeCheck(
        VOLUME,
        "silver",
        "Each game sent as much in the last 24 hours as it uses to (median of the days before); none fell silent.",
        volume,
    ),
    WholeCheck(
        KNOWN,
        "gold",
        "Every game's gold says whose its rows are and when they happened: the columns of the settings hold what its records "
        "hold. Warns.",
        keys_and_times_known,
    ),
    WholeCheck(
        RECOMPUTED,
        "gold",
        "Gold of a sample of games is what their silver tables give when aggregated anew, and so are their rows of the unified "
        "table.",
        gold_equals_recompute,
        blocking=True,
    ),
)


def check_after_run(pipeline: Pipeline, report: RunReport) -> None:
    """Make the cheap checks and note them in the report; nothing if nothing has changed.

    A check that cannot be made fails no run: it is noted as not passed, with the reason.
    """
    if not report.tables:
        return
    for check in CHECKS:
        if check.in_run is None:
            continue
        try:
            report.add(LayerResult(checks=[check.in_run(pipeline)]))
        except (GameEventsError, DeltaError, OSError, PySparkException, Py4JJavaError) as error:
            log.warning("check=%s could_not_be_made=%r", check.name, without_secrets(str(error), pipeline.settings))
            # The words of a Spark job are pages of stack, and may repeat the data it stumbled over.
            by_spark = isinstance(error, PySparkException | Py4JJavaError)
            why = f"{type(error).__name__}: see the run's log" if by_spark else without_secrets(str(error), pipeline.settings)
            report.add(LayerResult(checks=[CheckResult(check.name, check.layer, False, f"could not be made: {why}")]))
