"""Registration in a real Hive metastore (Derby), each step in a Spark of its own: what is registered outlives the session."""

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableReport
from game_events.plugins.catalog.catalogs import registration
from game_events.plugins.catalog.catalogs.places import Registered
from game_events.plugins.catalog.catalogs.registration import register_tables, tables_registered
from game_events_tests.support.tables import put

SCHEMA = pa.schema([pa.field("game_name", pa.string()), pa.field("_batch", pa.int64())])


def make(root, *names):
    lakehouse = Lakehouse(str(root))
    for name in names:
        put(lakehouse.table(name), pa.table({"game_name": ["a", "b"], "_batch": [1, 1]}, schema=SCHEMA))


@pytest.mark.parametrize("error", [PySparkException("no such provider"), ConfigurationError("no such provider")])
def test_a_table_that_sparks_catalog_refuses_is_named_and_the_others_are_registered(tmp_path, monkeypatch, error):
    make(tmp_path, "bronze_events", "silver_a_events", "silver_b_events")
    taken = []

    class RefusingOne:
        def registered(self, _):
            return Registered(set(taken), {})

        def register(self, table):
            if table.name == "silver_a_events":
                raise error
            taken.append(table.name)

        def close(self):
            """Nothing."""

    monkeypatch.setattr(registration, "catalog_of", lambda _: RefusingOne())
    pipeline = Pipeline(load_settings(lakehouse=str(tmp_path), catalog="games"), lambda: None)
    report = RunReport(tables=[TableReport("bronze", "bronze_events", "")])
    register_tables(pipeline, report)
    assert report.registered == taken == ["bronze_events", "silver_b_events"]
    cause = f"silver_a_events ({type(error).__name__}: no such provider)"
    assert report.notices == [f"1 tables could not be registered in the catalog games: {cause}"]
    assert [check.passed for check in report.checks] == [False]


def test_a_catalog_that_is_away_is_a_notice_and_a_check_and_no_error(tmp_path):
    make(tmp_path, "bronze_events")

    def broken():
        raise RuntimeError("the metastore's port is closed")

    pipeline = Pipeline(load_settings(lakehouse=str(tmp_path), catalog="games"), broken)
    report = RunReport(tables=[TableReport("bronze", "bronze_events", "")])
    register_tables(pipeline, report)
    assert report.notices == [
        "tables could not be registered in the catalog games: RuntimeError: the metastore's port is closed"
    ]
    (check,) = report.checks
    assert (check.name, check.passed, check.wrong_rows) == ("tables_registered", False, False)
    # Nobody is asked by a run that changed nothing, or without a catalog.
    register_tables(pipeline, quiet := RunReport())
    assert (quiet.notices, quiet.checks) == ([], [])
    without = Pipeline(load_settings(lakehouse=str(tmp_path)), broken)
    register_tables(without, unasked := RunReport(tables=report.tables))
    assert unasked.checks == []
    assert tables_registered(without).passed
