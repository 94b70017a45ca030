"""Registration of the tables in Spark's catalog (a metastore, Unity, or another) that the settings name.

A table is registered once, by `CREATE TABLE IF NOT EXISTS ... USING delta LOCATION`. Guarantee: a catalog that does not answer
costs no row and fails no run; the run reports it, and the next one registers the missing tables.
"""

import logging

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from game_events.config.masking import without_secrets
from game_events.errors import ConfigurationError, GameEventsError, first_line
from game_events.lakehouse.tables import Lakehouse, Table
from game_events.pipeline.checks.table_checks import TableCheck
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.counts import CheckResult
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import RunResult

log = logging.getLogger(__name__)

IMPLEMENTATION = "spark.sql.catalogImplementation"

REGISTERED = "tables_registered"

#: Tables that a result names.
SHOWN = 5


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
    there = _tables(pipeline.lakehouse)
    try:
        known = _registered(pipeline, pipeline.settings.catalog)
    except (GameEventsError, PySparkException, Py4JError) as error:
        return CheckResult(REGISTERED, "bronze", False, f"the catalog could not be asked: {_cause(pipeline, error)}")
    missing = sorted(there.keys() - known)
    counts = {"tables": len(there), "missing": len(missing)}
    if not missing:
        return CheckResult(REGISTERED, "bronze", True, f"all {len(there):,} tables are registered", counts)
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return CheckResult(REGISTERED, "bronze", False, f"not in the catalog: {', '.join(missing[:SHOWN])}{more}", counts)


def _register(pipeline: Pipeline, database: str, report: RunReport) -> None:
    pipeline.registered.update(_registered(pipeline, database))
    there = _tables(pipeline.lakehouse)
    for name in sorted(there.keys() - pipeline.registered):
        place = there[name].uri.replace("\\", "\\\\").replace("'", "\\'")
        pipeline.spark.sql(f"CREATE TABLE IF NOT EXISTS {_quoted(database)}.`{name}` USING delta LOCATION '{place}'")
        pipeline.registered.add(name)
        report.add(RunResult(registered=[name]))


def _registered(pipeline: Pipeline, database: str) -> set[str]:
    """Tables in a database of the session's catalog; the database is made if there is none.

    Raises:
        ConfigurationError: its tables are those of another lakehouse, or the catalog ends with the session.
    """
    spark, bronze = pipeline.spark, pipeline.bronze
    # Spark's own catalog, below Delta's: another one may keep its tables itself.
    of_spark = str(spark.conf.get("spark.sql.catalog.spark_catalog", "")).endswith(".DeltaCatalog")
    if "." not in database and spark.conf.get(IMPLEMENTATION) == "in-memory" and of_spark:
        raise ConfigurationError(
            f"the session's catalog is in memory and ends with it: set {IMPLEMENTATION} to hive (a metastore) where Spark "
            "is started, or name another catalog (GAME_EVENTS_CATALOG=catalog.database)"
        )
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
    rows = spark.sql(f"SHOW TABLES IN {_quoted(database)}").collect()
    found = {row["tableName"] for row in rows if not row["isTemporary"]}
    if bronze.name in found:
        described = spark.sql(f"DESCRIBE DETAIL {_quoted(database)}.`{bronze.name}`").select("location").collect()
        place, ours = _local(described[0]["location"]), _local(bronze.uri)
        if place != ours:
            raise ConfigurationError(
                f"{database}.{bronze.name} of the catalog is {place}, not {ours}: set GAME_EVENTS_CATALOG to a database of "
                "this lakehouse's own, or drop that table from the catalog"
            )
    return found


def _quoted(database: str) -> str:
    return ".".join(f"`{part}`" for part in database.split("."))


def _tables(lakehouse: Lakehouse) -> dict[str, Table]:
    """Name -> table; an object store may also have folders without a first commit."""
    found = [lakehouse.table(key) for key in lakehouse.names()]
    return {t.name: t for t in found if "://" not in lakehouse.root or t.open_to_read() is not None}


def _cause(pipeline: Pipeline, error: Exception) -> str:
    """The first line of an error: a catalog's errors are long stacks."""
    return without_secrets(f"{type(error).__name__}: {first_line(error)}", pipeline.settings, most=600)


def _local(uri: str) -> str:
    """An address for comparison: Spark gives `file:/a`, `file:///a` or `/a`, and `s3a` for `s3`."""
    return uri.removeprefix("file://").removeprefix("file:").replace("s3a://", "s3://", 1).rstrip("/")


CHECKS = (TableCheck(REGISTERED, "bronze", tables_registered),)
