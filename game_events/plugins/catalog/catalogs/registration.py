"""The tables of a run are registered in the catalog that the settings name; the check `tables_registered`.

Each table is registered once: in Spark's catalog (`spark_catalog`), or by Unity Catalog's API (`unity`); a new one gets its
grants (`grants`), and with `CATALOG_VIEWS` the message types of the games that the run changed become views. Guarantee: a
catalog that does not answer costs no row and fails no run; the run reports it, and the next one registers what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from game_events.config.masking import cause_of
from game_events.errors import GameEventsError, first_few
from game_events.lakehouse import failpoints
from game_events.lakehouse.tables import Layer, Table
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import CheckResult, RunResult
from game_events.plugins.catalog.catalogs.grants import Grants
from game_events.plugins.catalog.catalogs.places import tables_of
from game_events.plugins.catalog.catalogs.spark_catalog import SparkCatalog
from game_events.plugins.catalog.catalogs.unity import UnityCatalog, UnityServer
from game_events.plugins.catalog.catalogs.views import TypeViews
from game_events.plugins.catalog.settings import CatalogSettings

log = logging.getLogger(__name__)

REGISTERED = "tables_registered"

#: Tables that a result names.
SHOWN = 5


class Catalog(Protocol):
    """A database of a catalog."""

    def registered(self, ours: Mapping[str, Table]) -> set[str]:
        """Names of all that is in it; ConfigurationError: a table of `ours` is that of another lakehouse."""

    def register(self, table: Table) -> None:
        """Register a table."""


def register_tables(pipeline: Pipeline, report: RunReport, views: TypeViews | None = None) -> None:
    """Register all tables that are not in the catalog, and renew the views of types that have changed.

    No request if all tables with commits of this run are known to be registered, and no view can have changed. `views`: what is
    known of them from earlier parts of a continuous run.
    """
    if pipeline.settings.catalog is None:
        return
    changed = {entry.table for entry in report.tables if entry.error is None}
    games = _games_with_views(pipeline, report)
    if changed <= pipeline.registered and not games:
        return
    try:
        if not changed <= pipeline.registered:
            _register(pipeline, report)
        if games:
            made = (views or TypeViews(pipeline.lakehouse)).renew(
                SparkCatalog(pipeline.spark, pipeline.settings.catalog), games
            )
            report.add(RunResult(registered=made))
        report.add_checks(CheckResult(REGISTERED, "bronze", True, f"{len(pipeline.registered):,} tables are registered"))
    except Exception as error:  # noqa: BLE001 - the rows are committed: no error here may fail the run
        why = cause_of(error, pipeline.settings)
        log.warning("catalog=%s tables_not_registered=true why=%r", pipeline.settings.catalog, why)
        summary = f"tables could not be registered in the catalog {pipeline.settings.catalog}: {why}"
        report.warn(summary)
        report.add_checks(CheckResult(REGISTERED, "bronze", False, summary))


def tables_registered(pipeline: Pipeline) -> CheckResult:
    """Whether every table of the lakehouse is in the catalog."""
    if pipeline.settings.catalog is None:
        return CheckResult(REGISTERED, "bronze", True, "no catalog is configured (GAME_EVENTS_CATALOG)")
    tables = tables_of(pipeline.lakehouse)
    try:
        known = catalog_of(pipeline).registered(_ours(pipeline, tables))
    except (GameEventsError, PySparkException, Py4JError) as error:
        return CheckResult(REGISTERED, "bronze", False, f"the catalog could not be asked: {cause_of(error, pipeline.settings)}")
    missing = sorted(tables.keys() - known)
    counts = {"tables": len(tables), "missing": len(missing)}
    if not missing:
        return CheckResult(REGISTERED, "bronze", True, f"all {len(tables):,} tables are registered", counts)
    return CheckResult(REGISTERED, "bronze", False, f"not in the catalog: {first_few(missing, SHOWN, ', ')}", counts)


def catalog_of(pipeline: Pipeline) -> Catalog:
    """The catalog of the settings: Unity's, if its address is set, else one of Spark's."""
    settings = CatalogSettings.of(pipeline.settings)
    database = str(pipeline.settings.catalog)
    server = UnityServer.of(settings)
    return SparkCatalog(pipeline.spark, database) if server is None else UnityCatalog(server, database)


def _register(pipeline: Pipeline, report: RunReport) -> None:
    catalog = catalog_of(pipeline)
    tables = tables_of(pipeline.lakehouse)
    pipeline.registered.update(catalog.registered(_ours(pipeline, tables)))
    new = sorted(tables.keys() - pipeline.registered)
    for name in new:
        catalog.register(tables[name])
        failpoints.reach("table_registered", name)
        pipeline.registered.add(name)
        report.add(RunResult(registered=[name]))
    grants = Grants.of(pipeline.settings)
    if new and grants is not None:
        grants.give({name: tables[name] for name in new})


def _ours(pipeline: Pipeline, tables: Mapping[str, Table]) -> Mapping[str, Table]:
    """The tables, and bronze, whether it is there or not."""
    return {pipeline.bronze.name: pipeline.bronze, **tables}


def _games_with_views(pipeline: Pipeline, report: RunReport) -> set[str]:
    """Games whose silver table the run changed; none, if types have no views."""
    if CatalogSettings.of(pipeline.settings).catalog_views is None:
        return set()
    return {entry.game for entry in report.of(Layer.SILVER) if entry.error is None and entry.game is not None}
