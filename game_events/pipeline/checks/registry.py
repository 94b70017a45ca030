"""The list of table checks, for Dagster's asset checks and for the end of a run."""

import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from game_events.config.masking import without_secrets
from game_events.errors import GameEventsError
from game_events.lakehouse.layers import Layer
from game_events.pipeline.checks.gold_recompute import RECOMPUTED, gold_equals_recompute
from game_events.pipeline.checks.history import DRIFT, VOLUME, schema_drift, volume
from game_events.pipeline.checks.offsets import CONTINUOUS, RECENT_COMMITS, UNIQUE, offsets_continuous, offsets_unique
from game_events.pipeline.checks.reconcile import reconcile
from game_events.pipeline.checks.source import FRESH, LOST, fresh, offsets_lost
from game_events.pipeline.context import Pipeline
from game_events.pipeline.gold.null_values import KNOWN, keys_and_times_known
from game_events.pipeline.metastore import REGISTERED, tables_registered
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.steps import NEW, WHOLE, CheckResult

CONSERVED = "rows_conserved"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableCheck:
    """One check.

    `layer`: layer of the asset that the check belongs to. `in_run`: a cheap form for the end of each run that changed a table,
    given the run's report; None: only on request. `blocking`: a failure means wrong rows, from which nothing should be
    computed. `all_games`: it reads every game's tables, so a run that materializes single games by hand leaves it out.
    """

    name: str
    layer: str
    run: Callable[[Pipeline], CheckResult]
    in_run: Callable[[Pipeline, RunReport], CheckResult] | None = None
    blocking: bool = False
    all_games: bool = False

    @property
    def description(self) -> str:
        """The first paragraph of the docstring of `run`."""
        return " ".join((inspect.getdoc(self.run) or "").partition("\n\n")[0].split())


def rows_conserved(pipeline: Pipeline, report: RunReport | None = None) -> CheckResult:
    """Check that bronze = silver + rejected by rules + unrouted + pending, in all and for each game.

    `report`: of the run that has written tables: of bronze only what no earlier check has counted is read (`reconcile`).
    """
    changed = None if report is None else {table.game for table in report.of(Layer.SILVER) if table.game is not None}
    found = reconcile(pipeline, changed)
    covers = NEW if found.counted_before else WHOLE
    return CheckResult(CONSERVED, "silver", found.passed, found.summary(), found.metadata(), wrong_rows=True, covers=covers)


CHECKS = (
    TableCheck(CONTINUOUS, "bronze", offsets_continuous, lambda p, _: offsets_continuous(p, RECENT_COMMITS), blocking=True),
    TableCheck(UNIQUE, "bronze", offsets_unique, blocking=True),
    TableCheck(LOST, "bronze", offsets_lost, lambda p, _: offsets_lost(p, RECENT_COMMITS)),
    TableCheck(FRESH, "bronze", fresh, lambda p, _: fresh(p)),
    TableCheck(DRIFT, "bronze", schema_drift, lambda p, _: schema_drift(p)),
    TableCheck(REGISTERED, "bronze", tables_registered),
    TableCheck(CONSERVED, "silver", rows_conserved, rows_conserved, blocking=True, all_games=True),
    TableCheck(VOLUME, "silver", volume),
    TableCheck(KNOWN, "gold", keys_and_times_known),
    TableCheck(RECOMPUTED, "gold", gold_equals_recompute, blocking=True),
)


def check_after_run(pipeline: Pipeline, report: RunReport, checks: Iterable[TableCheck] = CHECKS) -> None:
    """Add the results of the cheap checks to the report of a run that changed a table.

    A check that raises does not fail the run: its result is "not passed", with the reason.
    """
    if not report.tables:
        return
    for check in checks:
        try:
            if check.in_run is not None:
                report.add_checks(check.in_run(pipeline, report))
        except (GameEventsError, DeltaError, OSError, pa.ArrowException, PySparkException, Py4JJavaError) as error:
            log.warning("check=%s could_not_be_made=%r", check.name, without_secrets(str(error), pipeline.settings))
            # Spark's messages are pages of stack, and may quote data.
            by_spark = isinstance(error, PySparkException | Py4JJavaError)
            why = f"{type(error).__name__}: see the run's log" if by_spark else without_secrets(str(error), pipeline.settings)
            report.add_checks(CheckResult(check.name, check.layer, False, f"could not be made: {why}"))
