"""What the plug-in does with each run: its tables are registered in a catalog, its lineage is sent to an OpenLineage receiver.

A table is registered once in Spark's catalog that the settings name (a metastore, Unity, or another), by `CREATE TABLE IF NOT
EXISTS ... USING delta LOCATION`. Lineage is the start of a run, its changed tables, and its end; sending takes at most
`openlineage_timeout_s` per run (in continuous mode: per part). Guarantee: a catalog or a receiver that does not answer costs no
row and fails no run; the run reports it, and the next one registers the missing tables.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import add
from typing import TYPE_CHECKING, ClassVar, Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from game_events.config.masking import without_secrets
from game_events.errors import ConfigurationError, GameEventsError, first_few, first_line
from game_events.lakehouse.tables import Lakehouse, Table
from game_events.pipeline.checks.table_checks import TableCheck
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import CheckResult, PluginResult, RunResult
from game_events.plugins.catalog.settings import LineageSettings
from game_events.workers.results import merge, merged

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

    from game_events.plugins.catalog.openlineage_events import LineageRun

log = logging.getLogger(__name__)

#: Seconds for sending after the run was cancelled.
STOPPED_S = 2.0

IMPLEMENTATION = "spark.sql.catalogImplementation"

REGISTERED = "tables_registered"

#: Tables that a result names.
SHOWN = 5


@dataclass(frozen=True)
class LineageResult(PluginResult):
    """Number of OpenLineage events that the receiver took (`sent`) and did not take (`lost`), and why the first was lost."""

    key: ClassVar[str] = "lineage"

    sent: int = merged(add, int)
    lost: int = merged(add, int)
    why: str = merged(lambda first, second: first or second, str)

    def merged_with(self, later: Self) -> Self:
        """All events of both."""
        return merge(self, later)


class CatalogObserver:
    """Registers the tables of a run in the catalog, and sends its lineage. Never raises: failures are logged."""

    def __init__(self, pipeline: Pipeline, job: str, is_streaming: bool) -> None:
        """Send the start of the run."""
        self._pipeline = pipeline
        self._result = LineageResult()
        self._run: LineageRun | None = None
        self._since = datetime.now(UTC)
        self._part = 0
        settings = LineageSettings.of(pipeline.settings)
        self._timeout_s = settings.openlineage_timeout_s
        self._left_s = self._timeout_s
        if settings.openlineage_url is None:
            return
        with self._never_failing():
            from game_events.plugins.catalog.openlineage_events import LineageRun  # noqa: PLC0415 - its client, if it is used

            self._run = LineageRun(pipeline, job, is_streaming)
            self._deliver([self._run.whole("START", self._since)])

    def part(self, report: RunReport) -> None:
        """Register and send what a continuous run did since the last time."""
        register_tables(self._pipeline, report)
        self._left_s = self._timeout_s
        self._send(report, lambda run, now: run.whole("RUNNING", now))
        self._part += 1

    def close(self, report: RunReport, error: BaseException | None, *, stopped: bool) -> None:
        """Register and send what is left, and how the run ended."""
        if not stopped:
            register_tables(self._pipeline, report)
        left_s = self._timeout_s if self._part else self._left_s
        self._left_s = min(left_s, STOPPED_S) if stopped else left_s
        self._send(report, lambda run, now: run.ended(now, report, error, stopped=stopped))

    def _send(self, report: RunReport, last: Callable[[LineageRun, datetime], RunEvent]) -> None:
        """Send the tables since the last time and a last event, and add the delivery to the report."""
        if self._run is None:
            return
        now = datetime.now(UTC)
        with self._never_failing():
            self._deliver([*self._run.tables(report, self._since, now, self._part), last(self._run, now)])
            sent = self._result
            self._result = LineageResult()
            report.add(RunResult(parts={sent.key: sent}))
            if sent.lost:
                report.warn(f"{sent.lost:,} OpenLineage events were not taken by the receiver: {sent.why}")
        self._since = now

    def _deliver(self, events: list[RunEvent]) -> None:
        from game_events.plugins.catalog.openlineage_events import send  # noqa: PLC0415 - see above

        began = time.monotonic()
        sent = LineageResult(*send(self._pipeline.settings, events, self._left_s))
        self._result = merge(self._result, sent)
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began))

    @contextmanager
    def _never_failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run did its work: nothing that happens here may fail it
            why = without_secrets(str(error), self._pipeline.settings)
            log.warning("lineage_not_sent=true run_id=%s error=%s why=%r", self._pipeline.run_id, type(error).__name__, why)


def register_tables(pipeline: Pipeline, report: RunReport) -> None:
    """Register all tables that are not in the catalog; no request if all tables with commits of this run are known to be."""
    changed = {entry.table for entry in report.tables if entry.error is None}
    if pipeline.settings.catalog is None or not changed - pipeline.registered:
        return
    try:
        _register(pipeline, pipeline.settings.catalog, report)
        report.add_checks(CheckResult(REGISTERED, "bronze", True, f"{len(pipeline.registered):,} tables are registered"))
    except Exception as error:  # noqa: BLE001 - the rows are committed: no error here may fail the run
        why = _cause(pipeline, error)
        log.warning("catalog=%s tables_not_registered=true why=%r", pipeline.settings.catalog, why)
        summary = f"tables could not be registered in the catalog {pipeline.settings.catalog}: {why}"
        report.warn(summary)
        report.add_checks(CheckResult(REGISTERED, "bronze", False, summary))


def tables_registered(pipeline: Pipeline) -> CheckResult:
    """Whether every table of the lakehouse is in the catalog."""
    if pipeline.settings.catalog is None:
        return CheckResult(REGISTERED, "bronze", True, "no catalog is configured (GAME_EVENTS_CATALOG)")
    tables = _tables(pipeline.lakehouse)
    try:
        known = _registered(pipeline, pipeline.settings.catalog)
    except (GameEventsError, PySparkException, Py4JError) as error:
        return CheckResult(REGISTERED, "bronze", False, f"the catalog could not be asked: {_cause(pipeline, error)}")
    missing = sorted(tables.keys() - known)
    counts = {"tables": len(tables), "missing": len(missing)}
    if not missing:
        return CheckResult(REGISTERED, "bronze", True, f"all {len(tables):,} tables are registered", counts)
    return CheckResult(REGISTERED, "bronze", False, f"not in the catalog: {first_few(missing, SHOWN, ', ')}", counts)


def _register(pipeline: Pipeline, database: str, report: RunReport) -> None:
    pipeline.registered.update(_registered(pipeline, database))
    tables = _tables(pipeline.lakehouse)
    for name in sorted(tables.keys() - pipeline.registered):
        place = tables[name].uri.replace("\\", "\\\\").replace("'", "\\'")
        pipeline.spark.sql(f"CREATE TABLE IF NOT EXISTS {_quoted(database)}.`{name}` USING delta LOCATION '{place}'")
        pipeline.registered.add(name)
        report.add(RunResult(registered=[name]))


def _registered(pipeline: Pipeline, database: str) -> set[str]:
    """Tables in a database of the session's catalog; the database is made if there is none.

    Raises:
        ConfigurationError: its tables are those of another lakehouse, or the catalog ends with the session.
    """
    spark = pipeline.spark
    bronze = pipeline.bronze
    # Spark's own catalog, below Delta's: another one may keep its tables itself.
    of_spark = str(spark.conf.get("spark.sql.catalog.spark_catalog", "")).endswith(".DeltaCatalog")
    if "." not in database and spark.conf.get(IMPLEMENTATION) == "in-memory" and of_spark:
        raise ConfigurationError(
            f"the session's catalog is in memory and ends with it: set {IMPLEMENTATION} to hive (a metastore) where Spark "
            "is started, or name another catalog (GAME_EVENTS_CATALOG=catalog.database)"
        )
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
    rows = spark.sql(f"SHOW TABLES IN {_quoted(database)}").collect()
    registered = {row["tableName"] for row in rows if not row["isTemporary"]}
    if bronze.name in registered:
        described = spark.sql(f"DESCRIBE DETAIL {_quoted(database)}.`{bronze.name}`").select("location").collect()
        place = _local(described[0]["location"])
        ours = _local(bronze.uri)
        if place != ours:
            raise ConfigurationError(
                f"{database}.{bronze.name} of the catalog is {place}, not {ours}: set GAME_EVENTS_CATALOG to a database of "
                "this lakehouse's own, or drop that table from the catalog"
            )
    return registered


def _quoted(database: str) -> str:
    return ".".join(f"`{part}`" for part in database.split("."))


def _tables(lakehouse: Lakehouse) -> dict[str, Table]:
    """Name -> table; an object store may also have folders without a first commit."""
    tables = [lakehouse.table(key) for key in lakehouse.names()]
    return {t.name: t for t in tables if "://" not in lakehouse.root or t.open_to_read() is not None}


def _cause(pipeline: Pipeline, error: Exception) -> str:
    """The first line of an error: a catalog's errors are long stacks."""
    return without_secrets(f"{type(error).__name__}: {first_line(error)}", pipeline.settings, most=600)


def _local(uri: str) -> str:
    """An address for comparison: Spark gives `file:/a`, `file:///a` or `/a`, and `s3a` for `s3`."""
    return uri.removeprefix("file://").removeprefix("file:").replace("s3a://", "s3://", 1).rstrip("/")


CHECKS = (TableCheck(REGISTERED, "bronze", tables_registered),)
