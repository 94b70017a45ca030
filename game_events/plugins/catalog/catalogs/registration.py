"""The tables of a run are registered in the catalog that the settings name; the check `tables_registered`.

Each table is registered once: in Spark's catalog (`spark_catalog`), or by Unity Catalog's API (`unity`); a new one gets its
grants (`grants`), and with `CATALOG_VIEWS` the message types of the games that the run changed become views. Guarantee: a
catalog that does not answer costs no row and fails no run; the run reports it, and the next one registers what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Protocol

from deltalake.exceptions import DeltaError
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
from game_events.plugins.catalog.catalogs.places import Registered, tables_of
from game_events.plugins.catalog.catalogs.spark_catalog import SparkCatalog
from game_events.plugins.catalog.catalogs.unity import AwayError, UnityCatalog, UnityServer
from game_events.plugins.catalog.catalogs.views import TypeViews
from game_events.plugins.catalog.settings import CatalogSettings

log = logging.getLogger(__name__)

REGISTERED = "tables_registered"

#: Tables that a result names.
SHOWN = 5


class Catalog(Protocol):
    """A database of a catalog."""

    def registered(self, ours: Mapping[str, Table]) -> Registered:
        """What is in it; ConfigurationError: bronze of `ours` is that of another lakehouse."""

    def register(self, table: Table) -> None:
        """Register a table."""

    def close(self) -> None:
        """End its connections."""


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
    failed: list[str] = []
    try:
        if not changed <= pipeline.registered:
            failed += _register(pipeline, report)
        if games:
            failed += _renew_views(pipeline, report, views or TypeViews(pipeline.lakehouse), games)
    except Exception as error:  # noqa: BLE001 - the rows are committed: no error here may fail the run
        why = cause_of(error, pipeline.settings)
        log.warning("catalog=%s tables_not_registered=true why=%r", pipeline.settings.catalog, why)
        failed.append(f"tables could not be registered in the catalog {pipeline.settings.catalog}: {why}")
    for text in failed:
        report.warn(text)
    summary = f"{len(pipeline.registered):,} tables are registered"
    report.add_checks(CheckResult(REGISTERED, "bronze", not failed, "; ".join(failed) or summary))


def tables_registered(pipeline: Pipeline) -> CheckResult:
    """Whether every table of the lakehouse is in the catalog."""
    if pipeline.settings.catalog is None:
        return CheckResult(REGISTERED, "bronze", True, "no catalog is configured (GAME_EVENTS_CATALOG)")
    try:
        tables = tables_of(pipeline.lakehouse)
        with closing(catalog_of(pipeline)) as catalog:
            known = catalog.registered(_ours(pipeline, tables))
    except (GameEventsError, PySparkException, Py4JError) as error:
        return CheckResult(REGISTERED, "bronze", False, f"the catalog could not be asked: {cause_of(error, pipeline.settings)}")
    missing = sorted(tables.keys() - known.names)
    counts = {"tables": len(tables), "missing": len(missing)}
    if not missing:
        return CheckResult(REGISTERED, "bronze", True, f"all {len(tables):,} tables are registered", counts)
    named = [known.foreign.get(name, name) for name in missing]
    return CheckResult(REGISTERED, "bronze", False, f"not in the catalog: {first_few(named, SHOWN, ', ')}", counts)


def catalog_of(pipeline: Pipeline) -> Catalog:
    """The catalog of the settings: Unity's, if its address is set, else one of Spark's."""
    database = str(pipeline.settings.catalog)
    server = UnityServer.of(pipeline.settings)
    return SparkCatalog(pipeline.spark, database) if server is None else UnityCatalog(server, database)


def _register(pipeline: Pipeline, report: RunReport) -> list[str]:
    """Register what is missing, with its grants; returns what failed, of one table or another."""
    tables = tables_of(pipeline.lakehouse)
    with closing(catalog_of(pipeline)) as catalog:
        there = catalog.registered(_ours(pipeline, tables))
        pipeline.registered.update(there.names)
        failed = dict(there.foreign)
        new = []
        for name in sorted(tables.keys() - pipeline.registered - failed.keys()):
            try:
                catalog.register(tables[name])
            except AwayError:
                raise
            except (GameEventsError, PySparkException, DeltaError, OSError) as error:
                failed[name] = cause_of(error, pipeline.settings)
                continue
            failpoints.reach("table_registered", name)
            pipeline.registered.add(name)
            report.add(RunResult(registered=[name]))
            new.append(name)
    return [
        *_said(f"tables could not be registered in the catalog {pipeline.settings.catalog}", failed),
        *_give(pipeline, {name: tables[name] for name in new}),
    ]


def _give(pipeline: Pipeline, new: Mapping[str, Table]) -> list[str]:
    """Give new tables their grants; no later run does it."""
    grants = Grants.of(pipeline.settings) if new else None
    if grants is None:
        return []
    try:
        with closing(grants):
            failures = grants.give(new)
    except GameEventsError as error:
        failures = [cause_of(error, pipeline.settings)]
    return [f"grants were not given (`game-events grants apply` gives them): {first_few(failures, SHOWN)}"] if failures else []


def _renew_views(pipeline: Pipeline, report: RunReport, views: TypeViews, games: set[str]) -> list[str]:
    renewed = views.renew(SparkCatalog(pipeline.spark, str(pipeline.settings.catalog)), games)
    report.add(RunResult(registered=renewed.names))
    failed = {game: cause_of(error, pipeline.settings) for game, error in renewed.failed.items()}
    return _said(f"views of types could not be made in the catalog {pipeline.settings.catalog}", failed)


def _said(what: str, failed: Mapping[str, str]) -> list[str]:
    named = [f"{name} ({why})" for name, why in failed.items()]
    return [f"{len(named):,} {what}: {first_few(named, SHOWN)}"] if named else []


def _ours(pipeline: Pipeline, tables: Mapping[str, Table]) -> Mapping[str, Table]:
    """The tables, and bronze, whether it is there or not."""
    return {pipeline.bronze.name: pipeline.bronze, **tables}


def _games_with_views(pipeline: Pipeline, report: RunReport) -> set[str]:
    """Games whose silver table the run changed; none, if types have no views."""
    if CatalogSettings.of(pipeline.settings).catalog_views is None:
        return set()
    return {entry.game for entry in report.of(Layer.SILVER) if entry.error is None and entry.game is not None}
